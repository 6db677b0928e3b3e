package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// Most specs call reconcilers directly. Here a manager does, so that what wakes them is looked at too: the resync is longer than the spec.
var _ = Describe("Reconcilers of a manager", func() {
	const patience = time.Minute

	It("are woken by changes of their objects, their children and their Jobs, and events that repeat become one", func() {
		w := newWorld()
		mgr, databases := w.startManager()
		reason := func() string { return readyReason(w.schema().Status.Conditions) }
		others := takeTurns(databases, w.dsn)
		w.apply(w.clinic(6))
		Eventually(reason, patience).Should(Equal(v1alpha1.ReasonMigrating))
		others() // without being woken it would come again after minutes
		Eventually(reason, patience).Should(Equal(v1alpha1.ReasonGateOpen))
		w.apply(w.clinic(7))
		Eventually(w.jobs, patience).Should(HaveLen(1))

		deleted := w.jobs()[0]
		Expect(suite.admin.Delete(w.ctx, &deleted, client.PropagationPolicy("Background"))).To(Succeed())
		Eventually(func() []batchv1.Job { return w.jobs() }, patience).Should(
			ConsistOf(HaveField("Name", Not(Equal(deleted.Name)))), "another Job takes the place of one that was deleted")
		for _, err := range w.runWorkers() {
			Expect(err).NotTo(HaveOccurred())
		}
		Eventually(reason, patience).Should(Equal(v1alpha1.ReasonGateOpen))

		recorder, object := mgr.GetEventRecorder("syncbarrier"), w.schema()
		for range 2 {
			recorder.Eventf(object, nil, corev1.EventTypeWarning, "Repeated", "Repeat", "said twice")
		}
		Eventually(func(g Gomega) {
			var list eventsv1.EventList
			g.Expect(suite.admin.List(w.ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
			g.Expect(list.Items).To(ContainElement(And(HaveField("Reason", "Repeated"), HaveField("Series.Count", BeEquivalentTo(2)))))
		}, patience).Should(Succeed())
	})
})

// takeTurns has somebody at a barrier on a server and many who wait for one, until they all had it.
func takeTurns(databases *Databases, dsn string) (giveAll func()) {
	GinkgoHelper()
	const many = 400
	at, err := url.Parse(dsn)
	Expect(err).NotTo(HaveOccurred())
	databases.mu.Lock()
	turns := &databases.serverOf(at.Host).barrier
	databases.mu.Unlock()
	for n := range many {
		turns.take(types.UID(fmt.Sprint(n)), func() {})
	}
	return func() {
		for range many {
			turns.give()
		}
	}
}

// listing stands for an API server that does not stream what there is into a watch, as older ones do not: a cache lists it then, which is a right
// of its own.
type listing struct{ next http.RoundTripper }

func (l listing) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("sendInitialEvents") != "true" {
		return l.next.RoundTrip(request)
	}
	refusal, err := json.Marshal(apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", field.ErrorList{
		field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
	}).Status())
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusUnprocessableEntity, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(refusal)), Request: request,
	}, nil
}

// startManager runs the world's reconcilers in a manager that works on its namespace, as the operator's account, until the spec ends.
func (w *world) startManager() (ctrl.Manager, *Databases) {
	GinkgoHelper()
	again := true // a process may have one controller of a name, unless it says so
	config := rest.CopyConfig(suite.operatorConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return listing{next} })
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: suite.scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}},
	})
	Expect(err).NotTo(HaveOccurred())
	databases := NewDatabases(openDatabase, nil)
	schemas := &SyncSchemaReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Databases: databases, Events: mgr.GetEventRecorder("syncbarrier"),
		Cluster: suite.identity, Image: "syncbarrier:test",
	}
	checkpoints := &BackfillCheckpointReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Databases: databases, Events: mgr.GetEventRecorder("syncbarrier"),
		Cluster: suite.identity, Image: "syncbarrier:test",
	}
	options := controller.Options{SkipNameValidation: &again}
	Expect(schemas.SetupWithManager(mgr, options)).To(Succeed())
	Expect(checkpoints.SetupWithManager(mgr, options)).To(Succeed())
	Expect(mgr.Add(databases)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	DeferCleanup(func() {
		cancel()
		Eventually(ended, time.Minute).Should(Receive(BeNil()))
	})
	return mgr, databases
}
