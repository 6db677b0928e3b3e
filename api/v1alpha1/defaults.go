package v1alpha1

// Defaults of the fields that a group holds. The schema gives them to a group that is there; the accessors below give
// them for one that is left out.
const (
	DefaultWaitForPodsSeconds      = 600
	DefaultTimeoutMilliseconds     = 2000
	DefaultStatementTimeoutSeconds = 300
	DefaultHoldBudgetMilliseconds  = 1000
	DefaultWithdrawAtPercent       = 100
	DefaultBatchRows               = 1000
	DefaultParallelism             = 1
	DefaultPostgresSchema          = "public"
)

// EffectiveStrategy gives the strategy with every omitted field at its default.
func (s *SyncSchemaSpec) EffectiveStrategy() Strategy {
	var out Strategy
	if s.Strategy != nil {
		out = *s.Strategy
	}
	if out.Type == "" {
		out.Type = StrategyBarrier
	}
	if out.Cutover == "" {
		out.Cutover = CutoverAutomatic
	}
	if out.WaitForPodsSeconds == nil {
		seconds := int32(DefaultWaitForPodsSeconds)
		out.WaitForPodsSeconds = &seconds
	}
	return out
}

// EffectiveLock gives the lock limits with every omitted field at its default.
func (s *SyncSchemaSpec) EffectiveLock() Lock {
	var out Lock
	if s.Lock != nil {
		out = *s.Lock
	}
	if out.TimeoutMilliseconds == 0 {
		out.TimeoutMilliseconds = DefaultTimeoutMilliseconds
	}
	if out.StatementTimeoutSeconds == 0 {
		out.StatementTimeoutSeconds = DefaultStatementTimeoutSeconds
	}
	if out.HoldBudgetMilliseconds == 0 {
		out.HoldBudgetMilliseconds = DefaultHoldBudgetMilliseconds
	}
	return out
}

// EffectiveGate gives the gate's settings with every omitted field at its default.
func (s *SyncSchemaSpec) EffectiveGate() Gate {
	var out Gate
	if s.Gate != nil {
		out = *s.Gate
	}
	if out.Mode == "" {
		out.Mode = GateEnforce
	}
	if out.OlderPods == "" {
		out.OlderPods = OlderPodsWithdraw
	}
	if out.WithdrawAtPercent == 0 {
		out.WithdrawAtPercent = DefaultWithdrawAtPercent
	}
	return out
}

// Materialized says whether the table keeps its columns beside a payload. It is true for every table but a Syncular one that
// says otherwise.
func (t *Table) Materialized() bool { return t.Materialize == nil || *t.Materialize }
