package controllers

import (
	"context"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// mayDo is all that the operator's account may do to anything in a namespace that is not its own: by group and resource, the verbs. The first
// three are what every account may ask about itself.
var mayDo = map[string]string{
	"authorization.k8s.io/selfsubjectaccessreviews": "create",
	"authorization.k8s.io/selfsubjectrulesreviews":  "create",
	"authentication.k8s.io/selfsubjectreviews":      "create",
	"/configmaps":                         "get",
	"/secrets":                            "get",
	"/events":                             "list",
	"/pods":                               "list watch",
	"/pods/status":                        "patch",
	"apps/daemonsets":                     "get",
	"apps/deployments":                    "get",
	"apps/replicasets":                    "get",
	"apps/statefulsets":                   "get",
	"batch/jobs":                          "create delete get list patch watch",
	"events.k8s.io/events":                "create patch",
	"syncbarrier.dev/syncschemas":         "get list watch",
	"syncbarrier.dev/syncschemas/status":  "patch",
	"syncbarrier.dev/backfillcheckpoints": "create delete get list patch watch",
	"syncbarrier.dev/backfillcheckpoints/status": "patch",
	"argoproj.io/rollouts":                       "get",
	"authentication.k8s.io/tokenreviews":         "create", // metrics are for whom the API server knows
	"authorization.k8s.io/subjectaccessreviews":  "create", // and allows
}

var _ = Describe("The operator's account", func() {
	It("may do to everything that the API server serves what it is given, and nothing else", func(ctx context.Context) {
		(&gate{world: &world{ctx: ctx}}).installRollouts()
		Expect(everyRight(ctx)).To(Equal(mayDo))
	})
})

// everyRight asks of each verb of each resource of the cluster whether the operator's account has it in a namespace of users.
func everyRight(ctx context.Context) map[string]string {
	GinkgoHelper()
	namespace := newNamespace(ctx)
	client, err := discovery.NewDiscoveryClientForConfig(suite.cluster.Admin())
	Expect(err).NotTo(HaveOccurred())
	var lists []*metav1.APIResourceList
	Eventually(func() ([]string, error) { // a kind that was just installed takes a moment to be listed
		var err error
		_, lists, err = client.ServerGroupsAndResources()
		var versions []string
		for _, list := range lists {
			versions = append(versions, list.GroupVersion)
		}
		return versions, err
	}, "90s", "200ms").Should(ContainElement("argoproj.io/v1alpha1"))
	var mu sync.Mutex
	rights := map[string][]string{}
	places := make(chan struct{}, patchesAtOnce)
	var all sync.WaitGroup
	asked := 0
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		Expect(err).NotTo(HaveOccurred())
		for _, resource := range list.APIResources {
			// Rights over objects of a kind that discovery does not list are rights to change other rights.
			for _, verb := range append([]string{"bind", "escalate", "impersonate", "use", "approve"}, resource.Verbs...) {
				review := &authorizationv1.SubjectAccessReview{}
				review.Spec.User = "system:serviceaccount:" + operatorNamespace + ":" + operatorAccount
				review.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + operatorNamespace, "system:authenticated"}
				name, sub, _ := strings.Cut(resource.Name, "/")
				review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
					Group: version.Group, Version: version.Version, Resource: name, Subresource: sub, Verb: verb,
				}
				if resource.Namespaced {
					review.Spec.ResourceAttributes.Namespace = namespace
				}
				asked++
				places <- struct{}{}
				all.Go(func() {
					defer GinkgoRecover()
					defer func() { <-places }()
					Expect(suite.admin.Create(ctx, review)).To(Succeed())
					if review.Status.Allowed {
						mu.Lock()
						defer mu.Unlock()
						rights[version.Group+"/"+resource.Name] = append(rights[version.Group+"/"+resource.Name], verb)
					}
				})
			}
		}
	}
	all.Wait()
	Expect(asked).To(BeNumerically(">", 500), "the cluster was asked about everything")
	out := map[string]string{}
	for resource, verbs := range rights {
		slices.Sort(verbs)
		out[resource] = strings.Join(slices.Compact(verbs), " ")
	}
	return out
}
