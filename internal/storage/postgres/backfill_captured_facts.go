package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// addCaptureFacts adds the state of the triggers of captured sources to a fingerprint. Whoever switches one off and on again changes it.
func (s *Store) addCaptureFacts(ctx context.Context, tx pgx.Tx, plan *backfillPlan, facts passFacts) error {
	if !plan.captures() {
		return nil
	}
	changes, err := s.sourceChanges(ctx, tx, plan.capturedTables())
	if err != nil {
		return err
	}
	for _, table := range plan.capturedTables() {
		if known, ok := facts.Tables[table]; ok {
			known.Capture = changes[table]
			facts.Tables[table] = known
		}
	}
	return nil
}

// checkCapture refuses to activate what is captured by triggers that are not as they have to be. It is looked at before the locks are taken,
// because it takes long: under them the fingerprint says that nobody has changed a trigger since the pass began, so also not since
// this look.
func (a *activation) checkCapture(ctx context.Context) error {
	if !a.plan.captures() {
		return nil
	}
	problems, err := a.store.captureProblems(ctx, a.Tx, a.plan)
	if err == nil && len(problems) > 0 {
		err = activationEnded{Outcome: storage.OutcomeUnverifiable, Reason: strings.Join(problems, "; ")}
	}
	return err
}

// captureProblems says what is wrong with the triggers that write the log of a plan's sources.
func (s *Store) captureProblems(ctx context.Context, q querier, plan *backfillPlan) ([]string, error) {
	needs, err := s.readSourceNeeds(ctx, q)
	if err != nil {
		return nil, err
	}
	_, owner, err := s.rolesOf(ctx, q)
	if err != nil {
		return nil, err
	}
	sources, err := s.readSources(ctx, q, plan.capturedTables())
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, need := range needs {
		source, ok := plan.source(need.table.Name)
		if !ok || source.Changes != storage.Capture {
			continue
		}
		found := sources[need.table.Name]
		if found == nil {
			problems = append(problems, "table "+s.named(need.table.Name)+" is gone")
			continue
		}
		log := *need
		log.fenced = false // the fence is looked at by whoever checks fences
		findings, err := s.checkSource(ctx, q, &log, found, 0, owner)
		if err != nil {
			return nil, err
		}
		for _, finding := range findings {
			problems = append(problems, finding.Object+" "+finding.Problem)
		}
	}
	return problems, nil
}
