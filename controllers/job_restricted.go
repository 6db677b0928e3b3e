package controllers

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Who may edit a SyncSchema need not be allowed to create pods or to read Secrets. So a template gives a worker what the work needs (resources,
// places, priorities, pull secrets, labels, sidecars), and never a right or a credential that its author would not have had: the pod stays within
// the pod security standard "restricted" in a namespace that does not enforce it too, and has no credential but the database's.

// restrictedProfile judges a pod as the API server's own admission does (Kubernetes documentation, "Pod Security Standards").
var restrictedProfile = sync.OnceValues(func() (policy.Evaluator, error) {
	return policy.NewEvaluator(policy.DefaultChecks(), nil)
})

// staysRestricted refuses a template that takes a pod out of the restricted profile, or hands credentials to it. field is the template's.
func staysRestricted(template *corev1.PodTemplateSpec, field string) error {
	evaluator, err := restrictedProfile()
	if err != nil {
		return fmt.Errorf("load the pod security standards: %w", err)
	}
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec))
	if !result.Allowed {
		return refuseTemplate(field, "the pod security standard \"restricted\" does not allow it: %s", result.ForbiddenDetail())
	}
	if given := credential(&template.Spec); given != "" {
		return refuseTemplate(field, "%s would hand a credential to the pod, which has the database's and no other", given)
	}
	return nil
}

// credential names the first field that gives a pod a credential beside the database's; empty: there is none. Secrets that images are pulled
// with stay with the kubelet.
func credential(pod *corev1.PodSpec) string {
	if pod.ServiceAccountName != "" || pod.DeprecatedServiceAccount != "" {
		return "spec.serviceAccountName" // clouds and meshes give rights to an account, token or none
	}
	for i := range pod.Volumes {
		if kind := credentialOfVolume(&pod.Volumes[i]); kind != "" && !strings.HasPrefix(pod.Volumes[i].Name, programName+"-") {
			return fmt.Sprintf("spec.volumes[%s].%s", pod.Volumes[i].Name, kind)
		}
	}
	if given := credentialOfContainers("initContainers", pod.InitContainers); given != "" {
		return given
	}
	return credentialOfContainers("containers", pod.Containers)
}

func credentialOfVolume(volume *corev1.Volume) string {
	switch {
	case volume.Secret != nil:
		return "secret"
	case volume.CSI != nil:
		return "csi" // what stores of secrets are mounted by
	case volume.Projected == nil:
		return ""
	}
	for _, source := range volume.Projected.Sources {
		// Named are the sources that are no credential, so that one of a later Kubernetes is none by mistake.
		if source.ConfigMap == nil && source.DownwardAPI == nil && source.ClusterTrustBundle == nil {
			return "projected"
		}
	}
	return ""
}

func credentialOfContainers(field string, containers []corev1.Container) string {
	for i := range containers {
		if from := credentialOfEnvironment(&containers[i]); from != "" {
			return fmt.Sprintf("spec.%s[%s].%s", field, containers[i].Name, from)
		}
	}
	return ""
}

func credentialOfEnvironment(container *corev1.Container) string {
	for _, from := range container.EnvFrom {
		if from.SecretRef != nil {
			return "envFrom.secretRef"
		}
	}
	for _, variable := range container.Env {
		if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
			return fmt.Sprintf("env[%s].valueFrom.secretKeyRef", variable.Name)
		}
	}
	return ""
}
