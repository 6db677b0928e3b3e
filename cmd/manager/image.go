package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// managerContainer is the name of our container in config/manager.
const managerContainer = "manager"

// workerImage says which image the backfill workers run, and how it is pulled: the one of this very pod, so that whoever names an image
// for the operator (kustomize, a mirror, a digest) has named it for the workers too. Outside a pod the option must say it.
func workerImage(ctx context.Context, live client.Reader, o *options) (string, corev1.PullPolicy, error) {
	if o.workerImage != "" {
		return o.workerImage, "", nil
	}
	if o.podName == "" || o.podNamespace == "" {
		return "", "", errors.New("outside a pod (no POD_NAME and POD_NAMESPACE) --worker-image must name the image of the backfill workers")
	}
	var pod corev1.Pod
	if err := live.Get(ctx, types.NamespacedName{Namespace: o.podNamespace, Name: o.podName}, &pod); err != nil {
		return "", "", fmt.Errorf("read the image of this pod: %w", err)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == managerContainer {
			return exactImage(container.Image, pod.Status.ContainerStatuses), container.ImagePullPolicy, nil
		}
	}
	return "", "", fmt.Errorf("pod %s/%s has no container %q: --worker-image must name the image of the backfill workers", o.podNamespace, o.podName, managerContainer)
}

// exactImage returns the image by its digest, if the pod's status says which one that is: a tag may have moved since. The status has names
// of another repository where an image was loaded by hand; then the tag is all there is.
func exactImage(image string, statuses []corev1.ContainerStatus) string {
	for _, status := range statuses {
		if status.Name != managerContainer {
			continue
		}
		running := strings.TrimPrefix(status.ImageID, "docker-pullable://")
		if strings.HasPrefix(running, repository(image)+"@sha256:") {
			return running
		}
	}
	return image
}

// repository returns an image's name without digest and tag. A colon before the last slash is that of a port.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		return image[:colon]
	}
	return image
}
