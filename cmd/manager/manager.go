package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

const (
	// shutdownTimeout bounds the end after SIGTERM; the pod's grace period is longer.
	shutdownTimeout = 10 * time.Second
	// rollbackTimeout bounds how long work in databases is waited for after it was cancelled. Then the connections are dropped, and the
	// servers roll back by themselves.
	rollbackTimeout = 2 * time.Second
	// startTimeout bounds what is asked of the API server before anything else.
	startTimeout = 30 * time.Second
)

// run works until ctx ends, or until it fails: then the error says why.
func run(ctx context.Context, o *options) error {
	config, err := restConfig(o)
	if err != nil {
		return err
	}
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	databases := controllers.NewDatabases(openDatabase, clock.Real{})
	forGates := controllers.NewDatabases(openForGates, clock.Real{})
	if err := addControllers(ctx, mgr, databases, forGates, o); err != nil {
		return err
	}
	if err := addWebhook(mgr, o); err != nil {
		return err
	}
	failure := mgr.Start(ctx)
	// A manager that lost its lease does not wait for its reconcilers, but they are cancelled. Their transactions get the time to be rolled
	// back, rather than be left to the servers.
	return errors.Join(failure, closeWithin(rollbackTimeout, databases, forGates))
}

// closeWithin closes all databases at once, or gives up when the time is over.
func closeWithin(limit time.Duration, all ...*controllers.Databases) error {
	closed := make(chan struct{})
	var closing sync.WaitGroup
	for _, databases := range all {
		closing.Go(databases.Close)
	}
	go func() {
		closing.Wait()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("work in a database did not end within %v of being cancelled; its connections are dropped", limit)
	}
}

// restConfig says how to reach the API server. The server itself limits who asks too much.
func restConfig(o *options) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	} else {
		config, err = ctrl.GetConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("find out how to reach the API server: %w", err)
	}
	config.QPS = -1
	return config, nil
}

// newManager makes the manager, with its probes and metrics.
func newManager(config *rest.Config, o *options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	graceful := shutdownTimeout
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Cache:  cache.Options{DefaultNamespaces: watched(o.namespaces), ByObject: cachedObjects()},
		// Read from the API server, always: a cache of these would need the right to list and watch them all.
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Pod{}, &corev1.Event{}, &corev1.Namespace{}},
		}},
		Metrics:                metricsOptions(o),
		HealthProbeBindAddress: o.healthAddress,

		LeaderElection:                o.leaderElect,
		LeaderElectionNamespace:       o.leaderNamespace,
		LeaderElectionID:              o.leaderName,
		LeaderElectionReleaseOnCancel: true, // the process ends right after
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		GracefulShutdownTimeout:       &graceful,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare the manager: %w", err)
	}
	ready := func(request *http.Request) error {
		if err := definitionsServed(mgr.GetRESTMapper()); err != nil {
			return err
		}
		if !mgr.GetCache().WaitForCacheSync(request.Context()) {
			return errors.New("the objects of the cluster are not all known yet")
		}
		return nil
	}
	return mgr, errors.Join(mgr.AddHealthzCheck("alive", healthz.Ping), mgr.AddReadyzCheck("objects", ready))
}

// definitionsServed says which of our kinds the API server does not know. Nothing is cached of such a kind, so nothing is missing from the cache.
func definitionsServed(mapper meta.RESTMapper) error {
	for _, kind := range []string{v1alpha1.KindSyncSchema, v1alpha1.KindBackfillCheckpoint} {
		if _, err := mapper.RESTMapping(v1alpha1.GroupVersion.WithKind(kind).GroupKind(), v1alpha1.GroupVersion.Version); err != nil {
			return fmt.Errorf("the CustomResourceDefinition of %s: %w", kind, err)
		}
	}
	return nil
}

// watched returns the namespaces that caches are kept of; none for all.
func watched(namespaces []string) map[string]cache.Config {
	if len(namespaces) == 0 {
		return nil
	}
	configs := map[string]cache.Config{}
	for _, namespace := range namespaces {
		configs[namespace] = cache.Config{}
	}
	return configs
}

// metricsOptions serves metrics by HTTPS, with a certificate made at the start, to whom the API server knows and allows.
func metricsOptions(o *options) metricsserver.Options {
	served := metricsserver.Options{BindAddress: o.metricsAddress}
	if !o.metricsOpen {
		served.SecureServing = true
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return served
}

// addControllers has the manager run the reconcilers.
func addControllers(ctx context.Context, mgr ctrl.Manager, databases, forGates *controllers.Databases, o *options) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	live := mgr.GetAPIReader()
	cluster, err := controllers.ClusterIdentity(ctx, live)
	if err != nil {
		return err
	}
	image, policy, err := workerImage(ctx, live, o)
	if err != nil {
		return err
	}
	recorder := mgr.GetEventRecorder("syncbarrier")
	schemas := &controllers.SyncSchemaReconciler{
		Client: mgr.GetClient(), Live: live, Databases: databases, Events: recorder, Clock: clock.Real{},
		Cluster: cluster, Resync: o.resync, Image: image, PullPolicy: policy, Named: o.webhook.served(),
	}
	checkpoints := &controllers.BackfillCheckpointReconciler{
		Client: mgr.GetClient(), Live: live, Databases: databases, Events: recorder, Clock: clock.Real{},
		Cluster: cluster, Resync: o.resync, Image: image, PullPolicy: policy,
	}
	working := controller.Options{MaxConcurrentReconciles: o.workers}
	gate := addGate(mgr, forGates, schemas, working, o) // before the SyncSchemas, which it tells of pods
	return errors.Join(gate, mgr.Add(databases), schemas.SetupWithManager(mgr, working), checkpoints.SetupWithManager(mgr, working))
}
