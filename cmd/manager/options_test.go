package main

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/controllers"
)

func TestOptionsThatCannotBeAreNamed(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string // a part of the message; empty if the options are right
	}{
		"what config/default gives":                     {nil, ""},
		"one namespace, without rights for metrics":     {[]string{"--namespaces=shop", "--metrics-open", "--metrics-bind-address=127.0.0.1:8080"}, ""},
		"a namespace that cannot be":                    {[]string{"--namespaces=shop,Sh op"}, `"Sh op" is no name`},
		"metrics for everybody on every address":        {[]string{"--metrics-open"}, "not an address of the loopback"},
		"a resync that would be a hot loop":             {[]string{"--resync=1ms"}, "--resync"},
		"a lease that is lost before it can be renewed": {[]string{"--leader-election-renew-deadline=20s"}, "lease duration"},
		"no place for the lease":                        {[]string{"--leader-election-namespace="}, "POD_NAMESPACE"},
		"no lease, and no place for it":                 {[]string{"--leader-election-namespace=", "--leader-elect=false"}, ""},
		"no workers":                                    {[]string{"--workers=0"}, "--workers"},
		"a log format that there is not":                {[]string{"--log-format=xml"}, "--log-format"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var o options
			root := command()
			o.register(root.PersistentFlags())
			if err := root.PersistentFlags().Parse(append([]string{"--leader-election-namespace=syncbarrier-system"}, c.args...)); err != nil {
				t.Fatal(err)
			}
			err := o.check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want a message with %q", err, c.want)
			}
		})
	}
}

func TestTheWorkersImageIsExactlyTheManagers(t *testing.T) {
	const digest = "@sha256:4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	cases := map[string]struct{ image, running, want string }{
		"by the digest that runs":                   {"ghcr.io/s/b:dev", "ghcr.io/s/b" + digest, "ghcr.io/s/b" + digest},
		"as older runtimes write it":                {"ghcr.io/s/b:dev", "docker-pullable://ghcr.io/s/b" + digest, "ghcr.io/s/b" + digest},
		"a registry with a port":                    {"reg:5000/b", "reg:5000/b" + digest, "reg:5000/b" + digest},
		"the digest that was asked for":             {"ghcr.io/s/b" + digest, "", "ghcr.io/s/b" + digest},
		"a digest of another repository names none": {"ghcr.io/s/b:dev", "import-2026" + digest, "ghcr.io/s/b:dev"},
		"an image that was loaded by hand":          {"ghcr.io/s/b:dev", "sha256:4b825dc642cb", "ghcr.io/s/b:dev"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			statuses := []corev1.ContainerStatus{{Name: "proxy", ImageID: "other" + digest}, {Name: "manager", ImageID: c.running}}
			if got := exactImage(c.image, statuses); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestCertificatesLeaveNoFile looks at a connection whose key is none: the driver refuses it before it dials.
func TestAManagerIsNotReadyWithoutTheDefinitionsOfItsKinds(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindSyncSchema), meta.RESTScopeNamespace)
	if err := definitionsServed(mapper); err == nil || !strings.Contains(err.Error(), "BackfillCheckpoint") {
		t.Errorf("without one of them: %v", err)
	}
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindBackfillCheckpoint), meta.RESTScopeNamespace)
	if err := definitionsServed(mapper); err != nil {
		t.Errorf("with both: %v", err)
	}
}

func TestCertificatesLeaveNoFile(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	started := time.Now()
	store, err := openDatabase(t.Context(), controllers.Connection{
		Address: "127.0.0.1:1/app", URL: "postgres://app:password-one@127.0.0.1:1/app?sslmode=verify-full",
		TLSCA: "no-certificate", TLSCert: "no-certificate", TLSKey: "key-material",
	})
	if err == nil {
		store.Close()
		t.Fatal("a key that is none was taken")
	}
	if text := err.Error(); strings.Contains(text, "password-one") || strings.Contains(text, "key-material") {
		t.Errorf("the error shows a secret: %s", text)
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("the folder for temporary files has %v, %v", left, err)
	}
}
