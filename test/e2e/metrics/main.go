// Command metrics answers for metrics.k8s.io in a story: every pod that serves uses half of a hundredth of a processor, and every other pod
// nothing. So an autoscaler has something to go by, and the story knows what it should make of it.
//
// It is run as a pod that may list pods, behind an APIService with insecureSkipTLSVerify: its certificate is made at the start.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const group = "metrics.k8s.io/v1beta1"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

func run() error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /apis/"+group, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: group,
			APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics", Verbs: []string{"get", "list"}}},
		})
	})
	routes.HandleFunc("GET /apis/"+group+"/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		pods, err := clients.CoreV1().Pods(r.PathValue("namespace")).List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer(w, usage(pods.Items, time.Now()))
	})
	server := &http.Server{
		Addr: ":8443", Handler: routes, ReadHeaderTimeout: 5 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
	}
	return server.ListenAndServeTLS("", "")
}

// podMetrics is what the API of that name has of one pod.
type podMetrics struct {
	metav1.ObjectMeta `json:"metadata"`
	Timestamp         metav1.Time        `json:"timestamp"`
	Window            metav1.Duration    `json:"window"`
	Containers        []containerMetrics `json:"containers"`
}

type containerMetrics struct {
	Name  string            `json:"name"`
	Usage map[string]string `json:"usage"`
}

type podMetricsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []podMetrics `json:"items"`
}

// usage is what the pods use.
func usage(pods []corev1.Pod, now time.Time) podMetricsList {
	list := podMetricsList{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "PodMetricsList"}, Items: []podMetrics{}}
	for _, pod := range pods {
		cpu := "0"
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				cpu = "5m"
			}
		}
		of := podMetrics{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels},
			Timestamp:  metav1.NewTime(now), Window: metav1.Duration{Duration: 15 * time.Second},
		}
		for _, container := range pod.Spec.Containers {
			of.Containers = append(of.Containers, containerMetrics{Name: container.Name, Usage: map[string]string{"cpu": cpu, "memory": "16Mi"}})
		}
		list.Items = append(list.Items, of)
	}
	return list
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // the client that went away is told by nobody
}

// selfSigned makes a certificate for an hour.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"metrics"}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour)}
	content, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{content}, PrivateKey: key}, nil
}
