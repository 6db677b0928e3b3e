// Rules runs alerting rules by the engine of Prometheus. It reads the rules of a file (a PrometheusRule), and from standard input,
// as JSON, scenarios: pages of metrics as they are scraped, each from its minute on. For each scenario it answers with the alerts that fire,
// at their first minute, with labels and annotations filled in.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"
	"sigs.k8s.io/yaml"
)

// Scenario is what Prometheus sees in a number of minutes. internal/testforeign has these types too, and says why.
type Scenario struct {
	Name    string    `json:"name"`
	Begin   time.Time `json:"begin"`
	Minutes int       `json:"minutes"`
	Pages   []Page    `json:"pages"`
}

// Page is what every scrape gets from a minute on, until the next page.
type Page struct {
	Minute int    `json:"minute"`
	Text   string `json:"text"`
}

// Firing is an alert of a scenario.
type Firing struct {
	Scenario    string            `json:"scenario"`
	Alert       string            `json:"alert"`
	Minute      int               `json:"minute"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func main() {
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string, in io.Reader, out io.Writer) error {
	rules, err := readRules(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var scenarios []Scenario
	asked := json.NewDecoder(in)
	asked.DisallowUnknownFields()
	if err := asked.Decode(&scenarios); err != nil {
		return fmt.Errorf("scenarios: %w", err)
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	firing := []Firing{}
	for _, scenario := range scenarios {
		store := memory{}
		for i, page := range scenario.Pages {
			end := scenario.Minutes + 1
			if i+1 < len(scenario.Pages) {
				end = scenario.Pages[i+1].Minute
			}
			if err := store.scrape(page.Text, scenario.Begin, page.Minute, end); err != nil {
				return fmt.Errorf("scenario %s, page of minute %d: %w", scenario.Name, page.Minute, err)
			}
		}
		for _, rule := range rules {
			more, err := evaluate(engine, &store, rule, scenario)
			if err != nil {
				return fmt.Errorf("scenario %s, alert %s: %w", scenario.Name, rule.Alert, err)
			}
			firing = append(firing, more...)
		}
	}
	return json.NewEncoder(out).Encode(firing)
}

// readRules takes the groups out of the PrometheusRule and has Prometheus read and check them, templates too.
func readRules(file string) ([]rulefmt.Rule, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var object struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &object); err != nil {
		return nil, err
	}
	groups, problems := rulefmt.Parse(object.Spec, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	var rules []rulefmt.Rule
	for _, group := range groups.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, nil
}

// evaluate asks the rule every minute. An alert fires once its expression has given it, with the same labels, for as long as `for` says.
func evaluate(engine *promql.Engine, store *memory, rule rulefmt.Rule, scenario Scenario) ([]Firing, error) {
	since, fired := map[string]int{}, map[string]bool{}
	var firing []Firing
	for minute := 0; minute <= scenario.Minutes; minute++ {
		at := scenario.Begin.Add(time.Duration(minute) * time.Minute)
		query, err := engine.NewInstantQuery(context.Background(), store, nil, rule.Expr, at)
		if err != nil {
			return nil, err
		}
		result := query.Exec(context.Background())
		vector, err := result.Vector()
		if err != nil {
			return nil, err
		}
		active := map[string]bool{}
		for _, sample := range vector {
			key := sample.Metric.String()
			active[key] = true
			if _, pending := since[key]; !pending {
				since[key] = minute
			}
			if fired[key] || time.Duration(minute-since[key])*time.Minute < time.Duration(rule.For) {
				continue
			}
			fired[key] = true
			alert, err := fill(rule, sample, at)
			if err != nil {
				return nil, err
			}
			alert.Scenario, alert.Minute = scenario.Name, minute
			firing = append(firing, alert)
		}
		for key := range since {
			if !active[key] {
				delete(since, key)
			}
		}
		query.Close()
	}
	return firing, nil
}

// fill expands the templates of a rule as Prometheus does.
func fill(rule rulefmt.Rule, sample promql.Sample, at time.Time) (Firing, error) {
	alert := Firing{Alert: rule.Alert, Labels: sample.Metric.Map(), Annotations: map[string]string{}}
	data := template.AlertTemplateData(alert.Labels, nil, "", sample)
	for name, text := range rule.Annotations {
		none := func(context.Context, string, time.Time) (promql.Vector, error) {
			return nil, errors.New("no queries in annotations")
		}
		full := "{{$labels := .Labels}}{{$value := .Value}}" + text
		expanded, err := template.NewTemplateExpander(context.Background(), full, name, data, model.TimeFromUnix(at.Unix()), none, nil, nil).Expand()
		if err != nil {
			return alert, fmt.Errorf("annotation %s: %w", name, err)
		}
		alert.Annotations[name] = strings.TrimSpace(expanded)
	}
	for name, value := range rule.Labels {
		alert.Labels[name] = value
	}
	return alert, nil
}

// scrape notes what a page shows, once a minute from begin's minute `from` until before `to`.
func (m memory) scrape(page string, begin time.Time, from, to int) error {
	lines := textparse.NewPromParser([]byte(page), labels.NewSymbolTable(), false)
	for {
		entry, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var of labels.Labels
		lines.Labels(&of)
		_, _, value := lines.Series()
		for minute := from; minute < to; minute++ {
			m.add(of, begin.Add(time.Duration(minute)*time.Minute), value)
		}
	}
}
