package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/syncbarrier/syncbarrier/controllers"
)

// options are what the command line and the pod's environment say.
type options struct {
	kubeconfig string
	namespaces []string
	resync     time.Duration
	workers    int

	leaderElect     bool
	leaderNamespace string
	leaderName      string
	leaseDuration   time.Duration
	renewDeadline   time.Duration
	retryPeriod     time.Duration

	healthAddress  string
	gateAddress    string
	metricsAddress string
	metricsOpen    bool

	webhook webhookOptions

	workerImage string
	logFormat   string
	logLevel    int

	// podName and podNamespace are of the own pod, empty outside a cluster.
	podName, podNamespace string
}

// Lease of leader election. A leader that cannot renew for renewDeadline gives up before another may take over at leaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

func (o *options) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"file that says how to reach the API server; without it, what a pod is given, then KUBECONFIG, then ~/.kube/config")
	flags.StringSliceVar(&o.namespaces, "namespaces", nil,
		"work on these namespaces only, with rights in them alone (see config/namespaced); without it, on all")
	flags.DurationVar(&o.resync, "resync", controllers.DefaultResync,
		"how often an object at rest is looked at: the fence, the schema and the gate in its database")
	flags.IntVar(&o.workers, "workers", 16, "how many objects of a kind are worked on at a time")

	flags.BoolVar(&o.leaderElect, "leader-elect", true,
		"work only while holding the lease, so that of several replicas one does; without it, run one replica")
	flags.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "namespace of the lease; without it, the pod's own (POD_NAMESPACE)")
	flags.StringVar(&o.leaderName, "leader-election-name", "syncbarrier-manager", "name of the lease")
	flags.DurationVar(&o.leaseDuration, "leader-election-lease-duration", leaseDuration, "another replica takes a lease over that was not renewed for this long")
	flags.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", renewDeadline,
		"a leader that could not renew for this long cancels its work in databases and ends")
	flags.DurationVar(&o.retryPeriod, "leader-election-retry-period", retryPeriod, "pause between two attempts to take or renew the lease")

	flags.StringVar(&o.healthAddress, "health-bind-address", ":8081", "where /healthz and /readyz are served; 0 for nowhere")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443",
		"where /metrics is served, by HTTPS, to whom the API server knows and allows (role syncbarrier-metrics-reader); 0 for nowhere")
	flags.BoolVar(&o.metricsOpen, "metrics-open", false, "serve /metrics by HTTP to anybody who reaches it; only at an address of the loopback")

	flags.StringVar(&o.gateAddress, "gate-bind-address", "0",
		"where every replica answers, by HTTP and to anybody who reaches it, whether a version may serve: /gate/NAMESPACE/NAME?version=7, by habit at :8090; 0 for nowhere")

	o.webhook.register(flags)

	flags.StringVar(&o.workerImage, "worker-image", "", "image of the backfill workers; without it, that of the manager's own pod")
	flags.StringVar(&o.logFormat, "log-format", "json", "json, or text for people")
	flags.IntVarP(&o.logLevel, "verbosity", "v", 0, "0 says what was done, higher says more; 7 is the most")
}

// check returns what of the options cannot be.
func (o *options) check() error {
	var problems []error
	for _, namespace := range o.namespaces {
		if why := validation.IsDNS1123Label(namespace); len(why) > 0 {
			problems = append(problems, fmt.Errorf("--namespaces: %q is no name of a namespace: %s", namespace, why[0]))
		}
	}
	if o.resync < time.Second {
		problems = append(problems, fmt.Errorf("--resync is %v, less than a second", o.resync))
	}
	if o.workers < 1 {
		problems = append(problems, fmt.Errorf("--workers is %d, less than 1", o.workers))
	}
	if o.leaderElect && (o.retryPeriod <= 0 || o.renewDeadline <= o.retryPeriod*6/5 || o.leaseDuration <= o.renewDeadline) {
		problems = append(problems, errors.New("--leader-election-*: the lease duration must be longer than the renew deadline, and that longer than 1.2 retry periods"))
	}
	if o.leaderElect && o.leaderNamespace == "" {
		problems = append(problems, errors.New("--leader-election-namespace or POD_NAMESPACE must say where the lease is"))
	}
	if o.metricsOpen && !onLoopback(o.metricsAddress) {
		problems = append(problems, fmt.Errorf("--metrics-open: %s is not an address of the loopback", o.metricsAddress))
	}
	if o.logFormat != "json" && o.logFormat != "text" {
		problems = append(problems, fmt.Errorf("--log-format is %q, neither json nor text", o.logFormat))
	}
	problems = append(problems, o.webhook.check(o.podNamespace))
	return errors.Join(problems...)
}

func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
