package controllers

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// aClaim is the input of a Job with everything that most users leave out left out.
func aClaim() workerJobInput {
	return workerJobInput{
		Checkpoint: &v1alpha1.BackfillCheckpoint{
			ObjectMeta: metav1.ObjectMeta{Name: "clinic-title-norm", Namespace: "shop", UID: "8c9c9a3e-0000-0000-0000-000000000000", Labels: map[string]string{"team": "a"}},
			Spec: v1alpha1.BackfillCheckpointSpec{
				SchemaRef: v1alpha1.SchemaReference{Name: "clinic"}, Checkpoint: v1alpha1.Checkpoint{Name: "title-norm", Version: 7},
			},
		},
		Database: &v1alpha1.PostgresDatabase{
			URLFrom: &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: "clinic-app", Key: "uri"}}, Schema: "public", Pooler: v1alpha1.PoolerNone,
		},
		ClaimToken: "0123456789abcdef0123456789abcdef", ClaimNumber: 3, Parallelism: 2, Image: "registry.example/syncbarrier@sha256:1234",
	}
}

func ofParts() *v1alpha1.PostgresDatabase {
	key := func(name, key string) *v1alpha1.SecretValue {
		return &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: name, Key: key}}
	}
	port := int32(6432)
	return &v1alpha1.PostgresDatabase{
		Connection: &v1alpha1.PostgresConnection{
			Host: "clinic-rw", Port: &port, DatabaseFrom: key("clinic-app", "dbname"), SSLMode: "verify-full",
			UserFrom: *key("clinic-app", "username"), PasswordFrom: key("clinic-app", "password"),
		},
		TLS:    &v1alpha1.PostgresTLS{CAFrom: key("clinic-ca", "ca.crt"), CertFrom: key("clinic-client", "tls.crt"), KeyFrom: key("clinic-client", "tls.key")},
		Schema: "$(HOME)", Pooler: v1alpha1.PoolerTransaction,
	}
}

// template gives a partial pod template as a user writes it.
func template(t *testing.T, text string) runtime.RawExtension {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: raw}
}

func withWorker(t *testing.T, text string) workerJobInput {
	t.Helper()
	in, partial := aClaim(), template(t, text)
	in.Worker = &v1alpha1.Worker{Template: &partial}
	return in
}

func withOwnContainer(t *testing.T, text string) workerJobInput {
	t.Helper()
	in := aClaim()
	in.Checkpoint.Spec.Backfill.Job = &v1alpha1.JobBackfill{Template: template(t, text)}
	return in
}

func TestJobsAreExactlyThese(t *testing.T) {
	parts := aClaim()
	parts.Database, parts.Suspended = ofParts(), true
	for name, in := range map[string]workerJobInput{
		"url":   aClaim(),
		"parts": parts,
		"own":   withOwnContainer(t, `{spec: {containers: [{name: worker, image: shop/backfill:7, command: [/backfill]}]}}`),
	} {
		t.Run(name, func(t *testing.T) {
			job, err := newWorkerJob(in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(job)
			if err != nil {
				t.Fatal(err)
			}
			path := "testdata/job-" + name + ".yaml"
			if os.Getenv("SYNCBARRIER_WRITE_GOLDEN") != "" {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s is no longer what is made (SYNCBARRIER_WRITE_GOLDEN=1 writes it):\n%s", path, got)
			}
		})
	}
}

func TestJobNamesFitAndTellClaimsApart(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "clinic-title-norm", "shop.clinic.title", strings.Repeat("x", 63), strings.Repeat("x", 62) + "y",
		strings.Repeat("ab-", 20) + "abc"} {
		for _, number := range []int64{1, 2, 9_223_372_036_854_775_807} {
			for _, token := range []string{"one", "two"} {
				in := aClaim()
				in.Checkpoint.Name, in.ClaimNumber, in.ClaimToken = name, number, token
				job, err := newWorkerJob(in)
				if err != nil {
					t.Fatal(err)
				}
				if problems := validation.IsDNS1123Label(job.Name + "-63-abcde"); len(job.Name) > 52 || len(problems) > 0 {
					t.Errorf("%q: %v", job.Name, problems)
				}
				if before, taken := seen[job.Name]; taken {
					t.Errorf("%s: both of %s and of %s", job.Name, before, name)
				}
				seen[job.Name] = name
				if gotNumber, gotToken, ok := jobClaim(job); !ok || gotNumber != number || gotToken != token {
					t.Errorf("claim %d of %s is read back as %d of %s", number, token, gotNumber, gotToken)
				}
			}
		}
	}
}

func TestAJobIsAskedForAsLongAsDatabaseAndTemplateAreTheSame(t *testing.T) {
	in := withWorker(t, `{spec: {priorityClassName: low}}`)
	job, err := newWorkerJob(in)
	if err != nil {
		t.Fatal(err)
	}
	other := withWorker(t, `{spec: {priorityClassName: high}}`)
	switch {
	case !stillAsked(job, in.Database, in.Worker):
		t.Error("nothing was changed, and it is no longer asked for")
	case stillAsked(job, ofParts(), in.Worker):
		t.Error("another database is not noticed")
	case stillAsked(job, in.Database, other.Worker) || stillAsked(job, in.Database, nil):
		t.Error("another template is not noticed")
	}
	same, reordered := template(t, "{spec: {priorityClassName: low}, metadata: {labels: {a: b}}}"), runtime.RawExtension{
		Raw: []byte("{ \"metadata\": {\"labels\": {\"a\": \"b\"}},\n \"spec\": {\"priorityClassName\": \"low\"} }"),
	}
	defaults := *in.Database
	defaults.Schema, defaults.Pooler = "", ""
	switch {
	case askedBy(in.Database, &v1alpha1.Worker{Template: &same}) != askedBy(in.Database, &v1alpha1.Worker{Template: &reordered}):
		t.Error("the order of keys counts")
	case askedBy(&defaults, nil) != askedBy(in.Database, nil) || askedBy(in.Database, &v1alpha1.Worker{}) != askedBy(in.Database, nil):
		t.Error("what is written out counts otherwise than what is left out and means the same")
	}
	for _, by := range []string{"", "e3a792e533679f01", "2-e3a792e533679f01"} {
		job.Annotations[annotationAsked] = by
		if !stillAsked(job, ofParts(), nil) {
			t.Errorf("a Job of an operator that noted %q is not left alone", by)
		}
	}
}

// A hash that comes out otherwise replaces every Job that runs when the operator is upgraded. So these stand here as they are: whoever changes
// what is hashed changes askedForm with it.
func TestWhatAJobIsAskedByIsTheSameFromOneOperatorToTheNext(t *testing.T) {
	for want, in := range map[string]workerJobInput{
		"1-803e1208839828e7": withWorker(t, `{spec: {priorityClassName: low}, metadata: {labels: {a: b}}}`),
		"1-807da31254013473": {Database: ofParts()},
	} {
		if got := askedBy(in.Database, in.Worker); got != want {
			t.Errorf("it is %s, and was %s", got, want)
		}
	}
}

func TestAUsersTemplateIsMergedOverOurs(t *testing.T) {
	job, err := newWorkerJob(withWorker(t, `
metadata:
  labels: {sidecar.istio.io/inject: "false"}
  annotations: {note: mine}
spec:
  priorityClassName: low
  tolerations: [{key: batch, operator: Exists}]
  imagePullSecrets: [{name: registry}]
  terminationGracePeriodSeconds: 90
  securityContext: {runAsUser: 1000}
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: worker
    resources: {limits: {memory: 1Gi}}
    env: [{name: GODEBUG, value: netdns=go}]
    volumeMounts: [{name: scratch, mountPath: /tmp}]
  runtimeClassName: gvisor
  nodeSelector: {disk: fast}
  initContainers:
  - name: proxy
    image: proxy
    restartPolicy: Always
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	pod := job.Spec.Template
	worker := find(pod.Spec.Containers, workerContainer)
	switch {
	case pod.Labels["sidecar.istio.io/inject"] != "false" || pod.Annotations["note"] != "mine" || pod.Labels[labelCheckpoint] != "clinic-title-norm":
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	case pod.Spec.PriorityClassName != "low" || len(pod.Spec.Tolerations) != 1 || len(pod.Spec.ImagePullSecrets) != 1 || *pod.Spec.TerminationGracePeriodSeconds != 90:
		t.Errorf("the pod is %+v", pod.Spec)
	case *pod.Spec.SecurityContext.RunAsUser != 1000 || !*pod.Spec.SecurityContext.RunAsNonRoot:
		t.Errorf("security context %+v", pod.Spec.SecurityContext)
	case worker.Resources.Limits.Memory().String() != "1Gi" || worker.Resources.Limits.Cpu().String() != "1":
		t.Errorf("limits %v", worker.Resources.Limits)
	case len(worker.VolumeMounts) != 2 || len(pod.Spec.Volumes) != 2 || len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 1:
		t.Errorf("mounts %v, volumes %v", worker.VolumeMounts, pod.Spec.Volumes)
	}
	if _, inherited := job.Labels["team"]; inherited {
		t.Error("a label of the checkpoint was copied to the Job")
	}
}

func TestATemplateThatTakesAwayWhatTheWorkDependsOnIsRefused(t *testing.T) {
	worker := func(part string) string { return `{spec: {containers: [{name: worker, ` + part + `}]}}` }
	sidecar := func(part string) string {
		return `{spec: {initContainers: [{name: side, image: x, restartPolicy: Always, ` + part +
			`, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}}`
	}
	for text, want := range map[string]string{
		`{spec: {restartPolicy: OnFailure}}`:                                                                      "spec.restartPolicy",
		`{spec: {restartPolicy: null}}`:                                                                           "spec.restartPolicy",
		`{spec: {automountServiceAccountToken: true}}`:                                                            "spec.automountServiceAccountToken",
		`{spec: {hostNetwork: true}}`:                                                                             "spec.hostNetwork",
		`{metadata: {labels: {syncbarrier.dev/gate: enabled}}}`:                                                   "metadata.labels",
		`{metadata: {annotations: {syncbarrier.dev/database-host: evil}}}`:                                        "metadata.annotations",
		`{spec: {volumes: null}}`:                                                                                 "spec.volumes",
		`{spec: {volumes: [{name: syncbarrier-database, emptyDir: {}}]}}`:                                         "spec.volumes",
		`{spec: {containers: null}}`:                                                                              "spec.containers[worker]",
		worker(`command: [sh]`):                                                                                   "spec.containers[worker].command",
		worker(`args: [--of, "9"]`):                                                                               "spec.containers[worker].args",
		worker(`securityContext: {privileged: true}`):                                                             "spec.containers[worker].securityContext",
		worker(`securityContext: null`):                                                                           "spec.containers[worker].securityContext",
		worker(`env: [{name: JOB_COMPLETION_INDEX, value: "0"}]`):                                                 "spec.containers[worker].env",
		worker(`env: [{name: SYNCBARRIER_DATABASE, value: x}]`):                                                   "spec.containers[worker].env",
		worker(`terminationMessagePolicy: File`):                                                                  "spec.containers[worker].terminationMessage",
		worker(`volumeMounts: [{name: other, mountPath: /var/run/syncbarrier/database}]`):                         "spec.containers[worker].volumeMounts",
		`{spec: {tolerations: [{kay: batch}]}}`:                                                                   "tolerations[0].kay",
		`{spec: {containers: [{name: worker, $patch: delete}]}}`:                                                  "$patch",
		worker(`image: evil`):                                                                                     "spec.containers[worker].image",
		worker(`securityContext: {readOnlyRootFilesystem: false}`):                                                "readOnlyRootFilesystem",
		worker(`securityContext: {procMount: Unmasked}`):                                                          "procMount",
		worker(`securityContext: {seccompProfile: {type: Unconfined}}`):                                           "seccompProfile.type",
		worker(`securityContext: {runAsUser: 0}`):                                                                 "runAsUser=0",
		worker(`ports: [{containerPort: 80, hostPort: 80}]`):                                                      "hostPort",
		`{spec: {securityContext: {runAsNonRoot: false}}}`:                                                        "runAsNonRoot",
		`{spec: {securityContext: {seccompProfile: null}}}`:                                                       "seccompProfile.type",
		`{spec: {securityContext: {sysctls: [{name: kernel.msgmax, value: "1"}]}}}`:                               "kernel.msgmax",
		`{spec: {securityContext: null}}`:                                                                         "seccompProfile.type",
		`{spec: {shareProcessNamespace: true}}`:                                                                   "spec.shareProcessNamespace",
		`{spec: {serviceAccountName: root}}`:                                                                      "spec.serviceAccountName",
		`{spec: {serviceAccount: root}}`:                                                                          "spec.serviceAccountName",
		`{spec: {volumes: [{name: node, hostPath: {path: /}}]}}`:                                                  "hostPath",
		`{spec: {volumes: [{name: other, secret: {secretName: other}}]}}`:                                         "spec.volumes[other].secret",
		`{spec: {volumes: [{name: store, csi: {driver: secrets-store.csi.k8s.io}}]}}`:                             "spec.volumes[store].csi",
		`{spec: {volumes: [{name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}]}}`:        "spec.volumes[token].projected",
		`{spec: {volumes: [{name: other, projected: {sources: [{configMap: {name: a}}, {secret: {name: b}}]}}]}}`: "spec.volumes[other].projected",
		worker(`envFrom: [{secretRef: {name: other}}]`):                                                           "spec.containers[worker].envFrom.secretRef",
		worker(`env: [{name: A, valueFrom: {secretKeyRef: {name: other, key: k}}}]`):                              "spec.containers[worker].env[A].valueFrom.secretKeyRef",
		`{spec: {containers: [{name: side, image: x}]}}`:                                                          `container "side" must set securityContext.allowPrivilegeEscalation=false`,
		`{spec: {containers: [{name: side, image: x, securityContext: {privileged: true}}]}}`:                     `container "side" must not set securityContext.privileged=true`,
		sidecar(`volumeMounts: [{name: syncbarrier-database, mountPath: /db}]`):                                   "a mount of a volume",
		sidecar(`env: [{name: A, valueFrom: {secretKeyRef: {name: other, key: k}}}]`):                             "spec.initContainers[side].env[A]",
		`[]`: "no pod template",
		`{spec: {containers: [{image: nameless}]}}`: "cannot be merged",
		`{spec: {template: {spec: {}}}}`:            "spec.template",
		`{apiVersion: v1, kind: PodTemplate}`:       "apiVersion",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := newWorkerJob(withWorker(t, text))
			if storage.CodeOf(err) != storage.CodeInvalidSpec || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "spec.worker.template: ") {
				t.Errorf("%v, want InvalidSpec of spec.worker.template with %s", err, want)
			}
		})
	}
}

func TestAContainerOfTheUsersOwnGetsTheProgramAndTheClaim(t *testing.T) {
	partial := template(t, `{spec: {priorityClassName: low}}`)
	in := withOwnContainer(t, `
spec:
  containers:
  - {name: worker, image: "shop/backfill:7", command: [/backfill], args: [--fast], env: [{name: MODE, value: full}]}
`)
	in.Worker = &v1alpha1.Worker{Template: &partial}
	job, err := newWorkerJob(in)
	if err != nil {
		t.Fatal(err)
	}
	worker := find(job.Spec.Template.Spec.Containers, workerContainer)
	if worker.Image != "shop/backfill:7" || !slices.Equal(worker.Command, []string{"/backfill"}) || job.Spec.Template.Spec.PriorityClassName != "low" {
		t.Errorf("the container is %+v", worker)
	}
	for _, name := range []string{"MODE", "SYNCBARRIER_CLAIM", "SYNCBARRIER_DATABASE_FILE"} {
		if !slices.ContainsFunc(worker.Env, func(e corev1.EnvVar) bool { return e.Name == name && e.Value != "" }) {
			t.Errorf("%s is not in its environment", name)
		}
	}
	for text, want := range map[string]string{
		`{}`: "has no image",
		`{spec: {containers: [{name: mine, image: x}]}}`:                                                                       "has no image",
		`{spec: {containers: [{name: worker, image: x, securityContext: {capabilities: {add: [NET_ADMIN]}}}]}}`:                "securityContext",
		`{spec: {containers: [{name: worker, image: x, env: [{name: A, valueFrom: {secretKeyRef: {name: other, key: k}}}]}]}}`: "env[A].valueFrom.secretKeyRef",
		`{spec: {containers: [{name: worker, image: x}], volumes: [{name: node, hostPath: {path: /}}]}}`:                       "hostPath",
		`{spec: {serviceAccountName: root, containers: [{name: worker, image: x}]}}`:                                           "spec.serviceAccountName",
		`{spec: {restartPolicy: Always, containers: [{name: worker, image: x}]}}`:                                              "spec.restartPolicy",
		`{spec: {initContainers: [{name: install-syncbarrier, command: [sh]}]}}`:                                               "spec.initContainers[install-syncbarrier]",
		`{spec: {containers: [{name: worker, image: x, env: [{name: SYNCBARRIER_CLAIM, value: x}]}]}}`:                         "spec.containers[worker].env",
	} {
		_, err := newWorkerJob(withOwnContainer(t, text))
		if storage.CodeOf(err) != storage.CodeInvalidSpec || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "spec.backfill.job.template: ") {
			t.Errorf("%s: %v, want InvalidSpec with %s", text, err, want)
		}
	}
}
