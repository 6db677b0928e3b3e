package property

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// model is a database as docs/design.md has it.
type model struct {
	version     int64 // the marker; 0: none
	owner       string
	indexed     map[int64]bool // by version: applied with the index that is no part of the usual content
	fenceAll    int64
	fence       map[string]int64
	partitions  map[string]*partition
	epochs      map[string]int // generation of the log epoch, by partition; one may have an epoch before it has a log
	todos       map[int64]*todo
	titles      int
	checkpoints map[string]*checkpoint
	abandoned   map[string]int64 // name to version
	claims      []*claim
	leases      []*lease
}

type partition struct {
	last, horizon int64
	log           map[int64]int64 // commit to the todo it changed
}

// todo is a row; filled says by checkpoint whether the derived column holds what its definition says.
type todo struct {
	partition string
	title     string
	filled    map[string]bool
}

type checkpoint struct {
	name    string
	version int64
	sql     bool
	rows    map[string]*checkpointRow
}

type checkpointRow struct {
	state     storage.State
	epoch     int64
	watermark int64
	owner     *claim
	pass      *pass
}

// pass is one go over a row.
type pass struct {
	positions map[string]int64 // by partition
	epochs    map[string]int
	began     int64
	cursor    int64
	done      bool
	lease     *lease
}

type claim struct {
	name string
	rows []string
}

type lease struct {
	claim     *claim
	partition string
}

func newModel() *model {
	return &model{
		indexed: map[int64]bool{}, fence: map[string]int64{}, partitions: map[string]*partition{}, epochs: map[string]int{}, todos: map[int64]*todo{},
		checkpoints: map[string]*checkpoint{}, abandoned: map[string]int64{},
	}
}

// partition finds a partition, making it if it is new.
func (m *model) partition(key string) *partition {
	if m.partitions[key] == nil {
		m.partitions[key] = &partition{log: map[int64]int64{}}
	}
	return m.partitions[key]
}

// failed is the answer of an operation that is refused.
func failed(code storage.Code) string { return string(code) }

// The barrier.

// ensure is EnsureSchema of a version by an owner.
func (m *model) ensure(version int64, owner string, indexed bool) string {
	switch {
	case m.version > 0 && m.owner != owner:
		return failed(storage.CodeConflict)
	case version < m.version:
		return failed(storage.CodeVersionRegression)
	case m.undeclared(version):
		return failed(storage.CodeCheckpointIncomplete)
	case version == m.version && m.indexed[version] != indexed:
		return failed(storage.CodeContentDrift)
	case version == m.version:
		return fmt.Sprintf("%s from %d, declared []", storage.Agreed, version)
	}
	stored := m.version
	var declared []string
	var all int64
	listed := map[string]int64{}
	for v := stored + 1; v <= version; v++ {
		c, ok := checkpointOf(v)
		if !ok {
			continue
		}
		declared = append(declared, c.Name)
		m.declare(c)
		if len(c.Partitions) == 0 {
			all = v
		}
		for _, p := range c.Partitions {
			listed[p] = v
		}
	}
	m.raise(all, listed)
	m.version, m.owner, m.indexed[version] = version, owner, indexed
	return fmt.Sprintf("%s from %d, declared %v", storage.Migrate, stored, declared)
}

// undeclared says whether a checkpoint that the schema of a version does not declare is unfinished.
func (m *model) undeclared(version int64) bool {
	for name, c := range m.checkpoints {
		if strings.HasPrefix(name, "extra") && c.version <= version && c.open() {
			return true
		}
	}
	return false
}

func (c *checkpoint) open() bool {
	for _, row := range c.rows {
		if row.state != storage.Activated {
			return true
		}
	}
	return false
}

func (m *model) declare(c storage.Checkpoint) {
	made := &checkpoint{name: c.Name, version: c.Version, sql: !c.Backfill.External(), rows: map[string]*checkpointRow{}}
	for _, p := range c.Rows() {
		made.rows[p] = &checkpointRow{state: storage.Declared}
	}
	m.checkpoints[c.Name] = made
}

// raise raises the fence for all, and that of single partitions where it is higher.
func (m *model) raise(all int64, listed map[string]int64) {
	m.fenceAll = max(m.fenceAll, all)
	for p, version := range listed {
		if version > m.fenceAll {
			m.fence[p] = max(m.fence[p], version)
			m.partition(p)
		}
	}
}

// declareAlone is DeclareCheckpoint.
func (m *model) declareAlone(c storage.Checkpoint) string {
	if known, ok := m.checkpoints[c.Name]; ok && known.version == c.Version {
		return known.describe()
	}
	_, used := m.checkpoints[c.Name]
	_, abandoned := m.abandoned[c.Name]
	switch {
	case used || abandoned:
		return failed(storage.CodeContentDrift)
	case c.Version != m.version || m.gate(c.Version) == storage.GateOpen:
		return failed(storage.CodeConflict)
	}
	m.declare(c)
	listed := map[string]int64{}
	for _, p := range c.Partitions {
		listed[p] = c.Version
	}
	if len(c.Partitions) == 0 {
		m.raise(c.Version, nil)
	} else {
		m.raise(0, listed)
	}
	return m.checkpoints[c.Name].describe()
}

func (c *checkpoint) describe() string {
	var rows []string
	for _, p := range slices.Sorted(maps.Keys(c.rows)) {
		rows = append(rows, fmt.Sprintf("%s/%s v%d %s at %d epoch %d", c.name, p, c.version, c.rows[p].state, c.rows[p].watermark, c.rows[p].epoch))
	}
	return strings.Join(rows, "; ")
}

// describe is ReadCheckpoints of all.
func (m *model) describe() string {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(m.checkpoints)) {
		rows = append(rows, m.checkpoints[name].describe())
	}
	return strings.Join(rows, "; ")
}

// abandon is AbandonCheckpoint.
func (m *model) abandon(name string, version int64) string {
	c := m.checkpoints[name]
	switch {
	case c == nil || c.version != version:
		return failed(storage.CodeCheckpointNotDeclared)
	case !c.open():
		return failed(storage.CodeCheckpointActivated)
	}
	delete(m.checkpoints, name)
	m.abandoned[name] = version
	return fmt.Sprintf("%d rows", len(c.rows))
}

// The gate.

func (m *model) gate(running int64) storage.GateReason {
	switch {
	case m.version == 0:
		return storage.GateSchemaNotFound
	case m.version < running:
		return storage.GateMigrationPending
	}
	for _, c := range m.checkpoints {
		if c.version <= running && c.open() {
			return storage.GateBackfilling
		}
	}
	return storage.GateOpen
}

func (m *model) gateAnswer(running int64) string {
	reason := m.gate(running)
	return fmt.Sprintf("%s writable %t", reason, reason == storage.GateOpen && running >= m.fenceAll)
}

// query is Query of the titles of a partition.
func (m *model) query(key string, running int64) string {
	if m.gate(running) != storage.GateOpen {
		return failed(storage.CodeNotReady)
	}
	var titles []string
	for _, id := range slices.Sorted(maps.Keys(m.todos)) {
		if m.todos[id].partition == key {
			titles = append(titles, m.todos[id].title)
		}
	}
	var last int64
	if p := m.partitions[key]; p != nil {
		last = p.last
	}
	return fmt.Sprintf("%v at %d", titles, last)
}

// Writers and the log.

// write is a writer's transaction that puts or deletes one todo.
func (m *model) write(key string, version, id int64, title string, deleted bool) string {
	if required := max(m.fenceAll, m.fence[key]); required > 0 && version < required {
		return failed(storage.CodeWriterFenceRejected)
	}
	if deleted {
		delete(m.todos, id)
	} else {
		m.todos[id] = &todo{partition: key, title: title, filled: map[string]bool{}}
	}
	p := m.partition(key)
	p.last++
	p.log[p.last] = id
	return fmt.Sprintf("commit %d", p.last)
}

// coverage is HasSourceChangesAbove for the table todos.
func (m *model) coverage(key string, seq int64) storage.Verdict {
	p := m.partitions[key]
	if p == nil {
		p = &partition{}
	}
	switch {
	case p.horizon > seq || p.last < seq:
		return storage.Unverifiable
	case p.last > seq:
		return storage.Changed // every commit changes a todo
	}
	return storage.Clean
}

// prune is Prune.
func (m *model) prune(key string, seq int64, force bool) string {
	p := m.partitions[key]
	if p == nil {
		return "horizon 0"
	}
	wanted := min(seq, p.last)
	if wanted > p.horizon {
		if !force && m.neededBelow(key, wanted) {
			return failed(storage.CodePruneRefused)
		}
		p.horizon = wanted
		maps.DeleteFunc(p.log, func(seq, _ int64) bool { return seq <= wanted })
	}
	return fmt.Sprintf("horizon %d", p.horizon)
}

func (m *model) neededBelow(key string, seq int64) bool {
	for _, c := range m.checkpoints {
		if row := c.rows[key]; row != nil && row.state == storage.Backfilling && row.watermark < seq {
			return true
		}
		if row := c.rows[storage.AllPartitions]; row != nil && row.state == storage.Backfilling && row.pass.positions[key] < seq {
			return true
		}
	}
	return false
}

// rotate is RotateLogEpoch.
func (m *model) rotate(key string) string {
	for _, name := range keys {
		if name == key || key == storage.AllPartitions {
			m.epochs[name]++
		}
	}
	return "rotated"
}
