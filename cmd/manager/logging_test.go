package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOnlyWhatSomebodyMayHaveToDoSomethingAboutIsLoggedAsAnError(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	terminating := apierrors.NewForbidden(secrets, "x", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	cases := map[string]struct {
		err  error
		want string
	}{
		"two wrote the same object":           {fmt.Errorf("write: %w", apierrors.NewConflict(secrets, "x", errors.New("it was modified"))), "INFO"},
		"a namespace that is being deleted":   {terminating, "INFO"},
		"what the end cut short":              {fmt.Errorf("write: %w", context.Canceled), "INFO"},
		"a right that is missing":             {apierrors.NewForbidden(secrets, "x", errors.New("no role")), "ERROR"},
		"an object that the server refuses":   {apierrors.NewInvalid(schema.GroupKind{Kind: "Job"}, "x", nil), "ERROR"},
		"anything else":                       {errors.New("the port is taken"), "ERROR"},
		"nothing more than that it went awry": {nil, "ERROR"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logger := newLogger(&log, &options{logFormat: "json"}).WithName("part").WithValues("namespace", "shop")
			logger.Error(c.err, "it did not work", "name", "clinic")
			var entry struct{ Level, Msg, Logger, Namespace, Name, Err string }
			if err := json.Unmarshal(log.Bytes(), &entry); err != nil {
				t.Fatalf("%s: %v", log.Bytes(), err)
			}
			if entry.Level != c.want || entry.Msg != "it did not work" || entry.Logger != "part" || entry.Namespace != "shop" || entry.Name != "clinic" {
				t.Errorf("got %+v, want level %s and the rest as it was said", entry, c.want)
			}
			if c.err != nil && entry.Err != c.err.Error() {
				t.Errorf("the error is %q, want %q", entry.Err, c.err)
			}
		})
	}
}
