// Package testcluster gives tests a real Kubernetes API server.
//
// Start runs etcd and kube-apiserver on ports and in a folder of their own, with
// RBAC on and an audit log of every request. There is no node, so nothing runs a
// pod; StartControllers adds kube-controller-manager with the controllers of
// workloads, for tests that need a Job or a Deployment to be worked on.
//
// A test talks to it as the administrator (Admin), or with the token of a
// ServiceAccount (ServiceAccount), which may do what RBAC lets it do. It can
// freeze, continue, kill and restart the API server. Everything is stopped when
// the test ends, also if the process that runs the tests is killed.
//
// The programs are found by hack/controlplane.sh, which also builds them.
// Nothing is ever skipped: if they are missing, the test fails and says so.
package testcluster
