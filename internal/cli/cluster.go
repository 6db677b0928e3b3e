package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// fieldManager is whose the fields are that the command line writes in a cluster.
const fieldManager = "kubectl-syncbarrier"

// clusterFlags say which cluster and namespace, as those of kubectl do.
type clusterFlags struct {
	kubeconfig string
	context    string
	namespace  string
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, else ~/.kube/config, else the pod's own account)")
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the SyncSchema (default: the context's)")
}

// given says whether a cluster was asked for in so many words.
func (f *clusterFlags) given() bool {
	return f.kubeconfig != "" || f.context != "" || f.namespace != ""
}

// meansCluster says whether a verb that works on a database and on a cluster is meant for the cluster. asked: a name or all
// namespaces were given.
func (p *Program) meansCluster(f clusterFlags, asked bool) (bool, error) {
	asked = asked || f.given()
	database := p.flags.database != "" || p.flags.databaseFile != ""
	switch {
	case asked && database:
		return false, usagef("a database was given, and a cluster too (a name, --namespace, --all-namespaces, --context or --kubeconfig)")
	case asked || database:
		return asked, nil
	case p.flags.file != "":
		return false, nil
	default:
		return p.isPlugin() || p.Getenv(databaseVariable) == "" && p.Getenv(fileVariable) == "", nil
	}
}

// cluster is a Kubernetes cluster, as a person with a kubeconfig sees it.
type cluster struct {
	client    client.WithWatch
	namespace string
	time      *clusterTime
}

// openCluster reads the kubeconfig and bounds the context by --timeout. end must be called. It asks the cluster nothing yet.
func (p *Program) openCluster(ctx context.Context, f clusterFlags) (context.Context, *cluster, func(), error) {
	if p.flags.output != "text" && p.flags.output != "json" {
		return nil, nil, nil, usagef("--output is text or json, not %q", p.flags.output)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, nil, usagef("no cluster: there is no kubeconfig ($KUBECONFIG, ~/.kube/config or --kubeconfig); for a database give --database, --database-file, $%s or $%s", databaseVariable, fileVariable)
	}
	if err != nil {
		return nil, nil, nil, usage(fmt.Errorf("read the kubeconfig: %w", err))
	}
	namespace := f.namespace
	if namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, nil, nil, usage(fmt.Errorf("read the namespace from the kubeconfig: %w", err))
		}
	}
	config.UserAgent = fieldManager + "/" + p.Version
	now := &clusterTime{fallback: p.Clock}
	now.listen(config)
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, nil, nil, fmt.Errorf("know the kinds of %s: %w", v1alpha1.GroupVersion, err)
	}
	made, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	ctx, cancel := p.bounded(ctx)
	return ctx, &cluster{client: made, namespace: namespace, time: now}, cancel, nil
}

// schema reads one SyncSchema.
func (c *cluster) schema(ctx context.Context, name string) (*v1alpha1.SyncSchema, error) {
	found := &v1alpha1.SyncSchema{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, found)
	if err != nil {
		return nil, clusterFailure(ctx, fmt.Sprintf("read SyncSchema %s/%s", c.namespace, name), err)
	}
	return found, nil
}

// checkpoints reads the BackfillCheckpoints of one SyncSchema, by version and name.
func (c *cluster) checkpoints(ctx context.Context, schema *v1alpha1.SyncSchema) ([]v1alpha1.BackfillCheckpoint, error) {
	list := &v1alpha1.BackfillCheckpointList{}
	if err := c.client.List(ctx, list, client.InNamespace(schema.Namespace)); err != nil {
		return nil, clusterFailure(ctx, "list BackfillCheckpoints in namespace "+schema.Namespace, err)
	}
	ours := slices.DeleteFunc(list.Items, func(item v1alpha1.BackfillCheckpoint) bool { return item.Spec.SchemaRef.Name != schema.Name })
	slices.SortFunc(ours, func(a, b v1alpha1.BackfillCheckpoint) int {
		if a.Spec.Version != b.Spec.Version {
			return int(a.Spec.Version) - int(b.Spec.Version)
		}
		return strings.Compare(a.Spec.Name, b.Spec.Name)
	})
	return ours, nil
}

// annotate sets one annotation of a SyncSchema.
func (c *cluster) annotate(ctx context.Context, schema *v1alpha1.SyncSchema, key, value string) error {
	was := schema.DeepCopy()
	metav1.SetMetaDataAnnotation(&schema.ObjectMeta, key, value)
	err := c.client.Patch(ctx, schema, client.MergeFrom(was), client.FieldOwner(fieldManager))
	return clusterFailure(ctx, fmt.Sprintf("annotate SyncSchema %s/%s", schema.Namespace, schema.Name), err)
}

// removeAnnotation takes one annotation of a SyncSchema away.
func (c *cluster) removeAnnotation(ctx context.Context, schema *v1alpha1.SyncSchema, key string) error {
	was := schema.DeepCopy()
	delete(schema.Annotations, key)
	err := c.client.Patch(ctx, schema, client.MergeFrom(was), client.FieldOwner(fieldManager))
	return clusterFailure(ctx, fmt.Sprintf("annotate SyncSchema %s/%s", schema.Namespace, schema.Name), err)
}

// clusterError is a failure of the cluster, with the word that scripts branch on.
type clusterError struct {
	reason string
	code   int
	err    error
}

func (c *clusterError) Error() string { return c.err.Error() }
func (c *clusterError) Unwrap() error { return c.err }

// clusterFailure says what was being done, and what to do about it where that is not plain. It returns nil for nil.
func clusterFailure(ctx context.Context, doing string, err error) error {
	var unreachable net.Error
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err), isUnknownResource(err):
		return &clusterError{"NotInstalled", exitOther, fmt.Errorf("%s: this cluster does not know the kinds of Syncbarrier (%s): %w", doing, v1alpha1.GroupVersion, err)}
	case apierrors.IsNotFound(err):
		return &clusterError{"NotFound", exitOther, fmt.Errorf("%s: there is none of that name; kubectl syncbarrier status --all-namespaces lists them: %w", doing, err)}
	case apierrors.IsForbidden(err):
		return &clusterError{"Forbidden", exitOther, fmt.Errorf("%s: %w", doing, err)}
	case apierrors.IsUnauthorized(err):
		return &clusterError{"Unauthorized", exitOther, fmt.Errorf("%s: the cluster does not accept the credentials of the kubeconfig: %w", doing, err)}
	case apierrors.IsInvalid(err):
		return &clusterError{"Invalid", exitOther, fmt.Errorf("%s: %w", doing, err)}
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx)) // the client's error says that time was up, not whose
	case errors.As(err, &unreachable), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsServiceUnavailable(err):
		return &clusterError{"Unreachable", exitGaveUp, fmt.Errorf("%s: the cluster does not answer: %w", doing, err)}
	default:
		return &clusterError{"Error", exitOther, fmt.Errorf("%s: %w", doing, err)}
	}
}

// isUnknownResource recognises the 404 of an API server that has no such path at all: it names no object.
func isUnknownResource(err error) bool {
	var answer apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &answer) && (answer.Status().Details == nil || answer.Status().Details.Name == "")
}
