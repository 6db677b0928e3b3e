// Package testforeign runs programs that are made of the code of other projects, for tests: the web metric of Argo Rollouts, the rule
// engine of Prometheus. They are in test/foreign, a module of its own, and are built at their first use.
package testforeign

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// Build builds the program of a folder of test/foreign and returns its path. It is gone when the test ends.
func Build(t testing.TB, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(root(t), "test", "foreign"), "-o", program, "./"+name)
	build.Env = append(os.Environ(), "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build test/foreign/%s: %v: %s", name, err, output)
	}
	return program
}

// Run gives a program its input and returns what it prints.
func Run(t testing.TB, input, program string, args ...string) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), program, args...)
	run.Stdin = strings.NewReader(input)
	var problems bytes.Buffer
	run.Stderr = &problems
	output, err := run.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", filepath.Base(program), err, problems.String())
	}
	return string(output)
}

// Scenario is what Prometheus sees in a number of minutes from Begin on.
//
// It, Page and Firing stand in test/foreign/rules once more. One module that imports the other has its requirements decide versions too, which
// is what there are two for; a third one, with these types alone, would need a replace in go.mod, with which nobody can `go install` the
// command. Neither side takes a field that it does not know, so they cannot come apart unseen.
type Scenario struct {
	Name    string    `json:"name"`
	Begin   time.Time `json:"begin"`
	Minutes int       `json:"minutes"`
	Pages   []Page    `json:"pages"`
}

// Page is what every scrape gets from a minute on, until the next page, in the text format.
type Page struct {
	Minute int    `json:"minute"`
	Text   string `json:"text"`
}

// Firing is an alert that fired in a scenario, at its first minute, with its templates filled in.
type Firing struct {
	Scenario    string            `json:"scenario"`
	Alert       string            `json:"alert"`
	Minute      int               `json:"minute"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Alerts has the engine of Prometheus run the rules of config/alerts in the scenarios, and returns the alerts that fire in each.
func Alerts(t testing.TB, scenarios ...Scenario) map[string][]Firing {
	t.Helper()
	input, err := json.Marshal(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	var all []Firing
	output := Run(t, string(input), Build(t, "rules"), filepath.Join(root(t), "config", "alerts", "rules.yaml"))
	answer := json.NewDecoder(strings.NewReader(output))
	answer.DisallowUnknownFields()
	if err := answer.Decode(&all); err != nil {
		t.Fatalf("alerts: %v: %s", err, output)
	}
	by := map[string][]Firing{}
	for _, firing := range all {
		by[firing.Scenario] = append(by[firing.Scenario], firing)
	}
	return by
}

func root(t testing.TB) string {
	t.Helper()
	folder, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
