// Package e2e holds stories on a real cluster: kubelet, containers, Jobs, rollouts, and the operator installed from config/default.
// `make e2e` runs them, on the cluster that KUBECONFIG names, or on that of `make cluster-up`. They are behind the build tag e2e, since
// without a cluster they cannot run.
//
// Two commands are for clusters other than that of `make cluster-up`: LOAD_IMAGE gives an image's archive to the nodes ("kind load
// image-archive"), and KILL_CONTAINER sends SIGKILL to the container whose id it is given.
//
// Every story ends with the same checker (checker_test.go).
package e2e
