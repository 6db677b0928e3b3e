package controllers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Reasons of events that are no reasons of a condition.
const (
	eventJobCreated = "JobCreated"
	eventDeclared   = "Declared"
)

// untold keeps, by object, what happened in passes whose status could not be written: events are told after the status, each once, so the next
// pass that writes it tells them.
type untold struct {
	mu sync.Mutex
	of map[types.UID][]notice
}

func (u *untold) keep(uid types.UID, list []notice) {
	if len(list) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[types.UID][]notice{}
	}
	u.of[uid] = append(u.of[uid], list...)
}

// take gives what was kept, and forgets it.
func (u *untold) take(uid types.UID) []notice {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.of[uid]
	delete(u.of, uid)
	return list
}

func says(list []notice, reason string) bool {
	return slices.ContainsFunc(list, func(n notice) bool { return n.reason == reason })
}

// eventsKept is how long an API server keeps events by default. What happened before that is news to nobody.
const eventsKept = time.Hour

// told asks the API server whether an object has an event with a reason, in whose note one of these parts stands.
func told(ctx context.Context, live client.Reader, object client.Object, reason string, parts ...string) (bool, error) {
	var list corev1.EventList
	err := live.List(ctx, &list, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{"involvedObject.uid": string(object.GetUID()), "reason": reason})
	if err != nil {
		return false, fmt.Errorf("list the events of %s: %w", object.GetName(), err)
	}
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(e.Message, part) })
	}), nil
}

// recall gives the events of a barrier that an operator committed and did not live to tell of, from what the database recorded. It is asked only
// where Migrated has become true and no event of this pass says why; an object that was made after the barrier has no part in it.
func (r *SyncSchemaReconciler) recall(ctx context.Context, pass *schemaPass, after []metav1.Condition) ([]notice, error) {
	kind := v1alpha1.ConditionMigrated
	if says(pass.events, v1alpha1.ReasonMigrated) || meta.IsStatusConditionTrue(pass.before.Conditions, kind) || !meta.IsStatusConditionTrue(after, kind) {
		return nil, nil
	}
	history := pass.status.History
	i := slices.IndexFunc(history, func(h storage.HistoryRow) bool { return h.Version == pass.status.StoredVersion })
	if i < 0 || history[i].AppliedAt.Before(pass.object.CreationTimestamp.Time) || pass.now.Sub(history[i].AppliedAt) > eventsKept {
		return nil, nil
	}
	result := recorded(history, history[i])
	version := decimal(result.Version)
	known, err := told(ctx, r.Live, pass.object, v1alpha1.ReasonMigrated, "-> "+version+" ", "version "+version+" ")
	if apierrors.IsForbidden(err) {
		return nil, nil // a status is worth more than an event that may have been told
	}
	if known || err != nil {
		return nil, err
	}
	return append([]notice{migratedNotice(result)}, pass.announcePause(result)...), nil
}

// recorded is the result of a barrier as far as history keeps it.
func recorded(history []storage.HistoryRow, row storage.HistoryRow) storage.BarrierResult {
	result := storage.BarrierResult{
		Outcome: storage.Migrate, Version: row.Version, LockWait: row.LockWait, LockHold: row.LockHold,
		Declared: slices.Sorted(maps.Keys(row.Entries.Checkpoints)),
	}
	below := slices.DeleteFunc(slices.Clone(history), func(h storage.HistoryRow) bool { return h.Version >= row.Version })
	switch {
	case len(below) == 0 && !row.Entries.Fresh:
		result.Outcome = storage.Adopt // another program brought the versions up to it
	case len(below) > 0:
		result.Stored = slices.MaxFunc(below, func(a, b storage.HistoryRow) int { return cmp.Compare(a.Version, b.Version) }).Version
	}
	return result
}

func migratedNotice(result storage.BarrierResult) notice {
	return notice{reason: v1alpha1.ReasonMigrated, action: "Migrate", note: describeBarrier(result)}
}

// recall gives the event of a Job that an operator made and did not live to tell of.
func (r *BackfillCheckpointReconciler) recall(ctx context.Context, pass *checkpointPass) ([]notice, error) {
	job := pass.job
	if job == nil || job.Name == pass.before.JobName || says(pass.events, eventJobCreated) || pass.now.Sub(job.CreationTimestamp.Time) > eventsKept {
		return nil, nil
	}
	if remembered, ok := r.claims.get(pass.object.UID); !ok || remembered.told {
		return nil, nil
	}
	known, err := told(ctx, r.Live, pass.object, eventJobCreated, job.Name)
	if apierrors.IsForbidden(err) {
		known, err = true, nil
	}
	if err != nil {
		return nil, err
	}
	r.claims.jobMade(pass.object.UID)
	if known {
		return nil, nil
	}
	number, _, _ := jobClaim(job)
	return []notice{jobNotice(job.Name, number, false)}, nil
}

func jobNotice(job string, claim int64, restart bool) notice {
	what := "made Job %s for claim %d"
	if restart {
		what = "the log could not answer, so the pass begins again: made Job %s for claim %d"
	}
	return notice{reason: eventJobCreated, action: "Claim", note: fmt.Sprintf(what, job, claim)}
}
