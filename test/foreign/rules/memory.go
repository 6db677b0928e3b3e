package main

import (
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory holds samples by series, for the engine to query.
type memory map[string]*series

type series struct {
	of      labels.Labels
	samples []chunks.Sample
}

func (m memory) add(of labels.Labels, at time.Time, value float64) {
	key := of.String()
	if m[key] == nil {
		m[key] = &series{of: of}
	}
	m[key].samples = append(m[key].samples, sample{at.UnixMilli(), value})
}

// Querier implements storage.Queryable.
func (m memory) Querier(mint, maxt int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &found{at: -1}
		for _, s := range m {
			if matches(s.of, matchers) {
				set.series = append(set.series, storage.NewListSeries(s.of, between(s.samples, mint, maxt)))
			}
		}
		return set
	}}, nil
}

func matches(of labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(of.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

func between(samples []chunks.Sample, mint, maxt int64) (inside []chunks.Sample) {
	for _, s := range samples {
		if s.T() >= mint && s.T() <= maxt {
			inside = append(inside, s)
		}
	}
	return inside
}

// found is a storage.SeriesSet.
type found struct {
	series []storage.Series
	at     int
}

func (f *found) Next() bool                      { f.at++; return f.at < len(f.series) }
func (f *found) At() storage.Series              { return f.series[f.at] }
func (*found) Err() error                        { return nil }
func (*found) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample of a plain number.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                    { return s.at }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }
