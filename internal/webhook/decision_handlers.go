package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// DecisionRecorder answers for SyncSchemas that are created or changed: RecordDecisions as a patch.
type DecisionRecorder struct{}

// Handle answers one request.
func (DecisionRecorder) Handle(_ context.Context, request admission.Request) admission.Response {
	old, changed, err := annotations(request)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	want := RecordDecisions(old, changed, request.UserInfo.Username)
	if maps.Equal(want, changed) {
		return admission.Allowed("")
	}
	// Nothing but the annotations is touched, so that a field which this program does not know yet is kept.
	var object map[string]any
	if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("read the object: %w", err))
	}
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("the object has no metadata"))
	}
	metadata["annotations"] = want
	patched, err := json.Marshal(object)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, patched)
}

// ApprovalChecker answers for SyncSchemas that are created or changed: whoever approves a plan needs the verb `approve` on that object
// (docs/design.md section 7, Approval).
type ApprovalChecker struct {
	// Client asks the API server who may do what.
	Client client.Writer
}

// Handle answers one request.
func (h ApprovalChecker) Handle(ctx context.Context, request admission.Request) admission.Response {
	old, changed, err := annotations(request)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if approves(old, changed) == "" {
		return admission.Allowed("")
	}
	review := accessReview(request)
	if err := h.Client.Create(ctx, review); err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("ask whether %s may approve: %w", request.UserInfo.Username, err))
	}
	if !review.Status.Allowed {
		return admission.Denied(fmt.Sprintf("%s may not approve: the right to %q %s in namespace %s is missing (ClusterRole syncbarrier-approver has it)",
			request.UserInfo.Username, v1alpha1.VerbApprove, request.Resource.Resource, request.Namespace))
	}
	return admission.Allowed("")
}

// accessReview asks whether whoever made the request may approve its object.
func accessReview(request admission.Request) *authorizationv1.SubjectAccessReview {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range request.UserInfo.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: request.UserInfo.Username, UID: request.UserInfo.UID, Groups: request.UserInfo.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: request.Namespace, Name: request.Name, Verb: v1alpha1.VerbApprove,
			Group: request.Resource.Group, Version: request.Resource.Version, Resource: request.Resource.Resource,
		},
	}}
}

// annotations are those of the object before the change, nil if it is created, and after.
func annotations(request admission.Request) (old, changed map[string]string, err error) {
	var object, oldObject metav1.PartialObjectMetadata
	if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
		return nil, nil, fmt.Errorf("read the object: %w", err)
	}
	if len(request.OldObject.Raw) > 0 {
		if err := json.Unmarshal(request.OldObject.Raw, &oldObject); err != nil {
			return nil, nil, fmt.Errorf("read the object as it was: %w", err)
		}
	}
	return oldObject.Annotations, object.Annotations, nil
}
