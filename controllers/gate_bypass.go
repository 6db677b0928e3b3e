package controllers

import (
	"fmt"
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// bypassOf reads the annotation by which a person opens a gate for a time: <until, RFC 3339>;<reason>. nil: there is none that holds now.
//
// Errors: the annotation cannot be read, or gives no reason. Then it opens nothing.
func bypassOf(object *v1alpha1.SyncSchema, now time.Time) (*podgate.Bypass, error) {
	text, given := object.Annotations[v1alpha1.AnnotationBypass]
	if !given {
		return nil, nil
	}
	first, reason, _ := strings.Cut(text, ";")
	until, err := time.Parse(time.RFC3339, strings.TrimSpace(first))
	if err != nil {
		return nil, fmt.Errorf("the annotation %s is %q; it opens nothing: <until, RFC 3339>;<reason> is expected", v1alpha1.AnnotationBypass, cut(text, 80))
	}
	if reason = strings.TrimSpace(reason); reason == "" {
		return nil, fmt.Errorf("the annotation %s gives no reason; it opens nothing: <until, RFC 3339>;<reason> is expected", v1alpha1.AnnotationBypass)
	}
	if !until.After(now) {
		return nil, nil
	}
	return &podgate.Bypass{Until: until, Reason: cut(reason, 200)}, nil
}

// bypassedBy names who wrote the annotation: the user, where the webhook writes the name, so that nobody else can; else the program, as the
// API server recorded it. Empty: it did not.
func bypassedBy(object *v1alpha1.SyncSchema, named bool) string {
	if user := object.Annotations[v1alpha1.AnnotationBypassedBy]; named && user != "" {
		return cut(user, 200)
	}
	field := fmt.Sprintf("%q", "f:"+v1alpha1.AnnotationBypass)
	for _, entry := range object.ManagedFields {
		if entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), field) {
			return entry.Manager
		}
	}
	return ""
}
