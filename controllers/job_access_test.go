package controllers

import (
	"errors"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatAJobIsRefusedForIsToldApart: a template that is refused is the author's to change; a right that is missing, a namespace that is
// going away and a server that is busy are not.
func TestWhatAJobIsRefusedForIsToldApart(t *testing.T) {
	jobs := batchv1.Resource("jobs")
	terminating := apierrors.NewForbidden(jobs, "clinic-1", errors.New("namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"schema":               {apierrors.NewInvalid(batchv1.SchemeGroupVersion.WithKind("Job").GroupKind(), "clinic-1", nil), true},
		"not to be decoded":    {apierrors.NewBadRequest("unknown field"), true},
		"quota or admission":   {apierrors.NewForbidden(jobs, "clinic-1", errors.New("exceeded quota")), true},
		"missing right":        {apierrors.NewForbidden(jobs, "", errors.New(`User "x" cannot create resource "jobs"`)), false},
		"namespace going away": {terminating, false},
		"busy":                 {apierrors.NewTooManyRequests("later", 1), false},
		"no answer":            {errors.New("connection refused"), false},
		"server's own mistake": {apierrors.NewInternalError(errors.New("x")), false},
		"webhook out of reach": {apierrors.NewServiceUnavailable("x"), false},
	} {
		if got := refusedByContent(c.err); got != c.want {
			t.Errorf("%s: refused by content is %t", name, got)
		}
	}
}
