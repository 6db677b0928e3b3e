package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// EnsureSchema makes one attempt to bring the file to the target (storage.Barriers). SQLite has one lock, so Attempt.First says nothing here.
//
// A file that agrees already, or a target that must be refused, is answered from one snapshot, without the lock. What is carried out is
// read and judged anew under it.
func (s *Store) EnsureSchema(ctx context.Context, target storage.Target, attempt storage.Attempt) (storage.BarrierResult, error) {
	if err := storage.CheckTarget(target, storage.SQLite); err != nil {
		return storage.BarrierResult{}, err
	}
	b := &barrier{store: s, target: target, attempt: attempt, limits: target.Lock.WithDefaults()}
	if result, answered, err := s.answer(ctx, target); answered {
		return result, translate(err, b.what())
	}
	err := b.run(ctx)
	var ended *storage.Error
	if err = translate(err, b.what()); b.timedOut && errors.As(err, &ended) {
		ended.Hint = target.Lock.StatementHint()
	}
	return b.result, err
}

// answer tells from one snapshot whether there is nothing to do or nothing that may be done. What passes by itself, or cannot be read,
// is for the attempt under the lock to judge.
func (s *Store) answer(ctx context.Context, target storage.Target) (result storage.BarrierResult, answered bool, err error) {
	var found finding
	err = s.inTx(ctx, "compare "+s.path, false, func(ctx context.Context, tx *sql.Conn) error {
		found, err = s.examine(ctx, tx, target)
		return err
	})
	if err != nil {
		class := storage.ClassOf(err)
		return storage.BarrierResult{}, !class.Retryable() && class != storage.ClassInternal, err
	}
	return resultOf(found.decision), found.decision.Outcome == storage.Agreed && !found.work(), nil
}

// finding is what was read of a file, and what follows from it.
type finding struct {
	objects  schemaObjects
	facts    storage.Facts
	recorded recordedOwner
	target   storage.Target
	decision storage.Decision
}

// find reads what there is, and of whom, in the caller's transaction.
func (s *Store) find(ctx context.Context, q querier, target storage.Target) (finding, error) {
	f := finding{target: target}
	var err error
	if f.objects, err = readObjects(ctx, q); err != nil {
		return f, err
	}
	f.recorded, err = readOwner(ctx, q, f.objects)
	return f, err
}

// decide reads the facts in the caller's transaction and judges them.
func (f *finding) decide(ctx context.Context, q querier) (err error) {
	if f.facts, err = readFacts(ctx, q, f.objects, f.target); err == nil {
		f.decision, err = storage.Decide(f.target, f.facts)
	}
	return err
}

// examine reads the facts in the caller's transaction and decides, behind a look at fence and guards. What has been weakened since this build's were installed is not mended in silence,
// because rows may have got in: it is refused before anything is judged by what stands there, and RepairFence mends and counts.
func (s *Store) examine(ctx context.Context, q querier, target storage.Target) (finding, error) {
	f, err := s.find(ctx, q, target)
	if err == nil && !f.installs() && f.recorded.protocol == storage.CatalogProtocol {
		err = refuseWeakened(ctx, q, f.objects)
	}
	if err == nil {
		err = f.decide(ctx, q)
	}
	return f, err
}

// installs says whether the catalog is missing or another build's.
func (f finding) installs() bool {
	return f.recorded.protocol < storage.CatalogProtocol || f.recorded.revision != catalogRevision
}

// work says whether something is to be written although the version agrees.
func (f finding) work() bool { return f.installs() || !ownerIsRecorded(f.facts, f.target) }

func resultOf(decision storage.Decision) storage.BarrierResult {
	return storage.BarrierResult{Outcome: decision.Outcome, Stored: decision.Stored, Version: decision.Version, Warnings: decision.Warnings}
}

// barrier is one attempt.
type barrier struct {
	store    *Store
	target   storage.Target
	attempt  storage.Attempt
	limits   storage.LockLimits
	tx       *sql.Conn
	found    finding
	lockedAt time.Time
	result   storage.BarrierResult
	timedOut bool // a statement had all the time there is for one
}

func (b *barrier) what() string {
	return fmt.Sprintf("bring %s to version %d", b.store.path, b.target.Version)
}

// run is the attempt: the lock, the facts, the decision, the steps, the checks, COMMIT.
func (b *barrier) run(ctx context.Context) error {
	t, err := b.begin(ctx)
	if err != nil {
		return err
	}
	b.tx = t.conn
	if err := b.carryOut(context.WithValue(ctx, closeMarkKey{}, t)); err != nil {
		t.rollback(ctx)
		b.result = storage.BarrierResult{LockHold: time.Since(b.lockedAt)}
		return err
	}
	if err := t.commit(ctx); err != nil {
		b.result = storage.BarrierResult{LockHold: time.Since(b.lockedAt)}
		return err
	}
	b.result.LockHold = time.Since(b.lockedAt)
	return nil
}

// begin takes the write lock on a connection of the attempt's own, which is closed afterwards: SQL of the user may run on it, and foreign
// keys are not enforced on it.
func (b *barrier) begin(ctx context.Context) (*transaction, error) {
	started := time.Now()
	bound := time.Duration(b.limits.TimeoutMilliseconds) * time.Millisecond
	conn, err := b.store.lock(ctx, b.what(), bound, b.prepare)
	if err != nil {
		return nil, err
	}
	b.lockedAt = time.Now()
	b.result.LockWait = b.lockedAt.Sub(started)
	return &transaction{store: b.store, conn: conn, what: b.what(), close: true}, nil
}

// prepare sets what cannot be set inside a transaction. A file that is still empty gets a write-ahead log, under which readers and the writer
// do not wait for each other; one that has content keeps what its programs chose.
func (b *barrier) prepare(ctx context.Context, conn *sql.Conn) error {
	// With enforcement on, DROP TABLE would first delete the table's rows, and those of other tables that refer to them.
	if _, err := conn.ExecContext(ctx, "PRAGMA foreign_keys = OFF"); err != nil {
		return translate(err, b.what())
	}
	pages, err := countOf(ctx, conn, "pages", "SELECT page_count FROM pragma_page_count")
	if err != nil || pages > 0 {
		return err
	}
	_, err = conn.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	return translate(err, b.what()+": begin a write-ahead log")
}

// carryOut does everything between the lock and COMMIT.
func (b *barrier) carryOut(ctx context.Context) error {
	if err := b.decide(ctx); err != nil {
		return err
	}
	for _, do := range []func(context.Context) error{
		b.ensureCatalog, b.ensureOwner, b.runSteps, b.checkPhysical, b.moveMarker, b.declare, b.raiseAndRecord, b.checkFence,
	} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// decide reads and judges under the lock.
func (b *barrier) decide(ctx context.Context) error {
	var err error
	if b.found, err = b.store.examine(ctx, b.tx, b.target); err != nil {
		return err
	}
	wait := b.result.LockWait
	b.result = resultOf(b.found.decision)
	b.result.LockWait = wait
	if b.found.decision.Outcome == storage.Agreed || b.target.PlanHash == "" {
		return nil
	}
	return b.target.CheckApproved(b.what(), wouldRun(b.found).Hash)
}

// ensureCatalog installs or upgrades tables, fence and guards.
func (b *barrier) ensureCatalog(ctx context.Context) error {
	if !b.found.installs() {
		return nil
	}
	statements, err := installCatalog(ctx, b.tx, b.found.objects)
	b.result.Statements += statements
	return err
}

func (b *barrier) ensureOwner(ctx context.Context) error {
	if !b.found.work() {
		return nil
	}
	b.result.Statements++
	return recordOwner(ctx, b.tx, b.target.Owner)
}

// runSteps carries the decision's steps out, each statement within the statement timeout.
func (b *barrier) runSteps(ctx context.Context) error {
	readable, err := b.checkRetired(ctx)
	if err != nil {
		return err
	}
	for _, step := range b.found.decision.Steps {
		if err := b.runStep(ctx, step); err != nil {
			return err
		}
	}
	return checkViews(ctx, b.tx, readable)
}

// checkRetired refuses to drop what others need, and gives the views that can be read now, if anything is dropped at all.
func (b *barrier) checkRetired(ctx context.Context) ([]string, error) {
	if len(b.target.RetiredTables) == 0 || b.found.decision.Outcome != storage.Migrate {
		return nil, nil
	}
	if err := checkRetirable(ctx, b.tx, b.target.RetiredTables); err != nil {
		return nil, err
	}
	return readableViews(ctx, b.tx)
}

func (b *barrier) runStep(ctx context.Context, step storage.Step) error {
	if step.Kind == storage.StepRunSQL {
		return b.runSQL(ctx, step)
	}
	for _, statement := range renderStep(step, b.found.objects) {
		b.result.Statements++
		if err := b.exec(ctx, statement); err != nil {
			if step.Kind == storage.StepRewritePayload {
				return b.explainRewrite(ctx, step, err)
			}
			return translateStep(err, stepName(step))
		}
	}
	return nil
}

// inTime runs a statement within the statement timeout, and notes that the timeout ended it.
func (b *barrier) inTime(ctx context.Context, run func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, time.Duration(b.limits.StatementTimeoutSeconds)*time.Second)
	defer cancel()
	err := run(bounded)
	b.timedOut = err != nil && bounded.Err() != nil && ctx.Err() == nil
	return err
}

// exec runs one statement within the statement timeout.
func (b *barrier) exec(ctx context.Context, statement string) error {
	return b.inTime(ctx, func(bounded context.Context) error {
		_, err := b.tx.ExecContext(bounded, statement)
		return err
	})
}

// runSQL runs the user's SQL of one version, clears what it left in the session, and checks what SQLite did not enforce meanwhile.
func (b *barrier) runSQL(ctx context.Context, step storage.Step) error {
	what := userSQLName(step.Version)
	b.result.Statements++
	b.result.CloseConnection = true
	var written []string
	err := b.inTime(ctx, func(bounded context.Context) (err error) {
		written, err = runUserSQL(bounded, b.tx, what, step.SQL)
		return err
	})
	if err != nil {
		return err
	}
	if err := discardTemporaries(ctx, b.tx, what); err != nil {
		return err
	}
	return b.store.checkReferences(ctx, b.tx, what, written)
}

// explainRewrite counts the payloads on which a rewrite failed: SQLite says only that a function did.
func (b *barrier) explainRewrite(ctx context.Context, step storage.Step, cause error) error {
	if primaryCode(cause) != codeError {
		return translate(cause, stepName(step))
	}
	payload := quoteIdentifier(storage.ColumnPayload)
	short, err := countOf(ctx, b.tx, "payloads of "+step.Table, fmt.Sprintf(`
		SELECT count(*)
		FROM %s
		WHERE typeof(%s) <> 'blob'
		   OR length(%s) < ?`, quoteIdentifier(step.Table), payload, payload), storage.PayloadBitmapBytes(step.OldColumns))
	if err != nil || short == 0 {
		return translate(cause, stepName(step))
	}
	return storage.Refuse(storage.CodeLayoutMismatch, "%s: %d rows have a payload that is no BLOB, or shorter than the null bitmap of %d columns",
		stepName(step), short, step.OldColumns)
}

// checkPhysical compares what stands now with what is declared: the steps, or SQL of the user, may have made something else of it.
func (b *barrier) checkPhysical(ctx context.Context) error {
	if b.found.decision.Outcome != storage.Migrate {
		return nil
	}
	objects, err := readObjects(ctx, b.tx)
	if err != nil {
		return err
	}
	facts, err := readFacts(ctx, b.tx, objects, b.target)
	if err != nil {
		return err
	}
	return storage.CheckPhysical(b.target, facts, b.found.decision.CreatedColumns())
}

// moveMarker moves marker and layouts together. That it took place is read back: a trigger of somebody's may have swallowed the row.
func (b *barrier) moveMarker(ctx context.Context) error {
	if b.found.decision.Outcome != storage.Migrate {
		return nil
	}
	b.result.Statements++
	statement := renderMarker(b.found.decision, b.found.facts.Marker != nil)
	if err := b.exec(ctx, statement); err != nil {
		if b.result.CloseConnection { // SQL of the user ran, and only that can have moved the marker further under our lock
			return translateUserSQL(err, fmt.Sprintf("move the marker to version %d, after the SQL of this migration", b.found.decision.Version))
		}
		return translate(err, "move the marker")
	}
	stands, err := countOf(ctx, b.tx, "markers", `
		SELECT count(*)
		FROM main.sync_schema_meta
		WHERE id = 1
		  AND schema_version = ?
		  AND layouts = ?`, b.found.decision.Version, b.found.decision.Layouts)
	if err != nil {
		return err
	}
	if stands != 1 {
		return storage.Refuse(storage.CodeFenceBroken, "the marker did not move to version %d: something in the database keeps it", b.found.decision.Version)
	}
	return nil
}

// declare declares the checkpoints, and tries their SQL while it can still be refused.
func (b *barrier) declare(ctx context.Context) error {
	decision := b.found.decision
	if len(decision.Declare) == 0 {
		return nil
	}
	b.result.Statements += len(decision.Declare)
	for _, c := range decision.Declare {
		b.result.Declared = append(b.result.Declared, c.Name)
	}
	if err := checkDefinitions(ctx, b.tx, decision.Declare, b.target.Tables); err != nil {
		return err
	}
	return declareRows(ctx, b.tx, decision.Declare, b.target.Tables)
}

// raiseAndRecord raises the fence and writes the history, one row for each version passed.
func (b *barrier) raiseAndRecord(ctx context.Context) error {
	decision := b.found.decision
	raised, err := raiseFence(ctx, b.tx, decision.Raise)
	if err != nil {
		return err
	}
	b.result.Statements += len(decision.Raise) + len(decision.Passed)
	b.result.LockHold = time.Since(b.lockedAt)
	for _, row := range decision.Passed {
		row.AppliedAt, row.LockWait, row.LockHold = time.Now(), b.result.LockWait, b.result.LockHold
		row.Attempts, row.Raised = b.attempt.Number, raised
		if err := writeHistory(ctx, b.tx, row); err != nil {
			return err
		}
	}
	return nil
}

// checkFence looks at fence and guards as the steps left them.
func (b *barrier) checkFence(ctx context.Context) error {
	objects, err := readObjects(ctx, b.tx)
	if err != nil {
		return err
	}
	return refuseWeakened(ctx, b.tx, objects)
}
