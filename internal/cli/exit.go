package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Exit codes (docs/design.md section 9). Jobs and scripts branch on them, so they never change.
const (
	exitDone          = 0
	exitOther         = 1
	exitUsage         = 2
	exitGateClosed    = 3
	exitGaveUp        = 4
	exitOwnershipLost = 10
	exitNewerCatalog  = 11
	exitInterrupted   = 130
	exitTerminated    = 143
)

var exitOfClass = map[storage.Class]int{
	storage.ClassGateClosed:         exitGateClosed,
	storage.ClassOwnershipLost:      exitOwnershipLost,
	storage.ClassNewerCatalog:       exitNewerCatalog,
	storage.ClassInvalidSpec:        20,
	storage.ClassInvalidSQL:         21,
	storage.ClassNotTransactional:   22,
	storage.ClassVersionRegression:  23,
	storage.ClassContentDrift:       24,
	storage.ClassLayoutMismatch:     25,
	storage.ClassConflict:           26,
	storage.ClassFenceBroken:        27,
	storage.ClassVerificationFailed: 28,
	storage.ClassNotConverging:      29,
	storage.ClassUnverifiable:       29,
}

// usageError is a wrong call: exit code 2.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usage(err error) error { return usageError{err} }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// reported is an outcome that has been printed already and only needs its exit code.
type reported struct{ code int }

func (r reported) Error() string { return fmt.Sprintf("exit code %d", r.code) }

// finish prints the error of a run, if it still has to be, and gives the exit code.
func (p *Program) finish(ctx context.Context, err error) int {
	if err == nil {
		return exitDone
	}
	var done reported
	if errors.As(err, &done) {
		return done.code
	}
	code := exitCode(ctx, err)
	p.printError(err, code)
	return code
}

func exitCode(ctx context.Context, err error) int {
	var ended signalled
	if errors.As(err, &ended) || errors.As(context.Cause(ctx), &ended) {
		if ended.signal == os.Interrupt {
			return exitInterrupted
		}
		return exitTerminated
	}
	var wrong usageError
	if errors.As(err, &wrong) || isCobraUsage(err) {
		return exitUsage
	}
	var cluster *clusterError
	if errors.As(err, &cluster) {
		return cluster.code
	}
	if code, ok := exitOfClass[storage.ClassOf(err)]; ok {
		return code
	}
	if storage.ClassOf(err).Retryable() || errors.Is(err, context.DeadlineExceeded) {
		return exitGaveUp
	}
	return exitOther
}

// isCobraUsage recognises what cobra says about arguments; it has no type for them.
func isCobraUsage(err error) bool {
	for _, start := range []string{"unknown command", "accepts ", "requires at least", "required flag", "invalid argument", "if any flags in the group"} {
		if strings.HasPrefix(err.Error(), start) {
			return true
		}
	}
	return false
}
