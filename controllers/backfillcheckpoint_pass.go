package controllers

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkpointPass is what one pass over a BackfillCheckpoint has learned.
type checkpointPass struct {
	object   *v1alpha1.BackfillCheckpoint // as read; nobody changes it
	before   v1alpha1.BackfillCheckpointStatus
	now      time.Time
	underway string
	verdict  *verdict

	schema     *v1alpha1.SyncSchema        // set by findSchema
	refused    *verdict                    // set by findSchema: why a standalone checkpoint does not fit its schema; nil: it does
	connection Connection                  // set by connect
	lease      *Lease                      // set by connect; nil: no connection
	progress   *storage.CheckpointProgress // set by observe; nil: not declared, or not read
	database   *storage.Status             // set by look, when something is to be decided with it
	job        *batchv1.Job                // set by work: that of the newest claim; nil: none
	hold       string                      // why there is no progress, where that is known
	events     []notice
}

func (r *BackfillCheckpointReconciler) begin(object *v1alpha1.BackfillCheckpoint) *checkpointPass {
	now := clock.Or(r.Clock).Now()
	before, _ := r.statuses.current(object, &object.Status, now).(*v1alpha1.BackfillCheckpointStatus) // it holds nothing else
	pass := &checkpointPass{object: object, before: *before.DeepCopy(), now: now, underway: v1alpha1.ReasonBackfilling}
	pass.before.Conditions = ownConditions(pass.before.Conditions)
	return pass
}

func (p *checkpointPass) end() {
	if p.lease != nil {
		p.lease.Release()
	}
}

// take keeps the verdict. An error that cannot be judged comes back.
func (p *checkpointPass) take(v *verdict, err error) error {
	if err != nil {
		if p.lease != nil {
			p.lease.Report(err)
		}
		if v = judge(err, p.underway); v == nil {
			return err
		}
	}
	p.verdict = v
	return nil
}

// look reads the database's status, once in a pass and only where something is to be changed: it is dearer than the progress of one
// checkpoint.
func (p *checkpointPass) look(ctx context.Context) (*storage.Status, error) {
	if p.database == nil {
		status, err := p.lease.Store.Status(ctx)
		if err != nil {
			return nil, err
		}
		p.database = &status
	}
	return p.database, nil
}

// mayChange says whether the database schema belongs to our SyncSchema: anybody else's is not touched.
func (p *checkpointPass) mayChange(ctx context.Context, cluster string) (*verdict, error) {
	status, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	if status.Owner == nil || !ours(status.Owner, cluster, p.schema) {
		owner := "nobody"
		if status.Owner != nil {
			owner = status.Owner.String()
		}
		return managedBy(owner, p.schema), nil
	}
	return nil, nil
}

func managedBy(owner string, schema *v1alpha1.SyncSchema) *verdict {
	return stalled(v1alpha1.ReasonConflict, "the database schema is managed by %s, not by SyncSchema %s", owner, schema.Name)
}

// definition is the engine's form of the checkpoint.
func (p *checkpointPass) definition() (storage.Checkpoint, []storage.Table) {
	tables := &v1alpha1.SyncSchema{Spec: v1alpha1.SyncSchemaSpec{Version: math.MaxInt32, Tables: p.schema.Spec.Tables}}
	target := manifest.Target(tables, nil, *p.object)
	checkpoint := target.Checkpoints[0]
	checkpoint.Standalone = standalone(p.object)
	return checkpoint, target.Tables
}

// claims remembers, by object, the newest claim that this process made, and where. It saves a claim when a Job could not be made, and lets
// the claim end when the object goes.
type claims struct {
	mu sync.Mutex
	of map[types.UID]rememberedClaim
}

type rememberedClaim struct {
	claim      storage.Claim
	connection Connection
	hasJob     bool // one was made for it
	told       bool // and its event is told, or kept to be
}

func (c *claims) get(uid types.UID) (rememberedClaim, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.of[uid]
	return found, ok
}

func (c *claims) put(uid types.UID, claim storage.Claim, connection Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[types.UID]rememberedClaim{}
	}
	c.of[uid] = rememberedClaim{claim: claim, connection: connection}
}

// seen remembers a claim that a Job works on, whoever made it: an operator that was started again ends it with the object all the same. The
// connection is the newest, for a password may have been rotated since.
func (c *claims) seen(uid types.UID, of storage.Definition, token string, connection Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[types.UID]rememberedClaim{}
	}
	remembered := c.of[uid]
	if remembered.claim.Token != token {
		remembered.claim, remembered.told = storage.Claim{Name: of.Name, Version: of.Version, Token: token}, false
	}
	remembered.connection, remembered.hasJob = connection, true
	c.of[uid] = remembered
}

func (c *claims) jobMade(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if remembered, ok := c.of[uid]; ok {
		remembered.hasJob, remembered.told = true, true
		c.of[uid] = remembered
	}
}

func (c *claims) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, uid)
}

// forget drops what is remembered of an object that is gone. If it had workers its claim is taken from them, so that they stop at once and
// not when their pods are found to have no owner. That is a courtesy: a late worker can only do right things.
func (r *BackfillCheckpointReconciler) forget(ctx context.Context, name types.NamespacedName) {
	for _, uid := range r.gone.take(name) {
		if remembered, ok := r.claims.get(uid); ok {
			if err := r.endClaim(ctx, remembered); err != nil {
				log.FromContext(ctx).Info("the claim of a deleted checkpoint could not be ended; its workers end with their pods",
					"checkpoint", name.String(), "reason", err.Error())
			}
		}
		r.claims.forget(uid)
		r.rates.forget(uid)
		r.stills.forget(uid)
		r.paces.forget(uid)
		r.untold.take(uid)
		r.troubles.over(uid)
		r.statuses.forget(uid)
	}
	forgetCheckpoint(name.Namespace, name.Name, v1alpha1.KindBackfillCheckpoint)
}

func (r *BackfillCheckpointReconciler) endClaim(ctx context.Context, remembered rememberedClaim) error {
	lease, err := r.Databases.Acquire(ctx, remembered.connection)
	if err != nil {
		return err
	}
	defer lease.Release()
	progress, err := lease.Store.ReadProgress(ctx, remembered.claim.Name)
	if err != nil {
		return err
	}
	if progress.ClaimToken != remembered.claim.Token {
		return nil // somebody else's by now
	}
	if _, err := lease.Store.ClaimAll(ctx, remembered.claim.Name, false); err != nil {
		return fmt.Errorf("raise the owner epoch: %w", err)
	}
	return nil
}
