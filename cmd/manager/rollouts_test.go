package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testforeign"
)

// analysisMetric is what of a metric of Argo Rollouts ends an analysis.
type analysisMetric struct {
	FailureLimit            int  `json:"failureLimit"`
	InconclusiveLimit       int  `json:"inconclusiveLimit"`
	ConsecutiveSuccessLimit int  `json:"consecutiveSuccessLimit"`
	ConsecutiveErrorLimit   *int `json:"consecutiveErrorLimit"`
	Count                   int  `json:"count"`
	Provider                struct {
		Web struct {
			URL string `json:"url"`
		} `json:"web"`
	} `json:"provider"`
}

// phase is the outcome of a measurement, or of a run.
type phase string

const (
	successful   phase = "Successful"
	failed       phase = "Failed"
	inconclusive phase = "Inconclusive"
	errored      phase = "Error"
	running      phase = "Running"
)

// measure has the web metric of the sample ask each URL for a measurement, by the code of Argo Rollouts.
func measure(t *testing.T, program, template string, urls ...string) (measurements []phase) {
	t.Helper()
	output := testforeign.Run(t, strings.Join(urls, "\n")+"\n", program, template)
	for line := range strings.Lines(output) {
		word, message, _ := strings.Cut(strings.TrimSpace(line), " ")
		measurements = append(measurements, phase(word))
		if phase(word) == errored {
			t.Logf("measurement: %s", message)
		}
	}
	if len(measurements) != len(urls) {
		t.Fatalf("%d URLs were measured %q", len(urls), measurements)
	}
	return measurements
}

// assess is what a run of measurements comes to, by the limits as they are documented (argoproj.github.io/argo-rollouts/features/analysis):
// that part of Argo Rollouts comes with the clients of fourteen monitoring systems (docs/decisions/0009).
func (m analysisMetric) assess(measurements []phase) phase {
	var failures, unclear, successes, errorsInRow, counted int
	for _, measurement := range measurements {
		switch measurement {
		case successful:
			successes++
			errorsInRow = 0
			counted++
		case failed:
			failures++
			successes, errorsInRow = 0, 0
			counted++
		case inconclusive:
			unclear++
			successes, errorsInRow = 0, 0
			counted++
		default:
			errorsInRow++
			successes = 0
		}
	}
	errorLimit := 4
	if m.ConsecutiveErrorLimit != nil {
		errorLimit = *m.ConsecutiveErrorLimit
	}
	switch {
	case failures > m.FailureLimit:
		return failed
	case unclear > m.InconclusiveLimit:
		return inconclusive
	case errorsInRow > errorLimit:
		return errored
	case m.ConsecutiveSuccessLimit > 0 && successes >= m.ConsecutiveSuccessLimit, m.Count > 0 && counted >= m.Count:
		return successful
	default:
		return running
	}
}

// sample reads an object of config/rollouts, with the host of its URLs replaced.
func sample(t *testing.T, file string, into any) {
	t.Helper()
	root, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "config", "rollouts", file))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := bytes.Cut(content, []byte("\n---\n"))
	if err := yaml.Unmarshal(first, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// here is an address of a sample, asked of this machine, of another namespace and version.
func here(url, address, namespace, version string) string {
	return strings.NewReplacer(
		"syncbarrier-gate.syncbarrier-system:8090", address, "/shop/", "/"+namespace+"/",
		"{{args.schema}}", "clinic", "{{args.version}}", version, "version=7", "version="+version,
	).Replace(url)
}

// testRolloutTools asks the gate as Argo Rollouts and Flagger do, with the samples that users copy.
func (e *environment) testRolloutTools(t *testing.T, address string) {
	var template struct {
		Spec struct {
			Metrics []analysisMetric `json:"metrics"`
		} `json:"spec"`
	}
	sample(t, "argo-rollouts.yaml", &template)
	metric := template.Spec.Metrics[0]
	var canary struct {
		Spec struct {
			Analysis struct {
				Webhooks []struct{ Type, URL string } `json:"webhooks"`
			} `json:"analysis"`
		} `json:"spec"`
	}
	sample(t, "flagger.yaml", &canary)
	hook := canary.Spec.Analysis.Webhooks[0]
	if hook.Type != "confirm-rollout" {
		t.Fatalf("the hook of the sample is %s", hook.Type)
	}

	root, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	program := testforeign.Build(t, "rollouts")
	measure := func(urls ...string) []phase {
		t.Helper()
		return measure(t, program, filepath.Join(root, "config", "rollouts", "argo-rollouts.yaml"), urls...)
	}

	namespace := e.namespace(t)
	e.database(t, namespace)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	argo, flagger := here(metric.Provider.Web.URL, address, namespace, "2"), here(hook.URL, address, namespace, "2")
	measurements := measure(slices.Repeat([]string{argo}, 10)...) // more than any default limit
	if want := slices.Repeat([]phase{inconclusive}, 10); !slices.Equal(measurements, want) {
		t.Errorf("a closed gate is measured %q, want that it decides nothing", measurements)
	}
	if got := metric.assess(measurements); got != running {
		t.Errorf("ten answers of a closed gate, %q, make the analysis %s, want that it goes on", measurements, got)
	}
	if got := confirm(t, flagger); got != http.StatusServiceUnavailable {
		t.Errorf("Flagger is answered %d by a closed gate, want 503", got)
	}
	away := strings.Replace(argo, address, "127.0.0.1:1", 1) // nobody listens there
	closed := strings.Replace(argo, "/v1/gate/", "/gate/", 1)
	for what, url := range map[string]string{"an operator that is away": away, "an answer of 503": closed} {
		measured := measure(url)
		if got := metric.assess(append(measurements, measured...)); measured[0] != errored || got != running {
			t.Errorf("%s is measured %q and makes the analysis %s, want an error, and that it goes on", what, measured, got)
		}
	}

	e.apply(t, namespace, 2, "")
	e.status(t, namespace, "GateOpen")
	begun := time.Now()
	waitFor(t, "Flagger to be let go", func(context.Context) (bool, error) { return confirm(t, flagger) == http.StatusOK, nil })
	if late := time.Since(begun); late > 3*time.Second {
		t.Errorf("the gate says that it is open %v after it is", late)
	}
	measured := measure(argo)
	if got := metric.assess(append(measurements, measured...)); measured[0] != successful || got != successful {
		t.Errorf("an open gate is measured %q and makes the analysis %s, want it to end", measured, got)
	}
}

// confirm calls a hook as Flagger does: POST, with a body, and everything above 202 is a no.
func confirm(t *testing.T, url string) int {
	t.Helper()
	body := strings.NewReader(`{"name": "clinic", "namespace": "shop", "phase": "Progressing", "checksum": "1", "metadata": {}}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}
