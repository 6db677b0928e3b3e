package alerts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// rule is one alert, as Prometheus reads it.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "config/alerts/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Spec struct {
			Groups []struct {
				Rules []rule `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(content, &struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       any            `json:"spec"`
	}{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, group := range file.Spec.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// sources are what the operator's metrics and reasons stand in.
func sources(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no file, %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(content)
		}
	}
	return all.String()
}

func found(expression, text string) (all []string) {
	for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// labelsOf reads which labels each metric has: the names that stand behind its declaration, which are constants.
func labelsOf(t *testing.T, text string) map[string][]string {
	t.Helper()
	values := map[string]string{}
	for _, match := range regexp.MustCompile(`(label\w+)\s*= "(\w+)"`).FindAllStringSubmatch(text, -1) {
		values[match[1]] = match[2]
	}
	metrics := map[string][]string{}
	declared := regexp.MustCompile(`(?s)Name:\s+"(syncbarrier_\w+)".*?\n\t*\}(?:, \[\]string\{([^}]*)\})?\)`)
	for _, match := range declared.FindAllStringSubmatch(text, -1) {
		labels := []string{}
		for _, name := range found(`(label\w+)`, match[2]) {
			if values[name] == "" {
				t.Fatalf("metric %s: nothing says what %s is", match[1], name)
			}
			labels = append(labels, values[name])
		}
		metrics[match[1]] = labels
	}
	return metrics
}

func TestAlertsAskForMetricsThatTheOperatorHas(t *testing.T) {
	metrics := labelsOf(t, sources(t, "controllers/*.go", "internal/webhook/*.go"))
	known := append(found(`Reason\w+ += "(\w+)"`, sources(t, "api/v1alpha1/*.go")), found(`Class\w+ +Class = "(\w+)"`, sources(t, "internal/storage/errors.go"))...)
	known = append(known, found(`Kind\w+ += "(\w+)"`, sources(t, "api/v1alpha1/*.go"))...)
	if len(metrics) < 15 || len(known) < 40 {
		t.Fatalf("only %d metrics and %d reasons were found: this looks at nothing", len(metrics), len(known))
	}
	all := rules(t)
	for _, rule := range all {
		parsed, err := metricsql.Parse(rule.Expr)
		if err != nil {
			t.Errorf("%s: %v", rule.Alert, err)
			continue
		}
		asked := 0
		metricsql.VisitAll(parsed, func(expression metricsql.Expr) {
			metric, ok := expression.(*metricsql.MetricExpr)
			if !ok {
				return
			}
			for _, filters := range metric.LabelFilterss {
				asked++
				checkFilters(t, rule.Alert, filters, metrics, known)
			}
		})
		if asked == 0 {
			t.Errorf("%s asks for no metric", rule.Alert)
		}
	}
	for _, needed := range []string{"SyncbarrierGateClosed", "SyncbarrierLockAttemptsFailing", "SyncbarrierLogGrowing", "SyncbarrierFenceBroken", "SyncbarrierWebhookCertificate",
		"SyncbarrierPodsHeld", "SyncbarrierPodsOrphaned", "SyncbarrierOldPodsHeld", "SyncbarrierBackfillStuck"} {
		if !slices.ContainsFunc(all, func(rule rule) bool { return rule.Alert == needed }) {
			t.Errorf("there is no alert %s", needed)
		}
	}
}

// checkFilters wants a metric that is there, labels that it has, and values that can be.
func checkFilters(t *testing.T, alert string, filters []metricsql.LabelFilter, metrics map[string][]string, known []string) {
	t.Helper()
	name := filters[0].Value
	labels, exists := metrics[name]
	if filters[0].Label != "__name__" || !exists {
		t.Errorf("%s asks for %s, which the operator does not have", alert, name)
		return
	}
	for _, filter := range filters[1:] {
		if !slices.Contains(labels, filter.Label) {
			t.Errorf("%s asks for the label %s of %s, which has %q", alert, filter.Label, name, labels)
		}
		for _, value := range strings.Split(filter.Value, "|") {
			if !slices.Contains(known, value) {
				t.Errorf("%s asks for %s=%s, and nothing has that", alert, filter.Label, value)
			}
		}
	}
}

func TestAlertsSayWhatPeopleNeed(t *testing.T) {
	functions := template.FuncMap{
		"humanize1024": func(any) string { return "" }, "humanizeDuration": func(any) string { return "" },
	}
	seen := map[string]bool{}
	for _, rule := range rules(t) {
		if seen[rule.Alert] {
			t.Errorf("%s is there twice", rule.Alert)
		}
		seen[rule.Alert] = true
		if rule.For != "" {
			if _, err := time.ParseDuration(rule.For); err != nil {
				t.Errorf("%s: for: %v", rule.Alert, err)
			}
		}
		if !slices.Contains([]string{"info", "warning", "critical"}, rule.Labels["severity"]) {
			t.Errorf("%s has the severity %q", rule.Alert, rule.Labels["severity"])
		}
		for _, part := range []string{"summary", "description"} {
			text, err := template.New(part).Funcs(functions).Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + rule.Annotations[part])
			if err != nil || rule.Annotations[part] == "" {
				t.Errorf("%s: %s: %q, %v", rule.Alert, part, rule.Annotations[part], err)
				continue
			}
			if err := text.Execute(&bytes.Buffer{}, map[string]any{"Labels": map[string]string{}, "Value": 1.0}); err != nil {
				t.Errorf("%s: %s: %v", rule.Alert, part, err)
			}
		}
	}
}

func TestAlertsAndMonitoringAreComponents(t *testing.T) {
	folder := t.TempDir()
	config, err := filepath.Abs(filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(folder, config)
	if err != nil {
		t.Fatal(err)
	}
	content := "namespace: monitoring\nresources: [" + filepath.Join(relative, "no-webhook") + "]\ncomponents: [" + filepath.Join(relative, "alerts") + ", " + filepath.Join(relative, "monitoring") + "]\n"
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "tool"), "kustomize", "build", folder)
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("kustomize build: %v: %.500s", err, output)
	}
	for _, part := range []string{
		"kind: PrometheusRule", "kind: ServiceMonitor", "port: metrics", "bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token",
		"  kind: ClusterRole\n  name: syncbarrier-metrics-reader\nsubjects:\n- kind: ServiceAccount\n  name: prometheus-k8s\n  namespace: monitoring\n",
	} {
		if !strings.Contains(string(output), part) {
			t.Errorf("what kustomize builds lacks %q", part)
		}
	}
}
