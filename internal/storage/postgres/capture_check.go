package postgres

import (
	"fmt"
	"slices"
	"strings"
)

// differences says how a trigger differs from what it should be. With lowerIsFine a fence with a higher minimum than asked for is right.
func (t sourceTrigger) differences(found foundSourceTrigger, higherIsFine bool) []string {
	var problems []string
	note := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	note(found.enabled != t.mode, "%s", firingProblem(found.enabled))
	note(found.constraint, "is a constraint trigger, so it can be deferred")
	note(found.kind != t.kind, "fires on other events than declared")
	note(found.function != t.function, "calls the function %s", found.function)
	note(found.when != settleCondition(t.when), "has another condition than declared")
	note(found.columns, "fires only for some columns")
	note((found.oldTable == oldTableName) != t.oldTable || (found.newTable == newTableName) != t.newTable, "has other transition tables than declared")
	var arguments []string
	if t.argument != nil {
		arguments = []string{*t.argument}
	}
	if slices.Equal(found.arguments, arguments) {
		return problems
	}
	if !isFence(t.name) {
		note(true, "has the arguments %v instead of %v", found.arguments, arguments)
		return problems
	}
	has := foundTrigger{arguments: found.arguments}.minimum()
	wants := foundTrigger{arguments: arguments}.minimum()
	switch {
	case has < 0:
		note(true, "has no minimum version as its argument")
	case !higherIsFine || has < wants:
		note(true, "enforces version %d, required is %d", has, wants)
	}
	return problems
}

func firingProblem(enabled string) string {
	switch enabled {
	case firesNever:
		return "is disabled"
	case firesAlways:
		return "fires in every session, not for session_replication_role = replica alone"
	case firesInReplica:
		return "fires only for sessions with session_replication_role = replica"
	default:
		return "does not fire for sessions with session_replication_role = replica"
	}
}

// captureFunctionProblems says how the function of a captured table differs from what was installed.
func (s *Store) captureFunctionProblems(found *foundCaptureFunction, c captured, catalogOwner string) []string {
	var problems []string
	note := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	note(found.installed == "", "has no comment that says what was installed")
	note(found.installed != "" && revisionOf(found.body) != found.installed, "has another body than was installed")
	note(found.language != "plpgsql", "is written in %s", found.language)
	note(found.volatility != "v", "is not VOLATILE, so it reads with an old snapshot")
	note(!found.definer, "is not SECURITY DEFINER, so it runs with the writer's rights")
	note(!c.pins(found.settings), "has other settings than it should: %s", strings.Join(found.settings, "; "))
	note(catalogOwner != "" && found.owner != catalogOwner, "belongs to the role %s and not to %s, who owns the catalog", found.owner, catalogOwner)
	for _, grantee := range found.grantees {
		note(true, "may be executed by %s, who could attach it to a table of their own", grantee)
	}
	return problems
}

// pins says whether settings, as pg_proc.proconfig has them, are those of the table's function.
func (c captured) pins(settings []string) bool {
	var want, have []string
	for _, setting := range c.settings() {
		want = append(want, setting.name+"="+setting.stored)
	}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		have = append(have, strings.ToLower(name)+"="+value)
	}
	slices.Sort(want)
	slices.Sort(have)
	return slices.Equal(want, have)
}
