package property

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// backend is one of the two, with the claims and leases that it has given out. A claim that was refused is the zero Claim.
type backend struct {
	name   string
	store  storage.Store
	claims []storage.Claim
	leases []storage.Lease
	// leased is the claim of each lease.
	leased []storage.Claim
	// filled lists the todos whose column holds what its definition says.
	filled func(column string) ([]string, error)
}

// machine does each step on the model and on both backends.
type machine struct {
	t        *rapid.T
	ctx      context.Context
	model    *model
	backends []*backend
}

// step asks both backends and compares with what the model says.
func (m *machine) step(want, doing string, do func(b *backend) string) {
	m.t.Helper()
	m.t.Logf("%s: %s", doing, want)
	for _, b := range m.backends {
		if got := do(b); got != want {
			m.t.Fatalf("%s: %s says %q, the model %q", doing, b.name, got, want)
		}
	}
}

// outcome is an answer in words, or the code of the error.
func outcome(err error, format string, arguments ...any) string {
	if err == nil {
		return fmt.Sprintf(format, arguments...)
	}
	if code := storage.CodeOf(err); code != storage.CodeInternal {
		return string(code)
	}
	return err.Error()
}

// draw picks one of a list.
func draw[T any](t *rapid.T, what string, from ...T) T { return rapid.SampledFrom(from).Draw(t, what) }

// some picks one of those that fit, most often the newest, else one of those that it took something from. It skips the step, before
// anything is drawn, if there are none.
func some[T any](t *rapid.T, what string, all []T, fits func(T) bool) int {
	var places []int
	for place := range all {
		if fits(all[place]) {
			places = append(places, place)
		}
	}
	if len(places) == 0 {
		t.Skip("there are no " + what)
	}
	return places[len(places)-1-min(len(places)-1, rapid.IntRange(0, 3).Draw(t, what))]
}

func (m *machine) EnsureSchema(t *rapid.T) {
	m.t = t
	version := min(lastVersion, max(1, m.model.version+draw(t, "more", int64(0), 0, 1, 1, 1, 2, 3, -1)))
	owner, indexed := draw(t, "owner", "clinic", "clinic", "clinic", "clinic", "clinic", "billing"), draw(t, "index", false, false, false, true)
	m.step(m.model.ensure(version, owner, indexed), fmt.Sprintf("ensure %d as %s, index %t", version, owner, indexed), func(b *backend) string {
		result, err := b.store.EnsureSchema(m.ctx, targetAt(version, owner, indexed), storage.Attempt{Number: 1})
		return outcome(err, "%s from %d, declared %v", result.Outcome, result.Stored, result.Declared)
	})
}

func (m *machine) Write(t *rapid.T) {
	m.t = t
	place := rapid.IntRange(0, len(keys)-1).Draw(t, "partition")
	id := int64(100*place + rapid.IntRange(1, 8).Draw(t, "id"))
	version := draw(t, "version", m.model.version, m.model.version, m.model.version, m.model.version-1, 0)
	deleted := draw(t, "delete", false, false, false, true)
	m.model.titles++
	title := fmt.Sprintf("Title %d", m.model.titles)
	m.step(m.model.write(keys[place], version, id, title, deleted), fmt.Sprintf("write %d to %s as %d, delete %t", id, keys[place], version, deleted),
		func(b *backend) string {
			seq, err := m.write(b.store, keys[place], version, id, title, deleted)
			return outcome(err, "commit %d", seq)
		})
}

func (m *machine) write(store storage.Store, key string, version, id int64, title string, deleted bool) (seq int64, err error) {
	tx, err := store.Begin(m.ctx, key, version)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, tx.Rollback(m.ctx)) }()
	if err := tx.LockPartition(m.ctx); err != nil {
		return 0, err
	}
	op := storage.OpUpsert
	if deleted {
		op = storage.OpDelete
		_, err = tx.Exec(m.ctx, `DELETE FROM todos WHERE id = $1`, id)
	} else {
		_, err = tx.Exec(m.ctx, `INSERT INTO todos(id, tenant, title) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET title = excluded.title`, id, key, title)
	}
	if err != nil {
		return 0, err
	}
	seq, err = tx.AppendCommit(m.ctx, storage.Commit{ClientID: "c", ClientCommitID: title, ActorID: "a",
		Changes: []storage.Change{{Table: "todos", RowID: fmt.Sprint(id), Op: op}}})
	if err != nil {
		return 0, err
	}
	return seq, tx.Commit(m.ctx)
}

func (m *machine) DeclareCheckpoint(t *rapid.T) {
	m.t = t
	version := max(1, m.model.version+draw(t, "version", int64(0), 0, 0, -1, 1))
	c := extra(draw(t, "name", "extra-b", "extra-all"), version)
	m.step(m.model.declareAlone(c), fmt.Sprintf("declare %s of %d", c.Name, version), func(b *backend) string {
		rows, err := b.store.DeclareCheckpoint(m.ctx, c, []storage.Table{todosAt(version)})
		return outcome(err, "%s", describe(rows))
	})
}

func describe(rows []storage.CheckpointRow) string {
	var lines []string
	for _, r := range rows {
		lines = append(lines, fmt.Sprintf("%s/%s v%d %s at %d epoch %d", r.Name, r.Partition, r.Version, r.State, r.Watermark, r.OwnerEpoch))
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// name picks a checkpoint, now and then one that there is not.
func (m *machine) name(t *rapid.T) string {
	return draw(t, "checkpoint", append(slices.Sorted(maps.Keys(m.model.checkpoints)), "nothing")...)
}

func (m *machine) Abandon(t *rapid.T) {
	m.t = t
	name := m.name(t)
	version := int64(1)
	if c := m.model.checkpoints[name]; c != nil {
		version = c.version
	}
	if draw(t, "mean it", false, false, true) {
		m.step(m.model.abandon(name, version), "abandon "+name, func(b *backend) string {
			count, err := b.store.AbandonCheckpoint(m.ctx, name, version, "a person", "a test")
			return outcome(err, "%d rows", count)
		})
	}
}

func (m *machine) ClaimAll(t *rapid.T) {
	m.t = t
	name, restart := m.name(t), draw(t, "restart", false, false, true)
	m.step(m.model.claimRows(name, "", restart), fmt.Sprintf("claim %s, restart %t", name, restart), func(b *backend) string {
		claim, err := b.store.ClaimAll(m.ctx, name, restart)
		return b.claimed(claim, err)
	})
}

func (m *machine) ClaimOne(t *rapid.T) {
	m.t = t
	name, key := m.name(t), draw(t, "partition", "a", "b", storage.AllPartitions)
	m.step(m.model.claimRows(name, key, false), fmt.Sprintf("claim %s in %s", name, key), func(b *backend) string {
		claim, err := b.store.ClaimCheckpoint(m.ctx, key, name)
		return b.claimed(claim, err)
	})
}

func (b *backend) claimed(claim storage.Claim, err error) string {
	b.claims = append(b.claims, claim)
	rows := []string{}
	for _, row := range claim.Rows {
		rows = append(rows, row.Partition)
	}
	slices.Sort(rows)
	return outcome(err, "claimed %v", rows)
}

// claim picks a claim that was given, now or before, and fits.
func (m *machine) claim(t *rapid.T, fits func(*claim) bool) (int, *claim) {
	m.t = t
	place := some(t, "claims", m.model.claims, func(k *claim) bool { return k != nil && len(k.rows) > 0 && fits(k) })
	return place, m.model.claims[place]
}

func anyClaim(*claim) bool { return true }

func (m *machine) TakeRanges(t *rapid.T) {
	place, k := m.claim(t, anyClaim)
	m.step(m.model.take(k), fmt.Sprintf("take the ranges of claim %d", place), func(b *backend) string {
		leases, err := b.store.TakeRanges(m.ctx, b.claims[place], 0, 1)
		var taken []string
		slices.SortFunc(leases, func(x, y storage.Lease) int { return strings.Compare(x.Partition, y.Partition) })
		for _, l := range leases {
			b.leases, b.leased = append(b.leases, l), append(b.leased, b.claims[place])
			taken = append(taken, fmt.Sprintf("%s done %t", l.Partition, l.Done))
		}
		return outcome(err, "%v", taken)
	})
}

func (m *machine) Scan(t *rapid.T) {
	m.t = t
	place := some(t, "leases", m.model.leases, func(*lease) bool { return true })
	want := m.model.scan(m.model.leases[place])
	m.step(want, fmt.Sprintf("scan lease %d", place), func(b *backend) string {
		done, err := b.store.ScanBatch(m.ctx, b.leased[place], b.leases[place])
		if err == nil && done.Rows == batchRows && !done.Done && want == batch(batchRows, true, false) {
			// A full batch that ends with the last row may need an empty one to see that.
			empty, again := b.store.ScanBatch(m.ctx, b.leased[place], b.leases[place])
			done.Rows, done.Done, err = done.Rows+empty.Rows, empty.Done, again
		}
		return outcome(err, "%s", batch(int(done.Rows), done.Done, done.Unverifiable != ""))
	})
}

// sqlRow picks a row of a claim on a checkpoint that SQL fills.
func (m *machine) sqlRow(t *rapid.T) (int, *claim, string) {
	place, k := m.claim(t, func(k *claim) bool {
		c, known := m.model.checkpoints[k.name]
		return !known || c.sql
	})
	return place, k, draw(t, "partition", k.rows...)
}

func (m *machine) Tail(t *rapid.T) {
	place, k, key := m.sqlRow(t)
	m.step(m.model.tail(k, key), fmt.Sprintf("tail claim %d (%s) in %s", place, k.name, key), func(b *backend) string {
		done, err := b.store.TailBatch(m.ctx, b.claims[place], key, 1000)
		return outcome(err, "%s", batch(int(done.Rows), done.Done, done.Unverifiable != ""))
	})
}

func (m *machine) Verify(t *rapid.T) {
	place, k, key := m.sqlRow(t)
	m.step(m.model.verify(k, key), fmt.Sprintf("verify claim %d (%s) in %s", place, k.name, key), func(b *backend) string {
		return outcome(b.store.VerifyRow(m.ctx, b.claims[place], key), "holds")
	})
}

func (m *machine) Activate(t *rapid.T) {
	place, k, key := m.sqlRow(t)
	tables := draw(t, "lock tables", false, true)
	m.step(m.model.activate(k, key), fmt.Sprintf("activate claim %d (%s) in %s", place, k.name, key), func(b *backend) string {
		report, err := b.store.Activate(m.ctx, b.claims[place], storage.Activation{Partition: key, Tables: tables})
		return outcome(err, "%s", report.Outcome)
	})
}

// position is a number around the end of a log.
func (m *machine) position(t *rapid.T, key string) int64 {
	var last int64
	if p := m.model.partitions[key]; p != nil {
		last = p.last
	}
	return max(0, last+draw(t, "position", int64(0), 0, 0, -1, -3, 1))
}

func (m *machine) ActivateCheckpoint(t *rapid.T) {
	place, k := m.claim(t, anyClaim)
	key := draw(t, "partition", k.rows...)
	watermark := m.position(t, key)
	m.step(m.model.activateExternal(k, key, watermark), fmt.Sprintf("activate claim %d (%s) in %s at %d", place, k.name, key, watermark),
		func(b *backend) string {
			got, err := b.store.ActivateCheckpoint(m.ctx, ownership(b.claims[place], key), watermark)
			return outcome(err, "%s", got)
		})
}

func ownership(claim storage.Claim, key string) storage.Ownership {
	row, _ := claim.Row(key)
	return storage.Ownership{Partition: key, Name: claim.Name, OwnerEpoch: row.OwnerEpoch, Token: claim.Token}
}

func (m *machine) Advance(t *rapid.T) {
	place, k := m.claim(t, anyClaim)
	key := draw(t, "partition", k.rows...)
	watermark := m.position(t, key)
	m.step(m.model.advance(k, key, watermark), fmt.Sprintf("advance claim %d (%s) in %s to %d", place, k.name, key, watermark), func(b *backend) string {
		moved, err := b.store.AdvanceCheckpoint(m.ctx, storage.Advance{Ownership: ownership(b.claims[place], key), Watermark: watermark})
		return outcome(err, "moved %t", moved)
	})
}

func (m *machine) Prune(t *rapid.T) {
	m.t = t
	key, force := draw(t, "partition", keys...), draw(t, "force", false, false, false, true)
	seq := m.position(t, key)
	m.step(m.model.prune(key, seq, force), fmt.Sprintf("prune %s to %d, force %t", key, seq, force), func(b *backend) string {
		horizon, err := b.store.Prune(m.ctx, key, seq, force)
		return outcome(err, "horizon %d", horizon)
	})
}

func (m *machine) Rotate(t *rapid.T) {
	m.t = t
	key := draw(t, "partition", append(slices.Clone(keys), storage.AllPartitions)...)
	if draw(t, "mean it", false, false, true) {
		m.step(m.model.rotate(key), "rotate the epoch of "+key, func(b *backend) string {
			return outcome(b.store.RotateLogEpoch(m.ctx, key), "rotated")
		})
	}
}

func (m *machine) Coverage(t *rapid.T) {
	m.t = t
	key := draw(t, "partition", keys...)
	seq := m.position(t, key)
	m.step(string(m.model.coverage(key, seq)), fmt.Sprintf("coverage of %s above %d", key, seq), func(b *backend) string {
		coverage, err := b.store.HasSourceChangesAbove(m.ctx, key, []string{"todos"}, seq)
		return outcome(err, "%s", coverage.Verdict)
	})
}

func (m *machine) Gate(t *rapid.T) {
	m.t = t
	running := rapid.Int64Range(1, lastVersion).Draw(t, "running")
	m.step(m.model.gateAnswer(running), fmt.Sprintf("the gate of %d", running), func(b *backend) string {
		gate, err := b.store.ReadServeGate(m.ctx, running)
		verdict := gate.Verdict()
		return outcome(err, "%s writable %t", verdict.Reason, verdict.Writable)
	})
}

func (m *machine) Query(t *rapid.T) {
	m.t = t
	key, running := draw(t, "partition", keys...), max(1, m.model.version-draw(t, "behind", int64(0), 0, 1))
	m.step(m.model.query(key, running), fmt.Sprintf("query %s as %d", key, running), func(b *backend) string {
		result, err := b.store.Query(m.ctx, key, "titles", running)
		var found []string
		for _, row := range result.Rows {
			found = append(found, fmt.Sprint(row[0]))
		}
		return outcome(err, "%v at %d", found, result.MaxCommitSeq)
	})
}
