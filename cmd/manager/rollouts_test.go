package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/expr-lang/expr"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// analysisMetric is what of a metric of Argo Rollouts its controller goes by.
type analysisMetric struct {
	SuccessCondition        string `json:"successCondition"`
	FailureCondition        string `json:"failureCondition"`
	FailureLimit            int    `json:"failureLimit"`
	InconclusiveLimit       int    `json:"inconclusiveLimit"`
	ConsecutiveSuccessLimit int    `json:"consecutiveSuccessLimit"`
	ConsecutiveErrorLimit   *int   `json:"consecutiveErrorLimit"`
	Count                   int    `json:"count"`
	Provider                struct {
		Web struct {
			URL      string `json:"url"`
			JSONPath string `json:"jsonPath"`
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

// measure does what the web metric of Argo Rollouts is documented to do (argoproj.github.io/argo-rollouts/analysis/web): GET, an error unless the
// status is 2xx and the body is JSON, a part of it by JSON path, and the conditions on it as `result`. With a successCondition alone what is no
// success is a failure; with both, what is neither is inconclusive.
func (m analysisMetric) measure(ctx context.Context, url string) phase {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return errored
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return errored
	}
	defer response.Body.Close()
	var body any
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil || response.StatusCode/100 != 2 {
		return errored
	}
	path := jsonpath.New("metric")
	if err := path.Parse(m.Provider.Web.JSONPath); err != nil {
		return errored
	}
	results, err := path.FindResults(body)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return errored
	}
	environment := map[string]any{"result": results[0][0].Interface()}
	success, err := evaluate(m.SuccessCondition, environment)
	if err != nil {
		return errored
	}
	failure := !success
	if m.FailureCondition != "" {
		if failure, err = evaluate(m.FailureCondition, environment); err != nil {
			return errored
		}
	}
	switch {
	case failure:
		return failed
	case success:
		return successful
	default:
		return inconclusive
	}
}

func evaluate(condition string, environment map[string]any) (bool, error) {
	program, err := expr.Compile(condition, expr.Env(environment))
	if err != nil {
		return false, err
	}
	result, err := expr.Run(program, environment)
	if err != nil {
		return false, err
	}
	yes, ok := result.(bool)
	if !ok {
		return false, fmt.Errorf("%s is %v, and no bool", condition, result)
	}
	return yes, nil
}

// assess is what a run of measurements comes to, by the limits as they are documented (argoproj.github.io/argo-rollouts/features/analysis).
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

	namespace := e.namespace(t)
	e.database(t, namespace)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	argo, flagger := here(metric.Provider.Web.URL, address, namespace, "2"), here(hook.URL, address, namespace, "2")
	var measurements []phase
	for range 10 { // more than any default limit
		measurements = append(measurements, metric.measure(t.Context(), argo))
	}
	if got := metric.assess(measurements); got != running {
		t.Errorf("ten answers of a closed gate, %q, make the analysis %s, want that it goes on", measurements, got)
	}
	if got := confirm(t, flagger); got != http.StatusServiceUnavailable {
		t.Errorf("Flagger is answered %d by a closed gate, want 503", got)
	}
	if got := metric.assess(append(measurements, metric.measure(t.Context(), "http://127.0.0.1:1/"))); got != running {
		t.Errorf("an operator that is away makes the analysis %s, want that it goes on", got)
	}

	e.apply(t, namespace, 2, "")
	e.status(t, namespace, "GateOpen")
	begun := time.Now()
	waitFor(t, "Flagger to be let go", func(context.Context) (bool, error) { return confirm(t, flagger) == http.StatusOK, nil })
	if late := time.Since(begun); late > 2*time.Second {
		t.Errorf("the gate says that it is open %v after it is", late)
	}
	if got := metric.assess(append(measurements, metric.measure(t.Context(), argo))); got != successful {
		t.Errorf("an open gate makes the analysis %s, want it to end", got)
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
