package main

import (
	"errors"
	"net"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/syncbarrier/syncbarrier/internal/webhook"
)

// webhookOptions are what the command line says of the webhook.
type webhookOptions struct {
	address   string
	startGate bool
}

func (o *webhookOptions) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.address, "webhook-bind-address", "0",
		"where the webhook of config/webhook is served, by HTTPS, with a certificate that is made and rotated here; 0 for nowhere")
	flags.BoolVar(&o.startGate, "start-gate", false,
		"give pods that ask for it the start gate, and take it away again; with the rights of config/start-gate")
}

func (o *webhookOptions) served() bool { return o.address != "0" && o.address != "" }

// check returns what of the options cannot be. namespace is the manager's own.
func (o *webhookOptions) check(namespace string) error {
	if !o.served() {
		return nil
	}
	var problems []error
	if _, port, err := net.SplitHostPort(o.address); err != nil || port == "" || port == "0" {
		problems = append(problems, errors.New("--webhook-bind-address: HOST:PORT or :PORT is expected"))
	}
	if namespace == "" {
		problems = append(problems, errors.New("--webhook-bind-address: POD_NAMESPACE must say where the webhook's Service and Secret are"))
	}
	return errors.Join(problems...)
}

// addWebhook has the manager serve the webhook, if it is to.
func addWebhook(mgr ctrl.Manager, o *options) error {
	if !o.webhook.served() {
		return nil
	}
	return webhook.Add(mgr, webhook.Options{Address: o.webhook.address, Namespace: o.podNamespace, StartGate: o.webhook.startGate})
}
