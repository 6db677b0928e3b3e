package controllers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	strictjson "sigs.k8s.io/json"
)

const (
	fieldWorkerTemplate = "spec.worker.template"
	fieldJobTemplate    = "spec.backfill.job.template"
	programVolume       = "syncbarrier-bin"
)

// workerTemplate gives the pod template: ours, with the user's partial ones merged over it by strategic merge, and what the work depends on
// held. A container of the user's own gets our program by an init container.
func workerTemplate(in workerJobInput) (*corev1.PodTemplateSpec, error) {
	ours := baseTemplate(in)
	template := ours
	if in.Worker != nil && in.Worker.Template != nil {
		merged, err := mergeTemplate(template, *in.Worker.Template, fieldWorkerTemplate)
		if err != nil {
			return nil, err
		}
		if err := holds(ours, merged, fieldWorkerTemplate); err != nil {
			return nil, err
		}
		if err := staysRestricted(merged, fieldWorkerTemplate); err != nil {
			return nil, err
		}
		template = merged
	}
	own := in.Checkpoint.Spec.Backfill.Job
	if own == nil {
		return template, nil
	}
	merged, err := mergeTemplate(template, own.Template, fieldJobTemplate)
	if err != nil {
		return nil, err
	}
	if err := holds(ours, merged, fieldJobTemplate); err != nil {
		return nil, err
	}
	if find(merged.Spec.Containers, workerContainer).Image == "" {
		return nil, refuseTemplate(fieldJobTemplate, "the container %q has no image: it is the one that does the work", workerContainer)
	}
	return merged, staysRestricted(merged, fieldJobTemplate)
}

func baseTemplate(in workerJobInput) *corev1.PodTemplateSpec {
	no, nonRoot, grace := false, true, int64(30)
	template := &corev1.PodTemplateSpec{}
	template.Labels, template.Annotations = jobLabels(in), map[string]string{}
	template.Spec = corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		TerminationGracePeriodSeconds: &grace,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &nonRoot, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if in.Checkpoint.Spec.Backfill.Job != nil {
		addOwnContainer(template, in)
	} else {
		template.Spec.Containers = []corev1.Container{sqlWorker(in)}
	}
	addDatabase(template, in.Database)
	return template
}

// sqlWorker is the container that runs SQL of the spec.
func sqlWorker(in workerJobInput) corev1.Container {
	container := restricted(corev1.Container{Name: workerContainer, Image: in.Image, ImagePullPolicy: in.PullPolicy})
	container.Command = []string{
		workerProgram, "backfill", in.Checkpoint.Spec.Name,
		"--claim", in.ClaimToken, "--index", "$(JOB_COMPLETION_INDEX)", "--of", strconv.Itoa(int(max(1, in.Parallelism))),
		"--database-file", databaseFolder,
	}
	if schema := in.Database.Schema; schema != "" {
		container.Command = append(container.Command, "--schema="+unexpanded(schema))
	}
	if pooler := in.Database.Pooler; pooler != "" {
		container.Command = append(container.Command, "--pooler="+string(pooler))
	}
	container.Command = append(container.Command, "--timeout=0", "--output=json")
	// The last lines of the log, ours alone, become the pod's termination message, from which the operator says why a worker ended.
	container.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	return container
}

// unexpanded writes a text so that the kubelet, which expands $(NAME) in a command and in variables, makes the text of it: $$ is how a dollar
// sign is written there, wherever it stands (Kubernetes API, Container.command).
func unexpanded(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// addOwnContainer prepares a container of the user's own: our program in a folder, and what to work on in its environment.
func addOwnContainer(template *corev1.PodTemplateSpec, in workerJobInput) {
	limit := resource.MustParse("256Mi")
	template.Spec.Volumes = []corev1.Volume{{
		Name: programVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}},
	}}
	install := restricted(corev1.Container{
		Name: installContainer, Image: in.Image, ImagePullPolicy: in.PullPolicy, Command: []string{workerProgram, "install-cli", programFolder},
		VolumeMounts: []corev1.VolumeMount{{Name: programVolume, MountPath: programFolder}},
	})
	template.Spec.InitContainers = []corev1.Container{install}
	worker := restricted(corev1.Container{Name: workerContainer})
	worker.SecurityContext.ReadOnlyRootFilesystem = nil // what the user's program writes to is its own affair
	worker.VolumeMounts = []corev1.VolumeMount{{Name: programVolume, MountPath: programFolder, ReadOnly: true}}
	worker.Env = []corev1.EnvVar{
		{Name: "SYNCBARRIER", Value: programFolder + workerProgram},
		{Name: "SYNCBARRIER_DATABASE_FILE", Value: databaseFolder},
		{Name: "SYNCBARRIER_SCHEMA", Value: unexpanded(in.Database.Schema)},
		{Name: "SYNCBARRIER_POOLER", Value: string(in.Database.Pooler)},
		{Name: "SYNCBARRIER_CHECKPOINT", Value: in.Checkpoint.Spec.Name},
		{Name: "SYNCBARRIER_CLAIM", Value: in.ClaimToken},
		{Name: "SYNCBARRIER_WORKERS", Value: strconv.Itoa(int(max(1, in.Parallelism)))},
	}
	template.Spec.Containers = []corev1.Container{worker}
}

// restricted gives a container what the pod security standard "restricted" asks for, and resources that a quota can count.
func restricted(container corev1.Container) corev1.Container {
	no, yes := false, true
	container.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	container.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
	return container
}

// mergeTemplate merges a partial pod template over another. Fields that a pod template does not have are refused: the API server keeps
// the template without looking into it, and a field that is misspelt would be lost without a word.
func mergeTemplate(under *corev1.PodTemplateSpec, over runtime.RawExtension, field string) (*corev1.PodTemplateSpec, error) {
	if len(over.Raw) == 0 {
		return under, nil
	}
	strict, err := strictjson.UnmarshalStrict(over.Raw, &corev1.PodTemplateSpec{})
	if err != nil {
		return nil, refuseTemplate(field, "it is no pod template: %v", err)
	}
	if len(strict) > 0 {
		return nil, refuseTemplate(field, "%v", strict[0])
	}
	base, err := json.Marshal(under)
	if err != nil {
		return nil, fmt.Errorf("encode the worker's pod template: %w", err)
	}
	text, err := strategicpatch.StrategicMergePatch(base, over.Raw, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, refuseTemplate(field, "it cannot be merged: %v", err)
	}
	merged := &corev1.PodTemplateSpec{}
	if err := json.Unmarshal(text, merged); err != nil {
		return nil, fmt.Errorf("decode the merged pod template: %w", err)
	}
	return merged, nil
}

// heldPart is a part of the template that a user's template cannot change.
type heldPart struct {
	field string
	part  func(*corev1.PodTemplateSpec) any
}

// heldParts are what the work, its safety and its bookkeeping depend on.
var heldParts = []heldPart{
	{"metadata.labels with the prefix " + labelPrefix, func(t *corev1.PodTemplateSpec) any { return withPrefix(t.Labels) }},
	{"metadata.annotations with the prefix " + labelPrefix, func(t *corev1.PodTemplateSpec) any { return withPrefix(t.Annotations) }},
	{"spec.restartPolicy", func(t *corev1.PodTemplateSpec) any { return t.Spec.RestartPolicy }},
	{"spec.automountServiceAccountToken", func(t *corev1.PodTemplateSpec) any { return t.Spec.AutomountServiceAccountToken }},
	{"spec.hostNetwork, hostPID and hostIPC", func(t *corev1.PodTemplateSpec) any {
		return []bool{t.Spec.HostNetwork, t.Spec.HostPID, t.Spec.HostIPC}
	}},
	{"spec.volumes with the prefix " + programName + "-", func(t *corev1.PodTemplateSpec) any {
		return slices.DeleteFunc(slices.Clone(t.Spec.Volumes), func(v corev1.Volume) bool { return !strings.HasPrefix(v.Name, programName+"-") })
	}},
	{"spec.initContainers[" + installContainer + "]", func(t *corev1.PodTemplateSpec) any {
		c := find(t.Spec.InitContainers, installContainer)
		c.Resources = corev1.ResourceRequirements{}
		return c
	}},
	{"spec.containers[worker].volumeMounts at " + databaseFolder + " or " + programFolder, func(t *corev1.PodTemplateSpec) any {
		return slices.DeleteFunc(slices.Clone(find(t.Spec.Containers, workerContainer).VolumeMounts), func(m corev1.VolumeMount) bool {
			return !strings.HasPrefix(m.Name, programName+"-") && m.MountPath != databaseFolder && m.MountPath != programFolder
		})
	}},
	{"spec.containers[worker].env with the prefix SYNCBARRIER", func(t *corev1.PodTemplateSpec) any {
		return slices.DeleteFunc(slices.Clone(find(t.Spec.Containers, workerContainer).Env), func(e corev1.EnvVar) bool {
			return !strings.HasPrefix(e.Name, "SYNCBARRIER") && e.Name != "JOB_COMPLETION_INDEX"
		})
	}},
	{"spec.containers[worker].securityContext", func(t *corev1.PodTemplateSpec) any {
		c := find(t.Spec.Containers, workerContainer).SecurityContext
		if c == nil {
			return nil
		}
		return []any{c.AllowPrivilegeEscalation, c.Privileged, c.Capabilities, c.RunAsNonRoot}
	}},
}

// heldForSQL holds beside them where the container is ours: its program, and that nobody else in the pod reads the database's password.
var heldForSQL = []heldPart{
	{"spec.containers[worker].image", func(t *corev1.PodTemplateSpec) any { return find(t.Spec.Containers, workerContainer).Image }},
	{"spec.containers[worker].securityContext.readOnlyRootFilesystem", func(t *corev1.PodTemplateSpec) any {
		if c := find(t.Spec.Containers, workerContainer).SecurityContext; c != nil {
			return c.ReadOnlyRootFilesystem
		}
		return nil
	}},
	{"spec.shareProcessNamespace", func(t *corev1.PodTemplateSpec) any { return t.Spec.ShareProcessNamespace }},
	{"a mount of a volume with the prefix " + programName + "- in another container", func(t *corev1.PodTemplateSpec) any {
		var mounting []string
		for _, container := range slices.Concat(t.Spec.InitContainers, t.Spec.Containers) {
			ours := func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, programName+"-") }
			if container.Name != workerContainer && slices.ContainsFunc(container.VolumeMounts, ours) {
				mounting = append(mounting, container.Name)
			}
		}
		return mounting
	}},
	{"spec.containers[worker].command", func(t *corev1.PodTemplateSpec) any { return find(t.Spec.Containers, workerContainer).Command }},
	{"spec.containers[worker].args", func(t *corev1.PodTemplateSpec) any { return find(t.Spec.Containers, workerContainer).Args }},
	{"spec.containers[worker].workingDir", func(t *corev1.PodTemplateSpec) any { return find(t.Spec.Containers, workerContainer).WorkingDir }},
	{"spec.containers[worker].terminationMessagePath and terminationMessagePolicy", func(t *corev1.PodTemplateSpec) any {
		c := find(t.Spec.Containers, workerContainer)
		return []any{c.TerminationMessagePath, c.TerminationMessagePolicy}
	}},
}

// holds refuses a template that changes a held part.
func holds(ours, merged *corev1.PodTemplateSpec, field string) error {
	parts := heldParts
	if len(find(ours.Spec.Containers, workerContainer).Command) > 0 {
		parts = slices.Concat(heldParts, heldForSQL)
	}
	for _, held := range parts {
		if !equality.Semantic.DeepEqual(held.part(ours), held.part(merged)) {
			return refuseTemplate(field, "%s cannot be changed: the backfill depends on it", held.field)
		}
	}
	return nil
}

func find(containers []corev1.Container, name string) corev1.Container {
	for _, container := range containers {
		if container.Name == name {
			return container
		}
	}
	return corev1.Container{}
}

func withPrefix(values map[string]string) map[string]string {
	ours := maps.Clone(values)
	maps.DeleteFunc(ours, func(key, _ string) bool { return !strings.HasPrefix(key, labelPrefix) })
	return ours
}
