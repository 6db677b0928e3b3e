package testcluster

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// adminKubeconfig is the administrator's file, in the cluster's folder.
const adminKubeconfig = "admin.kubeconfig"

// tokenSeconds is how long a token of ServiceAccount holds; no test runs longer.
const tokenSeconds = 4 * 60 * 60

// ServiceAccount returns the configuration of a ServiceAccount that exists: with
// its token, so it may do what RBAC lets it do.
func (c *Cluster) ServiceAccount(namespace, name string) *rest.Config {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	token, err := c.Clientset().CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatalf("ask for a token of the ServiceAccount %s/%s: %v", namespace, name, err)
	}
	config := c.anonymous()
	config.BearerToken = token.Status.Token
	return config
}

// Kubeconfig writes a user's configuration to a file, for programs, and returns
// its path. The name tells such files apart.
func (c *Cluster) Kubeconfig(name string, config *rest.Config) string {
	c.t.Helper()
	file := name + ".kubeconfig"
	if err := c.writeKubeconfig(file, config); err != nil {
		c.t.Fatal(err)
	}
	return c.file(file)
}

// AdminKubeconfig returns the path of the administrator's file.
func (c *Cluster) AdminKubeconfig() string { return c.file(adminKubeconfig) }

func (c *Cluster) writeKubeconfig(file string, config *rest.Config) error {
	written := api.Config{
		Clusters: map[string]*api.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*api.AuthInfo{"user": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
		}},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "user"}},
		CurrentContext: "test",
	}
	if err := clientcmd.WriteToFile(written, c.file(file)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
