package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// outages stop the API server under the operator: before each kind of request that it makes for the first time, in turn by SIGSTOP and by
// SIGKILL, and for writes also by SIGKILL after the server did what was asked and before its answer arrives.
type outages struct {
	next    http.RoundTripper
	done    map[string]bool
	turn    int
	restore func() // not nil while the server is down
	log     []string
}

// patience is how long the operator waits for a server that is frozen.
const patience = 300 * time.Millisecond

// errAnswered is what a server may not do that is frozen or dead.
var errAnswered = errors.New("a server that is away answered")

// errAnswerLost is what a client sees whose server died with the answer.
var errAnswerLost = errors.New("EOF: the server died before it answered")

// WrappedRoundTripper lets client-go cancel what waits for a frozen server.
func (o *outages) WrappedRoundTripper() http.RoundTripper { return o.next }

func (o *outages) RoundTrip(request *http.Request) (*http.Response, error) {
	what := askedFor(request)
	if o.restore != nil {
		return o.giveUp(request)
	}
	if o.done[what] {
		return o.next.RoundTrip(request)
	}
	o.done[what] = true
	if request.Method != http.MethodGet && !o.done["answer of "+what] {
		o.done["answer of "+what], o.done[what] = true, false // the next time before it
		return o.loseAnswer(what, request)
	}
	o.turn++
	if o.turn%2 == 0 {
		o.note("killed before", what)
		suite.cluster.KillAPIServer()
		o.restore = suite.cluster.RestartAPIServer
	} else {
		o.note("frozen before", what)
		suite.cluster.FreezeAPIServer()
		o.restore = suite.cluster.ContinueAPIServer
	}
	return o.giveUp(request)
}

// giveUp asks a server that is away, and does not wait for it as long as a client would.
func (o *outages) giveUp(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(request.Context(), patience)
	defer cancel() // no body is read of an answer: there is none
	response, err := o.next.RoundTrip(request.WithContext(ctx))
	if err == nil {
		err = errors.Join(errAnswered, response.Body.Close())
	}
	return nil, err
}

func (o *outages) loseAnswer(what string, request *http.Request) (*http.Response, error) {
	o.note("killed after", what)
	response, err := o.next.RoundTrip(request)
	suite.cluster.KillAPIServer()
	o.restore = suite.cluster.RestartAPIServer
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(errAnswerLost, response.Body.Close())
}

// again lets each kind of write meet its outages once more. What is read is the same for every version.
func (o *outages) again() {
	maps.DeleteFunc(o.done, func(what string, _ bool) bool { return !strings.HasPrefix(what, http.MethodGet+" ") })
}

func (o *outages) note(when, what string) { o.log = append(o.log, when+" "+what) }

// askedFor is a request's method and address without the namespace's name and the object's.
func askedFor(request *http.Request) string {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	for i, part := range parts {
		if part == "namespaces" && i+2 < len(parts) {
			parts = parts[i+2:]
			break
		}
	}
	if len(parts) > 2 {
		parts[1] = "*" // a subresource's object
	} else if len(parts) == 2 {
		parts = parts[:1]
	}
	return request.Method + " " + strings.Join(parts, "/")
}

var _ = Describe("An API server that is stopped in the middle", func() {
	It("of anything costs no work, and leaves nothing half done", func() {
		w := newWorld()
		o := &outages{done: map[string]bool{}}
		w.goThrough(o)

		for _, version := range []int32{6, 7} {
			w.apply(w.clinic(version))
			o.again()
			w.endure(o, fmt.Sprintf("version %d", version))
		}
		AddReportEntry("outages", strings.Join(o.log, "\n"))
		Expect(o.log).To(ContainElements(
			HaveSuffix("GET syncschemas"), HaveSuffix("GET secrets"), HaveSuffix("GET jobs"),
			"killed after POST backfillcheckpoints", "killed after POST jobs", HaveSuffix("before POST jobs"),
			"killed after PATCH syncschemas/*/status", HaveSuffix("before PATCH syncschemas/*/status"),
			"killed after PATCH backfillcheckpoints/*/status", HaveSuffix("before PATCH backfillcheckpoints/*/status")))
		Expect(w.number(`SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(7))
		Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(2))
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1), "one claim")
		Expect(w.number(`SELECT sum(rows_done) FROM sync_backfill_progress WHERE kind = 'range'`)).To(BeEquivalentTo(300))
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = lower(name)`)).To(BeEquivalentTo(300))
	})
})

// goThrough has the operator speak to the API server by way of the outages.
func (w *world) goThrough(o *outages) {
	GinkgoHelper()
	config := rest.CopyConfig(suite.operatorConfig)
	config.Timeout = time.Minute
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		o.next = next
		return o
	}
	through, err := client.New(config, client.Options{Scheme: suite.scheme, Mapper: suite.admin.RESTMapper()})
	Expect(err).NotTo(HaveOccurred())
	w.schemas.Client, w.schemas.Live = through, through
	w.checkpoints.Client, w.checkpoints.Live = through, through
}

// endure makes passes until the schema is Ready and a whole round passed without an outage.
func (w *world) endure(o *outages, what string) {
	GinkgoHelper()
	const mostRounds = 60
	for range mostRounds {
		before := len(o.log)
		w.endureOne(o, w.schemas, "clinic")
		var all v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
		for i := range all.Items {
			w.endureOne(o, w.checkpoints, all.Items[i].Name)
		}
		w.runWorkers()
		w.clock.advance(watchEvery)
		if len(o.log) == before && readyReason(w.schema().Status.Conditions) == v1alpha1.ReasonGateOpen {
			return
		}
	}
	Fail(what + " is not Ready: " + describeConditions(w.schema().Status.Conditions))
}

// endureOne makes a pass. One in which the API server went away fails, in bounded time; any other does not.
func (w *world) endureOne(o *outages, reconciler reconcile.Reconciler, name string) {
	GinkgoHelper()
	var err error
	ended := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(ended)
		_, err = reconciler.Reconcile(w.ctx, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: name}})
	}()
	Eventually(ended, time.Minute).Should(BeClosed(), "a pass over %s ends", name)
	if o.restore == nil {
		Expect(err).NotTo(HaveOccurred())
		return
	}
	o.restore()
	o.restore = nil
}
