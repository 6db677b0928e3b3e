package webhook

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// found are the names of what is ours in the cluster.
type found struct {
	// service is the name of the Service, and of the Secret.
	service  string
	webhooks []rotator.WebhookInfo
}

// find waits until the webhook configurations and the Secret are there, or ctx ends. They come with the manager, in whatever order.
func (s *Server) find(ctx context.Context) found {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	said := ""
	for {
		names, missing, err := s.look(ctx)
		s.mu.Lock()
		s.absent = err == nil && names.service == ""
		s.mu.Unlock()
		if err == nil && missing == "" {
			return names
		}
		if err != nil {
			missing = err.Error()
		}
		if missing != said {
			said = missing
			s.mgr.GetLogger().Info("the webhook waits", "for", missing)
		}
		select {
		case <-ctx.Done():
			return found{}
		case <-ticker.C:
		}
	}
}

// look returns the names, or what is missing.
func (s *Server) look(ctx context.Context) (names found, missing string, err error) {
	live := s.mgr.GetAPIReader()
	labelled := client.MatchingLabels{"app.kubernetes.io/name": "syncbarrier"}
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	if err := live.List(ctx, &mutating, labelled); err != nil {
		return names, "", fmt.Errorf("list MutatingWebhookConfigurations: %w", err)
	}
	for _, configuration := range mutating.Items {
		for _, hook := range configuration.Webhooks {
			names.add(hook.ClientConfig, s.options.Namespace, rotator.WebhookInfo{Name: configuration.Name, Type: rotator.Mutating})
		}
	}
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	if err := live.List(ctx, &validating, labelled); err != nil {
		return names, "", fmt.Errorf("list ValidatingWebhookConfigurations: %w", err)
	}
	for _, configuration := range validating.Items {
		for _, hook := range configuration.Webhooks {
			names.add(hook.ClientConfig, s.options.Namespace, rotator.WebhookInfo{Name: configuration.Name, Type: rotator.Validating})
		}
	}
	if names.service == "" {
		return names, "a webhook configuration with the label app.kubernetes.io/name: syncbarrier and a Service in namespace " + s.options.Namespace, nil
	}
	key := types.NamespacedName{Namespace: s.options.Namespace, Name: names.service}
	switch err := live.Get(ctx, key, &corev1.Secret{}); {
	case apierrors.IsNotFound(err):
		return names, "Secret " + key.String(), nil
	case err != nil:
		return names, "", fmt.Errorf("read Secret %s: %w", key, err)
	}
	return names, "", nil
}

// add notes a configuration of which a webhook points at a Service of ours.
func (f *found) add(config admissionregistrationv1.WebhookClientConfig, namespace string, info rotator.WebhookInfo) {
	if config.Service == nil || config.Service.Namespace != namespace || config.Service.Path == nil {
		return
	}
	if !slices.Contains([]string{pathPods, pathDecisions, pathApprovals}, *config.Service.Path) {
		return
	}
	f.service = config.Service.Name
	if !slices.Contains(f.webhooks, info) {
		f.webhooks = append(f.webhooks, info)
	}
}
