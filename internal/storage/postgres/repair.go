package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// RepairFence puts fence and guards back, in one transaction under the locks of a barrier, without a moment of absence, at the highest
// minimum that trigger, mirror or history say. Repaired names what it put back; Findings are those that are left for a person to
// mend; GotIn counts the commits that were stored below the fence meanwhile.
//
// Errors: CodeFenceBroken without a catalog; CodeLockTimeout with Table.
func (s *Store) RepairFence(ctx context.Context) (storage.FenceReport, error) {
	var report storage.FenceReport
	err := s.inTx(ctx, "repair the fence", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		before, err := s.checkFence(ctx, tx) // refuses where there is no catalog, before any lock
		if err != nil {
			return err
		}
		var repaired []string
		if !before.Intact() {
			if repaired, err = s.repair(ctx, tx); err != nil {
				return err
			}
		}
		after, err := s.readCatalog(ctx, tx)
		if err != nil {
			return err
		}
		if report, err = s.judgeFence(ctx, tx, after); err != nil {
			return err
		}
		report.Repaired = repaired
		return s.addGotIn(ctx, tx, after, &report)
	})
	if err != nil {
		return storage.FenceReport{}, s.explainLock(ctx, err, defaultLockTimeout)
	}
	return report, nil
}

// repair does it. Everything it decides on it reads under the locks.
func (s *Store) repair(ctx context.Context, tx pgx.Tx) ([]string, error) {
	unlocked, err := s.readCatalog(ctx, tx)
	if err != nil {
		return nil, err
	}
	// Sources before the log, as whoever writes them comes to it.
	locked, err := s.lockSources(ctx, tx, unlocked)
	if err != nil {
		return nil, err
	}
	if err := s.lockForInstall(ctx, tx, unlocked, locked); err != nil {
		return nil, err
	}
	found, err := s.readCatalog(ctx, tx)
	if err != nil {
		return nil, err
	}
	repaired, err := s.repairRelations(ctx, tx, found)
	if err != nil {
		return nil, err
	}
	if found, err = s.readCatalog(ctx, tx); err != nil { // with what was hidden
		return nil, err
	}
	functions, err := s.installFunctions(ctx, tx, found)
	if err != nil {
		return nil, err
	}
	for _, name := range functions {
		repaired = append(repaired, "function "+name)
	}
	required := found.required()
	triggers, err := s.installTriggers(ctx, tx, found, required)
	if err != nil {
		return nil, err
	}
	repaired = append(repaired, triggers...)
	captures, err := s.repairCapture(ctx, tx, found)
	if err != nil {
		return nil, err
	}
	repaired = append(repaired, captures...)
	if forAll := found.minimum.forAll; found.hasTable("sync_writer_fence") && (forAll == nil || *forAll < required) {
		if err := s.writeMinimum(ctx, tx, storage.AllPartitions, required); err != nil {
			return nil, translate(err, "write the fence for all partitions")
		}
		repaired = append(repaired, fmt.Sprintf("row %q of %s", storage.AllPartitions, s.named("sync_writer_fence")))
	}
	partitions, err := s.repairPartitions(ctx, tx, found)
	if err != nil {
		return nil, err
	}
	return append(repaired, partitions...), nil
}

// repairRelations makes the sequence again and takes forced row security off. Tables are not made again: what was in them is lost, and an empty
// one would let pass what the lost rows forbade.
func (s *Store) repairRelations(ctx context.Context, tx pgx.Tx, found foundCatalog) ([]string, error) {
	var repaired []string
	for _, declared := range declaredRelations {
		relation, exists := found.relations[declared.name]
		name := s.schema + "." + declared.name
		switch {
		case declared.kind == "SEQUENCE" && !exists:
			if _, err := tx.Exec(ctx, s.sql(declared.sql)); err != nil {
				return nil, translate(err, "make the sequence "+name)
			}
			repaired = append(repaired, "sequence "+s.named(declared.name))
		case declared.kind == "TABLE" && exists && relation.policies && relation.forced:
			if _, err := tx.Exec(ctx, "ALTER TABLE "+name+" NO FORCE ROW LEVEL SECURITY"); err != nil {
				return nil, lockError(err, "take forced row security off "+name, declared.name)
			}
			repaired = append(repaired, "row security of "+s.named(declared.name))
		}
	}
	return repaired, nil
}
