// Metricsdocs prints docs/metrics.md from the metrics that the operator registers.
package main

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/webhook"
)

const head = `# Metrics

What the operator's own metrics say, beside those that controller-runtime has of queues, reconciles and its client
(` + "`controller_runtime_*`, `workqueue_*`, `rest_client_*`" + `). ` + "`make generate`" + ` writes this page. Only the replica that leads
has series of objects. The component [config/alerts](../config/alerts) has alerts on them.

They are served at ` + "`/metrics`" + `, port 8443 of the manager, by HTTPS with a certificate made at the start, to whom the API server knows and
lets ` + "`get`" + ` that path (ClusterRole ` + "`syncbarrier-metrics-reader`" + `). With the Prometheus operator, name the component
[config/monitoring](../config/monitoring) in your kustomization: it has a ServiceMonitor, and binds that role to the ServiceAccount
` + "`prometheus-k8s`" + ` of the namespace ` + "`monitoring`" + `. If yours has another name, change it by a patch of the ClusterRoleBinding
` + "`syncbarrier-metrics-reader`" + `. If your Prometheus selects ServiceMonitors by a label, add it by a patch, too.

` + "```yaml" + `
resources: [https://github.com/syncbarrier/syncbarrier//config/default?ref=v0.1.0]
components:
- https://github.com/syncbarrier/syncbarrier//config/monitoring?ref=v0.1.0
- https://github.com/syncbarrier/syncbarrier//config/alerts?ref=v0.1.0
` + "```" + `

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`

// described is how a description prints itself (client_golang, prometheus/desc.go).
var described = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var lines []string
	for _, collector := range slices.Concat(controllers.Collectors(), webhook.Collectors()) {
		line, err := row(collector)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	slices.SortFunc(lines, cmp.Compare[string])
	fmt.Print(head + strings.Join(lines, ""))
	return nil
}

// row is a metric's line of the table.
func row(collector prometheus.Collector) (string, error) {
	descriptions := make(chan *prometheus.Desc, 1)
	collector.Describe(descriptions)
	text := (<-descriptions).String()
	match := described.FindStringSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("a description is not of the form that is known: %s", text)
	}
	name, nameErr := strconv.Unquote(match[1])
	help, helpErr := strconv.Unquote(match[2])
	if err := cmp.Or(nameErr, helpErr); err != nil {
		return "", fmt.Errorf("read %s: %w", text, err)
	}
	labels := ""
	if match[3] != "" {
		labels = "`" + strings.ReplaceAll(match[3], ",", "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind(collector), labels, strings.ReplaceAll(help, "|", `\|`)), nil
}

// kind is the type that a scrape shows. What is neither is a gauge, as is the one collector of our own.
func kind(collector prometheus.Collector) string {
	switch collector.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.HistogramVec:
		return "histogram"
	default:
		return "gauge"
	}
}
