// Rollouts takes measurements of a metric as Argo Rollouts does, with its own code: it reads config/rollouts/argo-rollouts.yaml by
// Argo's own types, and for each URL in a line of standard input asks the metric's web provider, with that URL instead of the
// template's. It answers each with a line: the phase of the measurement, and its message.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"

	"github.com/argoproj/argo-rollouts/metricproviders/webmetric"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	log "github.com/sirupsen/logrus"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string) error {
	metric, err := read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	client, err := webmetric.NewWebMetricHttpClient(metric)
	if err != nil {
		return fmt.Errorf("client of metric %s: %w", metric.Name, err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		parser, err := webmetric.NewWebMetricJsonParser(metric)
		if err != nil {
			return fmt.Errorf("jsonPath of metric %s: %w", metric.Name, err)
		}
		metric.Provider.Web.URL = lines.Text()
		measurement := webmetric.NewWebMetricProvider(*log.NewEntry(log.StandardLogger()), client, parser).Run(&v1alpha1.AnalysisRun{}, metric)
		fmt.Printf("%s %s\n", measurement.Phase, measurement.Message)
	}
	return lines.Err()
}

// read takes both objects of the sample, strictly: a field that Argo Rollouts does not have is an error.
func read(file string) (v1alpha1.Metric, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return v1alpha1.Metric{}, err
	}
	first, second, two := bytes.Cut(content, []byte("\n---\n"))
	if !two {
		return v1alpha1.Metric{}, fmt.Errorf("want an AnalysisTemplate and a Rollout")
	}
	template, rollout := v1alpha1.AnalysisTemplate{}, v1alpha1.Rollout{}
	if err := yaml.UnmarshalStrict(first, &template); err != nil {
		return v1alpha1.Metric{}, fmt.Errorf("the AnalysisTemplate: %w", err)
	}
	if err := yaml.UnmarshalStrict(second, &rollout); err != nil {
		return v1alpha1.Metric{}, fmt.Errorf("the Rollout: %w", err)
	}
	return template.Spec.Metrics[0], nil
}
