// Package operator tests the operator as it runs: the manager and its workers are processes of the built programs, the API server and the
// controllers of Jobs and owner references are real, and so is the database. Only the kubelet is stood in for (internal/testcluster/kubelet).
package operator
