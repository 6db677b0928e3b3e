package property

import (
	"fmt"
	"maps"
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// batchRows is the batch size of all checkpoints of these tests.
const batchRows = 3

// claimRows is ClaimAll, or ClaimCheckpoint where only names a partition.
func (m *model) claimRows(name, only string, restart bool) string {
	c := m.checkpoints[name]
	if c == nil || only != "" && (c.rows[only] == nil || c.rows[only].state == storage.Activated) {
		m.claims = append(m.claims, nil)
		return failed(storage.CodeCheckpointNotDeclared)
	}
	taken := &claim{name: name}
	for _, p := range slices.Sorted(maps.Keys(c.rows)) {
		row := c.rows[p]
		if row.state == storage.Activated || only != "" && only != p {
			continue
		}
		taken.rows = append(taken.rows, p)
		row.epoch, row.owner, row.state = row.epoch+1, taken, storage.Backfilling
		if row.pass == nil || restart {
			m.beginPass(row, p)
		}
	}
	m.claims = append(m.claims, taken)
	return fmt.Sprintf("claimed %v", taken.rows)
}

func (m *model) beginPass(row *checkpointRow, key string) {
	row.pass = &pass{positions: map[string]int64{}, epochs: map[string]int{}}
	if key == storage.AllPartitions {
		for name, p := range m.partitions {
			row.pass.positions[name], row.pass.epochs[name] = p.last, m.epochs[name]
		}
		return
	}
	row.pass.epochs[key] = m.epochs[key]
	if p := m.partitions[key]; p != nil {
		row.pass.positions[key] = p.last
	}
	row.watermark = row.pass.positions[key]
	row.pass.began = row.watermark
}

// row finds the row of a claim; owned says whether the claim still has it.
func (m *model) row(k *claim, key string) (c *checkpoint, row *checkpointRow, owned bool) {
	if k == nil {
		return nil, nil, false
	}
	if c = m.checkpoints[k.name]; c == nil {
		return nil, nil, false
	}
	row = c.rows[key]
	return c, row, row != nil && row.owner == k
}

// take is TakeRanges of all ranges. Each row has one.
func (m *model) take(k *claim) string {
	var taken []string
	for _, p := range k.rows {
		if _, _, owned := m.row(k, p); !owned {
			return failed(storage.CodeOwnershipLost)
		}
	}
	for _, p := range k.rows {
		c, row, _ := m.row(k, p)
		if !c.sql {
			continue
		}
		row.pass.lease = &lease{claim: k, partition: p}
		m.leases = append(m.leases, row.pass.lease)
		taken = append(taken, fmt.Sprintf("%s done %t", p, row.pass.done))
	}
	return fmt.Sprint(taken)
}

// scan is ScanBatch.
func (m *model) scan(l *lease) string {
	c, row, owned := m.row(l.claim, l.partition)
	switch {
	case !owned:
		return failed(storage.CodeOwnershipLost)
	case row.state == storage.Activated:
		return batch(0, true, false)
	case row.pass.lease != l:
		return failed(storage.CodeOwnershipLost)
	case row.pass.done:
		return batch(0, true, false)
	}
	count := 0
	for _, id := range m.todosOf(l.partition) {
		if id <= row.pass.cursor {
			continue
		}
		if count == batchRows {
			return batch(count, false, false)
		}
		m.todos[id].filled[c.name] = true
		row.pass.cursor = id
		count++
	}
	row.pass.done = true
	return batch(count, true, false)
}

func batch(rows int, done, unverifiable bool) string {
	return fmt.Sprintf("%d rows, done %t, unverifiable %t", rows, done, unverifiable)
}

// todosOf lists the todos of a partition, or all, by key.
func (m *model) todosOf(key string) []int64 {
	var ids []int64
	for _, id := range slices.Sorted(maps.Keys(m.todos)) {
		if key == storage.AllPartitions || m.todos[id].partition == key {
			ids = append(ids, id)
		}
	}
	return ids
}

// logsOf are the partitions whose log a row reads.
func (m *model) logsOf(key string) []string {
	if key == storage.AllPartitions {
		return slices.Sorted(maps.Keys(m.partitions))
	}
	m.partition(key)
	return []string{key}
}

// silent says whether the log of some partition no longer answers for a pass.
func (m *model) silent(row *checkpointRow, key string) bool {
	for _, name := range m.logsOf(key) {
		p := m.partitions[name]
		if epoch, noted := row.pass.epochs[name]; noted && epoch != m.epochs[name] || p.horizon > row.pass.positions[name] {
			return true
		}
	}
	return false
}

// changedAbove are the todos with changes above the positions of a pass.
func (m *model) changedAbove(row *checkpointRow, key string) map[int64]bool {
	changed := map[int64]bool{}
	for _, name := range m.logsOf(key) {
		for seq, id := range m.partitions[name].log {
			if seq > row.pass.positions[name] {
				changed[id] = true
			}
		}
	}
	return changed
}

// catchUp applies what the log has above the positions and moves them to its end.
func (m *model) catchUp(c *checkpoint, row *checkpointRow, key string) (rows int) {
	for id := range m.changedAbove(row, key) {
		if t := m.todos[id]; t != nil {
			t.filled[c.name] = true
			rows++
		}
	}
	for _, name := range m.logsOf(key) {
		p := m.partitions[name]
		if _, noted := row.pass.epochs[name]; !noted && p.last > 0 {
			row.pass.epochs[name] = m.epochs[name]
		}
		row.pass.positions[name] = p.last
	}
	if key != storage.AllPartitions {
		row.watermark = max(row.watermark, row.pass.positions[key])
	}
	return rows
}

// tail is TailBatch without a limit that matters.
func (m *model) tail(k *claim, key string) string {
	c, row, owned := m.row(k, key)
	switch {
	case !owned:
		return failed(storage.CodeOwnershipLost)
	case row.state == storage.Activated:
		return batch(0, true, false)
	case m.silent(row, key):
		return batch(0, false, true)
	}
	return batch(m.catchUp(c, row, key), true, false)
}

// verify is VerifyRow.
func (m *model) verify(k *claim, key string) string {
	c, row, owned := m.row(k, key)
	switch {
	case !owned:
		return failed(storage.CodeOwnershipLost)
	case row.state == storage.Activated:
		return "holds"
	case m.silent(row, key):
		return failed(storage.CodeUnverifiable)
	}
	due := m.changedAbove(row, key)
	for _, id := range m.todosOf(key) {
		if !m.todos[id].filled[c.name] && !due[id] {
			return failed(storage.CodeVerificationFailed)
		}
	}
	return "holds"
}

// activate is Activate.
func (m *model) activate(k *claim, key string) string {
	c, row, owned := m.row(k, key)
	switch {
	case row == nil:
		return string(storage.OutcomeLost)
	case row.state == storage.Activated:
		return string(storage.OutcomeActivated)
	case !owned:
		return string(storage.OutcomeLost)
	case !row.pass.done:
		return failed(storage.CodeScanIncomplete)
	case m.silent(row, key):
		return string(storage.OutcomeUnverifiable)
	}
	m.catchUp(c, row, key)
	row.state = storage.Activated
	return string(storage.OutcomeActivated)
}

// activateExternal is ActivateCheckpoint.
func (m *model) activateExternal(k *claim, key string, watermark int64) string {
	c, row, owned := m.row(k, key)
	switch {
	case row == nil:
		return failed(storage.CodeCheckpointNotDeclared)
	case row.state == storage.Activated:
		return string(storage.OutcomeActivated)
	case !owned:
		return string(storage.OutcomeLost)
	case c.sql && !row.pass.done:
		return failed(storage.CodeScanIncomplete)
	case c.sql && m.silent(row, key):
		return string(storage.OutcomeUnverifiable)
	case c.sql && len(m.changedAbove(row, key)) > 0:
		return string(storage.OutcomeChanged)
	}
	if !c.sql {
		// What went from the log before the program had said that it is reflected may never have been read.
		p := m.partition(key)
		if row.pass.epochs[key] != m.epochs[key] || p.horizon > row.watermark || p.last < row.watermark {
			return string(storage.OutcomeUnverifiable)
		}
		switch m.coverage(key, watermark) {
		case storage.Unverifiable:
			return string(storage.OutcomeUnverifiable)
		case storage.Changed:
			return string(storage.OutcomeChanged)
		}
		row.watermark = max(row.watermark, watermark)
	}
	row.state = storage.Activated
	return string(storage.OutcomeActivated)
}

// advance is AdvanceCheckpoint.
func (m *model) advance(k *claim, key string, watermark int64) string {
	c, row, owned := m.row(k, key)
	switch {
	case !owned || row.state != storage.Backfilling || watermark < row.watermark:
		return "moved false"
	case c.sql:
		return failed(storage.CodeInvalidSpec)
	}
	row.watermark = watermark
	return "moved true"
}
