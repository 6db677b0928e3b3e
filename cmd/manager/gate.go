package main

import (
	"errors"
	"fmt"
	"net"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// cachedObjects says of which kinds not every object is cached: of pods those that ask for the gate, and little of each; of Jobs those that the
// operator made.
func cachedObjects() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}: {
			Label:     labels.SelectorFromSet(labels.Set{v1alpha1.LabelGate: v1alpha1.GateEnabled}),
			Transform: controllers.StripPod,
		},
		&batchv1.Job{}: {Label: controllers.JobSelector()},
	}
}

// addGate has the manager keep the gate's condition on pods, and answer by HTTP if an address is given. It gives the reconciler of SyncSchemas,
// which is not set up yet, the pods to look at.
func addGate(mgr ctrl.Manager, databases *controllers.Databases, schemas *controllers.SyncSchemaReconciler, working controller.Options, o *options) error {
	const mostChanges = 1024 // of SyncSchemas that wait to be told; the next pass tells what found no place
	changed := make(chan event.GenericEvent, mostChanges)
	gates := &controllers.Gates{Live: mgr.GetAPIReader(), Databases: databases, Clock: clock.Real{}}
	workloads := &controllers.Workloads{Live: mgr.GetAPIReader(), Clock: clock.Real{}}
	refusals := &controllers.PodRefusals{}
	schemas.Pods, schemas.Workloads, schemas.Changed, schemas.Refusals = mgr.GetCache(), workloads, changed, refusals
	pods := &controllers.PodReconciler{
		Client: mgr.GetClient(), Pods: mgr.GetCache(), Workloads: workloads, Gates: gates,
		Events: mgr.GetEventRecorder("syncbarrier"), Clock: clock.Real{}, Changed: changed, StartGates: o.webhook.startGate,
		Cluster: schemas.Cluster, Refusals: refusals, Live: mgr.GetAPIReader(), Namespaces: o.namespaces,
	}
	if err := errors.Join(mgr.Add(gates), pods.SetupWithManager(mgr, working)); err != nil {
		return err
	}
	if o.gateAddress == "0" || o.gateAddress == "" {
		return nil
	}
	listener, err := net.Listen("tcp", o.gateAddress)
	if err != nil {
		return fmt.Errorf("--gate-bind-address: %w", err)
	}
	return mgr.Add(&controllers.GateServer{Client: mgr.GetClient(), Gates: gates, Clock: clock.Real{}, Cluster: schemas.Cluster, Listener: listener})
}
