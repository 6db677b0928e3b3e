package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// EnsureSchema makes one attempt to bring the database to the target (docs/design.md section 3). A database that is there already is
// agreed with from one snapshot, without any lock, so that eight starters at once do not queue. Otherwise everything happens in
// one transaction whose locks come first and together, and every read it decides on is made under them.
//
// It waits at most Lock.TimeoutMilliseconds for locks, and holds them for the time of its statements, each of which is bounded by
// Lock.StatementTimeoutSeconds.
//
// Errors: those of storage.Decide; CodeLockTimeout with Table and Blocked; CodeSerialization if the database changed between plan and
// lock; CodeInvalidSQL, CodeNotTransactional for user SQL and CodeInvalidSpec for declared steps that the database refuses;
// CodeFenceBroken; CodeCommitUnknown, after which a barrier that did commit is agreed with when asked again.
func (s *Store) EnsureSchema(ctx context.Context, target storage.Target, attempt storage.Attempt) (storage.BarrierResult, error) {
	limits := target.Lock.WithDefaults()
	b := &barrier{
		store: s, target: target, attempt: attempt,
		timeout:   time.Duration(limits.TimeoutMilliseconds) * time.Millisecond,
		statement: time.Duration(limits.StatementTimeoutSeconds) * time.Second,
	}
	seen, err := b.prepare(ctx)
	if err != nil {
		return storage.BarrierResult{}, err
	}
	if seen.decision.Outcome == storage.Agreed {
		return b.agree(ctx, seen)
	}
	return b.carryOut(ctx, seen)
}

// barrier is one attempt.
type barrier struct {
	store     *Store
	target    storage.Target
	attempt   storage.Attempt
	timeout   time.Duration     // for the wait for locks
	statement time.Duration     // for each statement
	types     map[string]string // canonical types of the target
	plans     bool              // only to say what it would do
}

// view is what one snapshot showed. What follows from it is decided again under the locks.
type view struct {
	facts    storage.Facts
	decision storage.Decision
	locks    lockSet
	fence    error         // CodeFenceBroken if fence or guards are weakened
	note     string        // about the coverage index
	deadlock time.Duration // deadlock_timeout of the server
}

func (b *barrier) what() string { return fmt.Sprintf("barrier to version %d", b.target.Version) }

// prepare looks, and installs or upgrades the catalog if the target is not refused anyway. A refusal needs no lock: what a snapshot
// showed was true.
func (b *barrier) prepare(ctx context.Context) (view, error) {
	err := storage.CheckTarget(b.target, storage.PostgreSQL)
	if err != nil {
		return view{}, err
	}
	if b.types, err = b.store.canonicalTypes(ctx, b.target); err != nil {
		return view{}, err
	}
	seen, err := b.look(ctx)
	if err != nil {
		return view{}, err
	}
	err = b.store.inTx(ctx, "install the catalog", txOptions{lockTimeout: b.timeout}, b.store.ensureCatalog)
	if err != nil {
		return view{}, b.store.explainLock(ctx, err, b.timeout)
	}
	if seen.facts.Protocol != storage.CatalogProtocol || seen.fence != nil { // it was missing, or of another revision
		if seen, err = b.look(ctx); err != nil {
			return view{}, err
		}
	}
	if seen.fence != nil {
		return view{}, seen.fence
	}
	if seen.decision.Outcome != storage.Agreed {
		seen.note, err = b.store.ensureCoverageIndex(ctx, b.timeout)
	}
	return seen, err
}

// look reads and decides in one snapshot, without a lock that anybody could wait for.
func (b *barrier) look(ctx context.Context) (view, error) {
	var seen view
	o := txOptions{iso: pgx.RepeatableRead, readOnly: true, lockTimeout: b.timeout}
	err := b.store.inTx(ctx, b.what()+": look at the database", o, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		seen, err = b.lookIn(ctx, tx)
		return err
	})
	return seen, err
}

func (b *barrier) lookIn(ctx context.Context, tx pgx.Tx) (v view, err error) {
	if v.facts, err = b.store.readFacts(ctx, tx, b.target, b.types); err != nil {
		return v, err
	}
	decide := storage.Decide
	if b.plans {
		decide = storage.DecidePlan
	}
	if v.decision, err = decide(b.target, v.facts); err != nil {
		return v, err
	}
	if v.facts.Protocol != 0 {
		v.fence = b.store.requireFence(ctx, tx)
		if v.fence != nil && storage.CodeOf(v.fence) != storage.CodeFenceBroken {
			return v, v.fence
		}
	}
	if v.locks, err = b.locks(ctx, tx, v.decision); err != nil {
		return v, err
	}
	v.deadlock, err = deadlockTimeout(ctx, tx)
	return v, err
}

// locks are those of a decision, with the table that the attempt before was refused in front. That may be one that only a step
// turned out to need.
func (b *barrier) locks(ctx context.Context, q querier, decision storage.Decision) (lockSet, error) {
	locks, err := b.store.locksFor(ctx, q, decision)
	if err != nil || b.attempt.First == "" || len(locks) == 0 {
		return locks, err
	}
	hidden, err := b.store.findTable(ctx, q, b.attempt.First)
	if err != nil {
		return nil, err
	}
	return locks.waitFirst(hidden, len(decision.Steps) > 0), nil
}

// agree ends an attempt whose work is done already. Only the owner may have to be written down.
func (b *barrier) agree(ctx context.Context, seen view) (storage.BarrierResult, error) {
	result := b.resultOf(seen.decision)
	if err := b.store.settleUnused(ctx); err != nil {
		result.Warnings = append(result.Warnings, fmt.Sprintf("capture that nobody needs any more goes on: %v", err))
	}
	if ownerIsRecorded(seen.facts, b.target) {
		return result, nil
	}
	err := b.store.inTx(ctx, b.what(), txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return b.store.recordOwner(ctx, tx, seen.facts.Owner, b.target.Owner)
	})
	return result, err
}

func (b *barrier) resultOf(decision storage.Decision) storage.BarrierResult {
	result := storage.BarrierResult{
		Outcome: decision.Outcome, Stored: decision.Stored, Version: decision.Version, Warnings: decision.Warnings,
	}
	for _, c := range decision.Declare {
		result.Declared = append(result.Declared, c.Name)
	}
	return result
}

// carryOut waits for its turn and runs the transaction. Waiting outside the lock queue and in it share one budget.
func (b *barrier) carryOut(ctx context.Context, seen view) (storage.BarrierResult, error) {
	started := time.Now()
	if err := b.store.outwaitLongHolders(ctx, seen.locks, b.timeout, b.timeout*3/4); err != nil {
		return storage.BarrierResult{}, err
	}
	var run barrierTx
	o := txOptions{
		iso:              pgx.ReadCommitted, // whatever the default: an older snapshot would not see what came before the locks
		lockTimeout:      max(b.timeout/4, b.timeout-time.Since(started)),
		statementTimeout: b.statement,
	}
	err := b.store.inTx(ctx, b.what(), o, func(ctx context.Context, tx pgx.Tx) error {
		watch := b.store.newWatch(ctx)
		defer watch.close(ctx)
		run = barrierTx{barrier: b, tx: tx, watch: watch, started: started}
		return run.run(ctx, seen)
	})
	if err != nil {
		return storage.BarrierResult{LockHold: run.held()}, b.store.explainLock(ctx, run.explainTimeout(ctx, err), b.timeout)
	}
	run.result.LockHold = run.held()
	if seen.note != "" {
		run.result.Warnings = append(run.result.Warnings, seen.note)
	}
	return run.result, nil
}
