package webhook

import (
	"context"
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// PodHandler answers for pods that are created: GatePod as a patch.
type PodHandler struct {
	decoder   admission.Decoder
	startGate bool
}

// NewPodHandler makes a PodHandler. startGate says that this installation takes start gates away again.
func NewPodHandler(scheme *runtime.Scheme, startGate bool) *PodHandler {
	return &PodHandler{decoder: admission.NewDecoder(scheme), startGate: startGate}
}

// Handle answers one request.
func (h *PodHandler) Handle(_ context.Context, request admission.Request) admission.Response {
	var pod corev1.Pod
	if err := h.decoder.Decode(request, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	// The patch is between two forms of the pod as this program knows it, so that it takes away no field which it does not know.
	before, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	warnings := GatePod(&pod, h.startGate)
	after, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(before, after).WithWarnings(warnings...)
}
