package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// barrierTx is the one transaction in which everything of a barrier happens.
type barrierTx struct {
	*barrier
	tx      pgx.Tx
	watch   *waitWatch
	started time.Time     // when the attempt began to wait
	locked  time.Time     // when it had its locks; zero: it never had
	part    time.Time     // when the part of the work began that is under way
	wait    time.Duration // for a lock that a step turns out to need
	limits  string        // the settings that bound its steps
	ranSQL  bool          // of the user, in steps
	result  storage.BarrierResult
}

// run takes the locks, decides under them, and changes what is to be changed. Nothing read before the locks decides anything but which
// locks to take.
func (t *barrierTx) run(ctx context.Context, seen view) error {
	if err := takeLocks(ctx, t.tx, seen.locks); err != nil {
		return err
	}
	t.locked = time.Now()
	t.part = t.locked
	if err := t.boundSteps(ctx, seen); err != nil {
		return err
	}
	facts, err := t.store.readFacts(ctx, t.tx, t.target, t.types)
	if err != nil {
		return err
	}
	decision, err := storage.Decide(t.target, facts)
	if err != nil {
		return err
	}
	needed, err := t.store.locksFor(ctx, t.tx, decision)
	if err != nil {
		return err
	}
	if !seen.locks.covers(needed) {
		return storage.Refuse(storage.CodeSerialization, "%s: the database changed between plan and lock, and other locks are needed now", t.what())
	}
	t.result = t.resultOf(decision)
	t.result.LockWait = t.locked.Sub(t.started)
	if decision.Outcome == storage.Agreed { // somebody else was faster
		if ownerIsRecorded(facts, t.target) {
			return nil
		}
		return t.store.recordOwner(ctx, t.tx, facts.Owner, t.target.Owner)
	}
	if err := t.checkApproved(ctx, t.tx, decision, needed); err != nil {
		return err
	}
	return t.change(ctx, facts, decision)
}

// held is how long the attempt has had its locks.
func (t *barrierTx) held() time.Duration {
	if t.locked.IsZero() {
		return 0
	}
	return time.Since(t.locked)
}

// explainTimeout adds what to do to the error of a statement that had all the time there is for one. The server does not say, but in words of
// its own language, whether that or an administrator ended it.
func (t *barrierTx) explainTimeout(ctx context.Context, err error) error {
	var ended *storage.Error
	timedOut := sqlState(err) == stateCancelled && ctx.Err() == nil && !t.locked.IsZero() && time.Since(t.part) >= t.statement
	if !timedOut || !errors.As(err, &ended) || ended.Hint != "" {
		return err
	}
	return ended.WithHint("%s", t.target.Lock.StatementHint())
}

// boundSteps: what a step turns out to need beyond our locks it waits for very shortly. A writer that waits for us looks for a deadlock once,
// deadlock_timeout after it began; if we wait for it at that moment, the writer is the victim.
func (t *barrierTx) boundSteps(ctx context.Context, seen view) error {
	t.wait = min(t.timeout, seen.deadlock/10)
	t.limits = fmt.Sprintf("SET LOCAL lock_timeout = %d;SET LOCAL statement_timeout = %d;", milliseconds(t.wait), milliseconds(t.statement)) +
		asWriter(max(t.target.Version, seen.decision.MinWriter))
	if _, err := t.tx.Exec(ctx, t.limits); err != nil {
		return fmt.Errorf("bound the steps: %w", err)
	}
	return nil
}

// change does all of it while another connection watches what it waits for.
func (t *barrierTx) change(ctx context.Context, before storage.Facts, decision storage.Decision) error {
	if err := t.watch.begin(ctx, t.tx, t.wait, t.timeout); err != nil {
		return err
	}
	return t.watch.end(ctx, t.changeWatched(ctx, before, decision))
}

// changeWatched goes in the order that the parts need: the steps; whether they led to what is declared; marker and layouts; the
// checkpoints, whose SQL needs the new columns; the capture of their sources; the fence; and last whether fence and guards, which SQL of the user could have touched,
// still stand.
func (t *barrierTx) changeWatched(ctx context.Context, before storage.Facts, decision storage.Decision) error {
	if err := t.steps(ctx, decision); err != nil {
		return err
	}
	t.part = time.Now()
	if err := t.checkResult(ctx, before, decision); err != nil {
		return err
	}
	if err := t.moveMarker(ctx, decision); err != nil {
		return err
	}
	if err := t.declare(ctx, decision); err != nil {
		return err
	}
	if _, err := t.store.ensureCapture(ctx, t.tx, decision.MinWriter); err != nil {
		return err
	}
	raised, err := t.store.raiseFence(ctx, t.tx, decision.Raise)
	if err != nil {
		return err
	}
	if err := t.store.recordOwner(ctx, t.tx, before.Owner, t.target.Owner); err != nil {
		return err
	}
	if err := t.store.writeHistory(ctx, t.tx, t.historyRows(decision, raised)); err != nil {
		return err
	}
	return t.store.requireFence(ctx, t.tx)
}

func (t *barrierTx) steps(ctx context.Context, decision storage.Decision) error {
	if len(decision.Steps) == 0 {
		return nil
	}
	r, err := t.store.rendererFor(ctx, t.tx, t.types)
	if err != nil {
		return err
	}
	for _, s := range r.steps(decision.Steps) {
		t.part = time.Now()
		t.result.Statements++
		switch s.step.Kind {
		case storage.StepRunSQL:
			t.ranSQL, t.result.CloseConnection = true, true
			if err := t.store.runUserSQL(ctx, t.tx, s.step, t.limits); err != nil {
				return err
			}
			continue
		case storage.StepRewritePayload:
			if err := t.checkPayloads(ctx, r, s.step); err != nil {
				return err
			}
		}
		if _, err := t.tx.Exec(ctx, s.sql); err != nil {
			return stepError(err, s.what)
		}
	}
	return nil
}

// checkPayloads: the rewrite would fail on a payload that is shorter than its own bitmap, without saying in which table.
func (t *barrierTx) checkPayloads(ctx context.Context, r renderer, step storage.Step) error {
	query := r.shortPayloads(step)
	if query == "" {
		return nil
	}
	var short int64
	if err := t.tx.QueryRow(ctx, query).Scan(&short); err != nil {
		return fmt.Errorf("look for short payloads in table %q: %w", step.Table, err)
	}
	if short > 0 {
		return storage.Refuse(storage.CodeLayoutMismatch, "tables: %q: %d rows have a payload that is shorter than the null bitmap of its %d columns",
			step.Table, short, step.OldColumns)
	}
	return nil
}

// stepError: a declared step that the database refuses is the declaration's fault, except for what passes by itself.
func stepError(err error, what string) error {
	translated := translate(err, what)
	var pgErr *pgconn.PgError
	if storage.CodeOf(translated) != storage.CodeInternal || !errors.As(err, &pgErr) {
		return translated
	}
	refused := &storage.Error{Code: storage.CodeInvalidSpec, Message: what, Err: withoutValues(pgErr)}
	switch pgErr.Code {
	case stateDependents:
		refused.Hint = "drop or change what depends on it first: " + pgErr.Detail // names of objects, never rows
	case stateUniqueViolation:
		refused.Hint = "rows of the table have the same values in the columns of the index"
	}
	return refused
}

const (
	stateDependents      = "2BP01"
	stateUniqueViolation = "23505"
)

// checkResult reads again what the steps, and above all the user's SQL, led to.
func (t *barrierTx) checkResult(ctx context.Context, before storage.Facts, decision storage.Decision) error {
	after := before
	if decision.Outcome == storage.Adopt {
		return nil
	}
	if t.ranSQL {
		facts, err := t.store.readFacts(ctx, t.tx, t.target, t.types)
		if err != nil {
			return err
		}
		if !sameCatalog(before, facts) {
			return storage.Refuse(storage.CodeInvalidSQL, "%s: its SQL changed marker, history, owner or fence, which are Syncbarrier's own", t.what())
		}
		after = facts
	} else {
		names := make([]string, 0, len(t.target.Tables))
		for _, table := range t.target.Tables {
			names = append(names, table.Name)
		}
		tables, err := t.store.physicalTables(ctx, t.tx, names)
		if err != nil {
			return err
		}
		after.Tables = tables
	}
	return storage.CheckPhysical(t.target, after, decision.CreatedColumns())
}

// sameCatalog compares what only a barrier changes. Checkpoints are not compared: a worker may activate one meanwhile.
func sameCatalog(before, after storage.Facts) bool {
	return before.Protocol == after.Protocol && before.Fence == after.Fence && reflect.DeepEqual(before.Marker, after.Marker) &&
		reflect.DeepEqual(before.Owner, after.Owner) && reflect.DeepEqual(before.History, after.History)
}

func (t *barrierTx) moveMarker(ctx context.Context, decision storage.Decision) error {
	if decision.Outcome != storage.Migrate {
		return nil
	}
	_, err := t.tx.Exec(ctx, t.store.sql(`
		INSERT INTO {schema}.sync_schema_meta(id, schema_version, layouts)
		VALUES (1, $1::bigint, $2::text)
		    ON CONFLICT (id) DO UPDATE
		   SET schema_version = EXCLUDED.schema_version,
		       layouts = EXCLUDED.layouts`), decision.Version, decision.Layouts)
	if err != nil {
		return translate(err, fmt.Sprintf("move the marker to version %d", decision.Version))
	}
	return nil
}

// declare writes the checkpoints' rows and definitions, and has the database try their SQL, which is the user's too.
func (t *barrierTx) declare(ctx context.Context, decision storage.Decision) error {
	if len(decision.Declare) == 0 {
		return nil
	}
	prepared, err := preparedNames(ctx, t.tx)
	if err != nil {
		return err
	}
	triedSQL := false
	for _, c := range decision.Declare {
		triedSQL = triedSQL || !c.Backfill.External()
		if err := t.store.declareRows(ctx, t.tx, c, t.target.Tables); err != nil {
			return err
		}
		if err := t.store.checkDefinitions(ctx, t.tx, c, t.target.Tables); err != nil {
			return err
		}
	}
	t.result.CloseConnection = true
	if !triedSQL {
		return nil
	}
	return t.store.resetAfterUserSQL(ctx, t.tx, prepared, t.limits)
}

// historyRows completes the rows of the versions passed. The hold is that up to here: what follows is the last check and COMMIT.
func (t *barrierTx) historyRows(decision storage.Decision, raised map[string]int64) []storage.HistoryRow {
	rows := decision.Passed
	for i := range rows {
		rows[i].LockWait, rows[i].LockHold = t.result.LockWait, time.Since(t.locked)
		rows[i].Attempts, rows[i].Raised = max(1, t.attempt.Number), map[string]int64{}
		if rows[i].Version == decision.Version {
			rows[i].Raised = raised
		}
	}
	return rows
}
