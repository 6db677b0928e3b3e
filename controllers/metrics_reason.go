package controllers

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// reasonGauge is a gauge of which an object has a series for each reason that there is now. They are replaced together: a scrape sees those of
// before or those of after, and no moment without any. A series that is missing from one scrape begins the `for` of an alert anew.
type reasonGauge struct {
	desc *prometheus.Desc
	mu   sync.Mutex
	of   map[string]map[string]float64 // by the object's labels, then by reason
}

// newReasonGauge makes one. The last label is the reason, those before it tell objects apart.
func newReasonGauge(opts prometheus.GaugeOpts, labels []string) *reasonGauge {
	return &reasonGauge{desc: prometheus.NewDesc(opts.Name, opts.Help, labels, nil), of: map[string]map[string]float64{}}
}

// labelEnd stands after each label of an object in its key. No name of an object has it.
const labelEnd = "\x00"

// replace gives an object the series that it has now; without any it has none.
func (g *reasonGauge) replace(values map[string]float64, object ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := strings.Join(object, labelEnd)
	if len(values) == 0 {
		delete(g.of, key)
		return
	}
	g.of[key] = maps.Clone(values)
}

// Describe gives its description (prometheus.Collector).
func (g *reasonGauge) Describe(to chan<- *prometheus.Desc) { to <- g.desc }

// Collect gives all series as they are at one moment (prometheus.Collector).
func (g *reasonGauge) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, values := range g.of {
		for reason, value := range values {
			labels := slices.Concat(strings.Split(key, labelEnd), []string{reason})
			to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, labels...)
		}
	}
}
