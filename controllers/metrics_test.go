package controllers

import (
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// TestNoScrapeMissesASeriesThatIsBeingReplaced scrapes while passes show the same again and again, as they do four times a second while a pod
// waits. An alert that has waited for an hour begins anew with one scrape that lacks its series.
func TestNoScrapeMissesASeriesThatIsBeingReplaced(t *testing.T) {
	name := types.NamespacedName{Namespace: "scraped", Name: "clinic"}
	reconciler := &PodReconciler{Refusals: &PodRefusals{}}
	pass := &podPass{name: name, facts: map[string]podgate.Facts{name.Name: {Found: true}}}
	pass.pods = []judgedPod{{pod: &corev1.Pod{}, verdict: podgate.Verdict{Reason: v1alpha1.ReasonBackfilling}}}
	show := func() {
		reconciler.show(pass)
		showReady(name.Namespace, v1alpha1.KindSyncSchema, name.Name, *reconciling(0, v1alpha1.ReasonBackfilling, ""))
	}
	forget := func() {
		reconciler.show(&podPass{name: name})
		forgetSchema(name.Namespace, name.Name, v1alpha1.KindSyncSchema)
	}
	show()
	stop := make(chan struct{})
	var shows sync.WaitGroup
	shows.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				show()
			}
		}
	})
	const series = 5
	for range 500 {
		page := scrape(t)
		found := strings.Count(page, `namespace="scraped"`)
		if found != series {
			t.Errorf("a scrape has %d series of the object instead of %d: %s", found, series, page)
			break
		}
	}
	close(stop)
	shows.Wait()

	pass.pods[0].verdict.Reason = v1alpha1.ReasonGateOpen
	show()
	if page := scrape(t); strings.Contains(page, `syncbarrier_gate_pods{namespace="scraped",reason="Backfilling"`) {
		t.Errorf("the series of a reason that is over is still there: %s", page)
	}
	forget()
	if page := scrape(t); strings.Contains(page, "scraped") {
		t.Errorf("series of what is gone are left: %s", page)
	}
}
