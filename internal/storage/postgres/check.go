package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// CheckFence finds each way in which fence and guards are weakened, and counts the commits that got in below the fence since it was
// raised. It reads in one snapshot and changes nothing. Without a catalog: CodeFenceBroken.
func (s *Store) CheckFence(ctx context.Context) (storage.FenceReport, error) {
	var report storage.FenceReport
	o := txOptions{iso: pgx.RepeatableRead, readOnly: true}
	err := s.inTx(ctx, "check the fence", o, func(ctx context.Context, tx pgx.Tx) error {
		found, err := s.readCatalog(ctx, tx)
		if err != nil {
			return err
		}
		if report, err = s.judgeFence(ctx, tx, found); err != nil {
			return err
		}
		return s.addGotIn(ctx, tx, found, &report)
	})
	if err != nil {
		return storage.FenceReport{}, err
	}
	return report, nil
}

// checkFence finds each way in which fence and guards are weakened, inside the caller's transaction; it does not count what got in, which
// can take long. Without a catalog: CodeFenceBroken.
func (s *Store) checkFence(ctx context.Context, q querier) (storage.FenceReport, error) {
	found, err := s.readCatalog(ctx, q)
	if err != nil {
		return storage.FenceReport{}, err
	}
	return s.judgeFence(ctx, q, found)
}

func (s *Store) judgeFence(ctx context.Context, q querier, found foundCatalog) (storage.FenceReport, error) {
	if found.protocol == 0 {
		return storage.FenceReport{}, storage.Refuse(storage.CodeFenceBroken, "schema %s has no Syncbarrier catalog, so nothing enforces a fence", s.schemaName)
	}
	if err := s.refuseNewer(found); err != nil {
		return storage.FenceReport{}, err
	}
	report := storage.FenceReport{MinWriterVersion: max(0, found.enforced())}
	report.Findings = append(report.Findings, s.relationFindings(found)...)
	report.Findings = append(report.Findings, s.minimumFindings(found)...)
	report.Findings = append(report.Findings, s.versionFindings(found)...)
	for _, function := range declaredFunctions {
		for _, problem := range s.functionProblems(found, function) {
			report.Findings = append(report.Findings, storage.FenceFinding{
				Object: "function " + s.named(function.name), Problem: problem, Repairable: true})
		}
	}
	for _, trigger := range declaredTriggers {
		report.Findings = append(report.Findings, s.triggerProblems(found, trigger.withMinimum(found.required()))...)
	}
	report.Findings = append(report.Findings, s.foreignTriggers(found)...)
	for _, look := range []func(context.Context, querier, foundCatalog) ([]storage.FenceFinding, error){
		s.partitionFindings, s.markerFindings, s.logFindings, s.captureFindings,
	} {
		findings, err := look(ctx, q, found)
		if err != nil {
			return storage.FenceReport{}, err
		}
		report.Findings = append(report.Findings, findings...)
	}
	return report, nil
}

// requireFence is checkFence for a barrier: CodeFenceBroken with the findings, if there are any.
func (s *Store) requireFence(ctx context.Context, q querier) error {
	report, err := s.checkFence(ctx, q)
	if err != nil {
		return err
	}
	return report.Refusal()
}

// relationFindings: tables that are gone, that the functions cannot use, or whose content can vanish.
func (s *Store) relationFindings(found foundCatalog) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for _, declared := range declaredRelations {
		if declared.kind != "TABLE" && declared.kind != "SEQUENCE" {
			continue
		}
		object := strings.ToLower(declared.kind) + " " + s.named(declared.name)
		note := func(repairable bool, format string, args ...any) {
			findings = append(findings, storage.FenceFinding{Object: object, Problem: fmt.Sprintf(format, args...), Repairable: repairable})
		}
		relation, exists := found.relations[declared.name]
		switch {
		case !exists:
			note(declared.kind == "SEQUENCE", "is missing")
			continue
		case declared.kind == "TABLE" && !strings.Contains("rp", relation.kind):
			note(false, "is %s: what is written through it, or past it, nothing judges as it does a table's rows", cmp.Or(relationKinds[relation.kind], "no table"))
			continue
		case relation.unlogged && declared.kind == "TABLE":
			note(false, "is unlogged: a crash of the server empties it")
		}
		if relation.policies {
			note(relation.forced, "has row security that applies to %s, so the fence refuses every writer", found.owner)
		}
		if !relation.rights {
			note(false, "belongs to %s, and %s, whose rights fence and guards use, may not use it", relation.owner, found.owner)
		}
	}
	return findings
}

// minimumFindings: the argument, the row that mirrors it and the history say the same, or the larger holds and somebody lowered the rest.
// That the argument is too low is a finding about the trigger.
func (s *Store) minimumFindings(found foundCatalog) []storage.FenceFinding {
	object := fmt.Sprintf("row %q of %s", storage.AllPartitions, s.named("sync_writer_fence"))
	forAll, required := found.minimum.forAll, found.required()
	switch {
	case !found.readable("sync_writer_fence"):
		return nil
	case forAll == nil:
		return []storage.FenceFinding{{Object: object, Problem: "is missing, so every writer is refused", Repairable: true}}
	case *forAll < required:
		return []storage.FenceFinding{{Object: object, Problem: fmt.Sprintf("says version %d, required is %d", *forAll, required), Repairable: true}}
	}
	return nil
}

// The trigger that a program of the sync protocol drops and makes again at each of its starts. It refuses less than ours and changes
// nothing.
const (
	protocolTrigger  = "sync_commits_writer_fence"
	protocolFunction = "syncular_writer_fence"
)

// foreignTriggers: a BEFORE trigger of somebody else can fill in the version that a writer did not give. Our fence judges the row as it
// is stored, so it cannot tell.
func (s *Store) foreignTriggers(found foundCatalog) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for _, t := range found.triggers {
		changesRows := t.kind&triggerBefore != 0 && t.kind&triggerRow != 0 && t.kind&(triggerInsert|triggerUpdate) != 0
		ofProtocol := t.name == protocolTrigger && strings.HasSuffix(t.function, protocolFunction)
		if t.root != fenceDeclaration().table || ofProtocol || !changesRows || declaredHere(t) || t.enabled == "D" {
			continue
		}
		findings = append(findings, storage.FenceFinding{
			Object:  fmt.Sprintf("trigger %s on %s", t.name, t.relation),
			Problem: fmt.Sprintf("is a BEFORE trigger that is not ours (function %s): it can change or fill in writer_version", t.function),
		})
	}
	return findings
}

func declaredHere(t foundTrigger) bool {
	return slices.ContainsFunc(declaredTriggers, func(d declaredTrigger) bool { return d.table == t.root && d.name == t.name })
}

// logFindings: what about the log itself lets a version in that the writer did not give, or lets rows in unseen.
func (s *Store) logFindings(ctx context.Context, q querier, found foundCatalog) ([]storage.FenceFinding, error) {
	if !found.hasTable("sync_commits") {
		return nil, nil
	}
	rows, err := q.Query(ctx, `
		WITH RECURSIVE log AS (
			SELECT c.oid, true AS checked
			  FROM pg_catalog.pg_class AS c
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			 WHERE n.nspname = $1::text
			   AND c.relname = 'sync_commits'
			UNION
			SELECT i.inhrelid, c.relispartition
			  FROM log
			  JOIN pg_catalog.pg_inherits AS i ON i.inhparent = log.oid
			  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
		), named AS (
			SELECT log.oid, log.checked, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name
			  FROM log
			  JOIN pg_catalog.pg_class AS c ON c.oid = log.oid
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		)
		SELECT 'table ' || name, 'inherits from the log: its rows are read as the log''s, and nothing judged them'
		  FROM named
		 WHERE NOT checked
		UNION ALL
		SELECT 'column writer_version of ' || name,
		       CASE
		         WHEN a.attidentity <> '' THEN 'is an identity column: a writer that gives no version gets one'
		         WHEN a.attgenerated <> '' THEN 'is generated: a writer that gives no version gets one'
		         WHEN t.typtype = 'd' THEN 'is of a domain, which can have a default: a writer that gives no version gets one'
		         ELSE 'has a default: a writer that gives no version gets one'
		       END
		  FROM named
		  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = named.oid AND a.attname = 'writer_version' AND NOT a.attisdropped
		  JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
		 WHERE a.atthasdef
		    OR a.attidentity <> ''
		    OR t.typtype = 'd'
		UNION ALL
		SELECT 'rule ' || pg_catalog.quote_ident(r.rulename) || ' on ' || name, 'rewrites statements on the log'
		  FROM named
		  JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = named.oid
		UNION ALL
		SELECT 'table ' || name, 'is a foreign table: what is written at the other server is read as the log''s, and nothing judged it'
		  FROM named
		  JOIN pg_catalog.pg_class AS c ON c.oid = named.oid
		 WHERE c.relkind = 'f'
		UNION ALL
		SELECT 'table ' || name, 'is unlogged: a crash of the server empties it'
		  FROM named
		  JOIN pg_catalog.pg_class AS c ON c.oid = named.oid
		 WHERE c.relpersistence = 'u'
		   AND c.relispartition
		 ORDER BY 1, 2`, s.schemaName)
	if err != nil {
		return nil, translate(err, "look at the log's columns, children and rules")
	}
	findings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.FenceFinding, error) {
		var finding storage.FenceFinding
		err := row.Scan(&finding.Object, &finding.Problem)
		return finding, err
	})
	return findings, translate(err, "look at the log's columns, children and rules")
}
