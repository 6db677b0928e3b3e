package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// schemaPass is what one pass over a SyncSchema has learned.
type schemaPass struct {
	object   *v1alpha1.SyncSchema // as read; nobody changes it
	before   v1alpha1.SyncSchemaStatus
	now      time.Time
	cluster  string // this cluster's identity as an owner
	attempt  attemptState
	underway string   // the reason of what is being done, for errors without a class
	verdict  *verdict // of the first phase that was in the way; nil: none yet

	target        *storage.Target               // set by translate; nil: the spec cannot be right, or what it names is missing
	checkpoints   []v1alpha1.BackfillCheckpoint // of this schema, children and standalone ones; set by translate
	lease         *Lease                        // set by connect; nil: no connection
	status        *storage.Status               // set by observe; nil: the database could not be read
	gate          *storage.ServeGate            // set by observe, for spec.version
	leaving       string                        // a child that is being deleted and does not go, in words; empty: there is none
	plan          *v1alpha1.Plan                // set by approve while it waits
	pods          *schemaPods                   // set by seePods; nil: nobody watches pods
	refused       []string                      // writes of pods that the API server refuses, in words
	advice        advice                        // what was said before, and is counted between passes
	bypass        *podgate.Bypass               // a person's decision that holds now; nil: there is none
	bypassedBy    string                        // the program that wrote it
	bypassProblem string                        // why the annotation opens nothing
	fenceBroken   string                        // what is wrong with fence or guards; empty: nothing, or not looked at
	events        []notice
}

func (r *SyncSchemaReconciler) begin(object *v1alpha1.SyncSchema) *schemaPass {
	now := clock.Or(r.Clock).Now()
	before, _ := r.statuses.current(object, &object.Status, now).(*v1alpha1.SyncSchemaStatus) // it holds nothing else
	pass := &schemaPass{
		object: object, before: *before.DeepCopy(), now: now, cluster: r.Cluster, underway: v1alpha1.ReasonMigrating,
		attempt: r.attempts.get(object.UID, triggerOf(object)), advice: r.advices.get(object.UID, object.Spec.Version),
	}
	pass.before.Conditions = ownConditions(pass.before.Conditions)
	pass.seeBypass(r.Named)
	return pass
}

// triggerOf is what attempts are for: another spec, or a request of a person, makes an attempt due at once.
func triggerOf(object *v1alpha1.SyncSchema) string {
	return decimal(object.Generation) + "/" + object.Annotations[AnnotationRetry] + "/" + object.Annotations[AnnotationTakeOver] +
		"/" + object.Annotations[AnnotationApprove]
}

// end gives back what the pass holds.
func (p *schemaPass) end() {
	if p.lease != nil {
		p.lease.Release()
	}
}

// take keeps the first verdict. An error that cannot be judged comes back.
func (p *schemaPass) take(v *verdict, err error) error {
	if err != nil {
		if p.lease != nil {
			p.lease.Report(err)
		}
		if v = judge(err, p.underway); v == nil {
			return err
		}
	}
	if p.verdict == nil {
		p.verdict = v
	}
	return nil
}

// migrated says whether the database holds spec.version with the content of the spec.
func (p *schemaPass) migrated() bool {
	return p.status != nil && p.target != nil && p.status.StoredVersion == p.target.Version &&
		p.status.ContentHash == p.target.ContentHash(p.target.Version)
}

// foreign is foreignOwner of what the pass read; empty also where it could not read.
func (p *schemaPass) foreign() string {
	if p.status == nil {
		return ""
	}
	return foreignOwner(p.status.Owner, p.cluster, p.object)
}

// departures remembers the UIDs that were seen under a name, so that what is remembered of an object can be dropped when it is gone.
type departures struct {
	mu   sync.Mutex
	uids map[types.NamespacedName]map[types.UID]bool
}

func (d *departures) remember(name types.NamespacedName, uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.uids == nil {
		d.uids = map[types.NamespacedName]map[types.UID]bool{}
	}
	if d.uids[name] == nil {
		d.uids[name] = map[types.UID]bool{}
	}
	d.uids[name][uid] = true
}

func (d *departures) take(name types.NamespacedName) []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []types.UID
	for uid := range d.uids[name] {
		uids = append(uids, uid)
	}
	delete(d.uids, name)
	return uids
}
