package storage

import (
	"errors"
	"fmt"
	"strings"
)

// Code names one refusal for machines. Codes never change once released; programs that follow the sync protocol compare
// the bare code with the message of the database's own error.
type Code string

// Codes of the sync protocol, raised by the database's triggers and by every Store.
const (
	// CodeWriterFenceRejected: a commit has no writer version, or one below the fence.
	CodeWriterFenceRejected Code = "sync.storage.writer_fence_rejected"
	// CodeCheckpointIncomplete: an unfinished checkpoint of this or a lower version is not declared by the caller.
	CodeCheckpointIncomplete Code = "sync.storage.checkpoint_incomplete"
	// CodeCheckpointNotDeclared: no open checkpoint of that partition and name exists.
	CodeCheckpointNotDeclared Code = "sync.storage.checkpoint_not_declared"
	// CodeCheckpointFenceMissing: the fence is missing or lower than the checkpoint's version.
	CodeCheckpointFenceMissing Code = "sync.storage.checkpoint_fence_missing"
)

// Codes of our own, in the same style.
const (
	// CodeCheckpointDefinitionMissing: the checkpoint was declared by another program and is that program's to activate.
	CodeCheckpointDefinitionMissing Code = "sync.storage.checkpoint_definition_missing"
	// CodeCheckpointGuard: a change of a checkpoint that the guards refuse (DELETE, TRUNCATE).
	CodeCheckpointGuard Code = "sync.storage.checkpoint_guard"
	// CodeCheckpointActivated: an activated checkpoint does not change.
	CodeCheckpointActivated Code = "sync.storage.checkpoint_activated"
	// CodeScanIncomplete: activation was asked for while key ranges are not scanned to their end.
	CodeScanIncomplete Code = "sync.storage.scan_incomplete"
	// CodeMarkerGuard: the marker would go down, be deleted or emptied.
	CodeMarkerGuard Code = "sync.storage.marker_guard"
	// CodeBarrierOpen: the marker cannot be raised while an Online run is open.
	CodeBarrierOpen Code = "sync.storage.barrier_open"
	// CodeFenceGuard: the fence would go down, be deleted or emptied.
	CodeFenceGuard Code = "sync.storage.fence_guard"
	// CodePartitionGuard: a partition would be deleted.
	CodePartitionGuard Code = "sync.storage.partition_guard"
	// CodeFenceBroken: fence or guards are not as we installed them.
	CodeFenceBroken Code = "sync.storage.fence_broken"
	// CodeVersionRegression: the stored version is newer than the one asked for.
	CodeVersionRegression Code = "sync.storage.version_regression"
	// CodeContentDrift: the content of an applied version differs from what was applied.
	CodeContentDrift Code = "sync.storage.content_drift"
	// CodeLayoutMismatch: stored layouts or physical columns differ from what is declared.
	CodeLayoutMismatch Code = "sync.storage.layout_mismatch"
	// CodeConflict: the database schema has another owner, or another program did what only its owner may.
	CodeConflict Code = "sync.storage.conflict"
	// CodeInvalidSpec: what was asked for cannot be right; the message names the field.
	CodeInvalidSpec Code = "sync.storage.invalid_spec"
	// CodeInvalidSQL: the user's SQL failed; the message quotes the database.
	CodeInvalidSQL Code = "sync.storage.invalid_sql"
	// CodeNotTransactional: the user's SQL cannot run, or would end or split the transaction.
	CodeNotTransactional Code = "sync.storage.not_transactional"
	// CodeVerificationFailed: a verify query returned wrong rows.
	CodeVerificationFailed Code = "sync.storage.verification_failed"
	// CodeNotConverging: a backfill does not catch up.
	CodeNotConverging Code = "sync.storage.not_converging"
	// CodeUnverifiable: the log cannot answer whether source changes were missed.
	CodeUnverifiable Code = "sync.storage.unverifiable"
	// CodeOwnershipLost: another claim or lease owns the work now.
	CodeOwnershipLost Code = "sync.storage.ownership_lost"
	// CodeNewerCatalog: the catalog was written by a newer Syncbarrier.
	CodeNewerCatalog Code = "sync.storage.newer_catalog"
	// CodeNotReady: the serve gate is closed; the message says why.
	CodeNotReady Code = "sync.storage.not_ready"
	// CodePruneRefused: an open checkpoint still needs what would be pruned.
	CodePruneRefused Code = "sync.storage.prune_refused"
	// CodeLockTimeout: a lock was not had within its bound.
	CodeLockTimeout Code = "sync.storage.lock_timeout"
	// CodeDeadlock: the database chose our transaction as deadlock victim.
	CodeDeadlock Code = "sync.storage.deadlock"
	// CodeSerialization: a serialization failure; the whole transaction may be tried again.
	CodeSerialization Code = "sync.storage.serialization"
	// CodeCancelled: the caller's context, a statement timeout or an administrator ended the statement.
	CodeCancelled Code = "sync.storage.cancelled"
	// CodeConnectionLost: the database cannot be reached, or went away.
	CodeConnectionLost Code = "sync.storage.connection_lost"
	// CodeConnectionsBusy: none of our own connections to the database was free in time. The database may be well.
	CodeConnectionsBusy Code = "sync.storage.connections_busy"
	// CodeCommitUnknown: the connection was lost while COMMIT was under way.
	CodeCommitUnknown Code = "sync.storage.commit_unknown"
	// CodeReadOnly: the server takes no writes (a standby, or set read only).
	CodeReadOnly Code = "sync.storage.read_only"
	// CodeAuthenticationFailed: the server refused the credentials or the rights are missing to connect.
	CodeAuthenticationFailed Code = "sync.storage.authentication_failed"
	// CodeRightMissing: the role is let in and lacks the right to do one thing there.
	CodeRightMissing Code = "sync.storage.right_missing"
	// CodeInternal: anything that has no class of its own.
	CodeInternal Code = "sync.storage.internal"
)

// Class says what should happen next with an error. Classes are condition reasons (docs/design.md section 7) and decide
// the exit code of the command line (section 9).
type Class string

// Classes that pass by themselves: try again after a pause.
const (
	ClassLockTimeout          Class = "LockTimeout"
	ClassDeadlock             Class = "Deadlock"
	ClassSerialization        Class = "Serialization"
	ClassCancelled            Class = "Cancelled"
	ClassConnectionLost       Class = "ConnectionLost"
	ClassCommitUnknown        Class = "CommitUnknown"
	ClassReadOnly             Class = "ReadOnly"
	ClassAuthenticationFailed Class = "AuthenticationFailed"
	ClassThrottled            Class = "Throttled"
	ClassPreviousVersionOpen  Class = "PreviousVersionOpen"
)

// Classes that need a person, or a change of the input.
const (
	ClassInvalidSpec        Class = "InvalidSpec"
	ClassInvalidSQL         Class = "InvalidSQL"
	ClassNotTransactional   Class = "NotTransactional"
	ClassVersionRegression  Class = "VersionRegression"
	ClassContentDrift       Class = "ContentDrift"
	ClassLayoutMismatch     Class = "LayoutMismatch"
	ClassConflict           Class = "Conflict"
	ClassFenceBroken        Class = "FenceBroken"
	ClassVerificationFailed Class = "VerificationFailed"
	ClassNotConverging      Class = "NotConverging"
	ClassUnverifiable       Class = "Unverifiable"
)

// Classes that are neither.
const (
	// ClassFenced: the fence refused a writer's commit.
	ClassFenced Class = "Fenced"
	// ClassGuarded: a guard refused a change by whatever program made it.
	ClassGuarded Class = "Guarded"
	// ClassOwnershipLost: somebody else owns the work; stop.
	ClassOwnershipLost Class = "OwnershipLost"
	// ClassNewerCatalog: a newer Syncbarrier must do this.
	ClassNewerCatalog Class = "NewerCatalog"
	// ClassGateClosed: the serve gate is closed.
	ClassGateClosed Class = "GateClosed"
	// ClassInternal: a defect, or something this program has no word for.
	ClassInternal Class = "Internal"
)

var retryable = map[Class]bool{
	ClassLockTimeout: true, ClassDeadlock: true, ClassSerialization: true, ClassCancelled: true, ClassConnectionLost: true,
	ClassCommitUnknown: true, ClassReadOnly: true, ClassAuthenticationFailed: true, ClassThrottled: true, ClassPreviousVersionOpen: true,
}

// Retryable says whether an error of this class passes without a person.
func (c Class) Retryable() bool { return retryable[c] }

var classOfCode = map[Code]Class{
	CodeWriterFenceRejected:         ClassFenced,
	CodeCheckpointIncomplete:        ClassPreviousVersionOpen,
	CodeCheckpointNotDeclared:       ClassConflict,
	CodeCheckpointFenceMissing:      ClassFenceBroken,
	CodeCheckpointDefinitionMissing: ClassConflict,
	CodeCheckpointGuard:             ClassGuarded,
	CodeCheckpointActivated:         ClassConflict,
	CodeScanIncomplete:              ClassConflict,
	CodeMarkerGuard:                 ClassGuarded,
	CodeBarrierOpen:                 ClassGuarded,
	CodeFenceGuard:                  ClassGuarded,
	CodePartitionGuard:              ClassGuarded,
	CodeFenceBroken:                 ClassFenceBroken,
	CodeVersionRegression:           ClassVersionRegression,
	CodeContentDrift:                ClassContentDrift,
	CodeLayoutMismatch:              ClassLayoutMismatch,
	CodeConflict:                    ClassConflict,
	CodeInvalidSpec:                 ClassInvalidSpec,
	CodeInvalidSQL:                  ClassInvalidSQL,
	CodeNotTransactional:            ClassNotTransactional,
	CodeVerificationFailed:          ClassVerificationFailed,
	CodeNotConverging:               ClassNotConverging,
	CodeUnverifiable:                ClassUnverifiable,
	CodeOwnershipLost:               ClassOwnershipLost,
	CodeNewerCatalog:                ClassNewerCatalog,
	CodeNotReady:                    ClassGateClosed,
	CodePruneRefused:                ClassConflict,
	CodeLockTimeout:                 ClassLockTimeout,
	CodeDeadlock:                    ClassDeadlock,
	CodeSerialization:               ClassSerialization,
	CodeCancelled:                   ClassCancelled,
	CodeConnectionLost:              ClassConnectionLost,
	CodeConnectionsBusy:             ClassThrottled,
	CodeCommitUnknown:               ClassCommitUnknown,
	CodeReadOnly:                    ClassReadOnly,
	CodeAuthenticationFailed:        ClassAuthenticationFailed,
	CodeRightMissing:                ClassAuthenticationFailed,
	CodeInternal:                    ClassInternal,
}

// Error is every refusal and failure a Store returns. Error() is for people; Code and Class are for machines. It never holds
// a password or row data, apart from keys that a verify query names.
type Error struct {
	Code    Code
	Message string    // what was refused, with the table, partition, version, pid or key a person needs
	Hint    string    // what to do about it, or empty
	Blocked []Blocker // who holds the lock that was waited for
	Table   string    // the table whose lock was refused, for the next attempt to wait on first; else empty
	Err     error     // the cause, or nil
}

// Error gives the message, who blocks, the cause, and the code in brackets.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	if len(e.Blocked) > 0 {
		names := make([]string, len(e.Blocked))
		for i, blocker := range e.Blocked {
			names[i] = blocker.String()
		}
		fmt.Fprintf(&b, "; blocked by %s", strings.Join(names, ", "))
	}
	if e.Err != nil {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	fmt.Fprintf(&b, " [%s]", e.Code)
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Class says what should happen next.
func (e *Error) Class() Class {
	if class, ok := classOfCode[e.Code]; ok {
		return class
	}
	return ClassInternal
}

// Refuse makes an Error with a formatted message and no cause.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns the error with a hint for the person who reads it.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// CodeOf gives the code of the first Error in the chain, CodeInternal if there is none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// ClassOf gives the class of the first Error in the chain, ClassInternal if there is none, and "" for nil.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Class()
	}
	return ClassInternal
}

// Blocker is somebody who holds a lock that we need.
type Blocker struct {
	PID         int    `json:"pid"`  // server process id; 0 for a prepared transaction
	Kind        string `json:"kind"` // "session", "prepared transaction", "vacuum", "process"
	Name        string `json:"name"` // application name, or the name of the prepared transaction
	User        string `json:"user"`
	Table       string `json:"table"`
	HeldSeconds int64  `json:"heldSeconds"` // how long its transaction is open, in seconds
}

// String names the blocker without any query text, which could hold row data.
func (b Blocker) String() string {
	switch {
	case b.Kind == "prepared transaction":
		return fmt.Sprintf("prepared transaction %q on %s for %ds", b.Name, b.Table, b.HeldSeconds)
	case b.Kind == "process":
		return fmt.Sprintf("process %d (%s)", b.PID, b.Name) // SQLite: the system tells no more of a lock on a file
	case b.PID != 0:
		return fmt.Sprintf("%s pid %d (%s, user %s) on %s for %ds", b.Kind, b.PID, b.Name, b.User, b.Table, b.HeldSeconds)
	default:
		return fmt.Sprintf("%s %s", b.Kind, b.Name)
	}
}
