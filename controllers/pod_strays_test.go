package controllers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// TestStraysAreLookedForPageByPage reads pages as JSON, in which the last one has no field that says where the next one begins.
func TestStraysAreLookedForPageByPage(t *testing.T) {
	const stray = `{"metadata":{"name":%q,"namespace":"shop","uid":%[1]q},"spec":{"readinessGates":[{"conditionType":"` + v1alpha1.ReadinessGate + `"}]}}`
	pages := map[string]string{ // by what it is asked to continue with
		"":     `{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"next"},"items":[` + fmt.Sprintf(stray, "first") + `]}`,
		"next": `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[` + fmt.Sprintf(stray, "second") + `]}`,
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := r.URL.Query().Get("continue")
		if asked = append(asked, from); len(asked) > len(pages) {
			http.Error(w, "there is no other page", http.StatusGone)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = fmt.Fprint(w, pages[from])
	}))
	defer server.Close()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	live, err := client.New(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}},
		client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found := make(chan event.GenericEvent, 10)
	if err := (&PodReconciler{Live: live}).findStraysOnce(ctx, found); err != nil {
		t.Error(err)
	}
	close(found)
	var names []string
	for e := range found {
		names = append(names, e.Object.GetName())
	}
	if !slices.Equal(asked, []string{"", "next"}) || !slices.Equal(names, []string{"first", "second"}) {
		t.Errorf("pages %q were asked for, and %q found", asked, names)
	}
}
