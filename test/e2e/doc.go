// Package e2e holds stories on a real cluster: kubelet, containers, Jobs, rollouts, and the operator installed from config/default.
// `make e2e` runs those without the label "all", `make e2e-all` runs them all, on the cluster that KUBECONFIG names, or on that of
// `make cluster-up`. They are behind the build tag e2e, since without a cluster they cannot run.
//
// Three commands are for clusters other than that of `make cluster-up`: LOAD_IMAGE gives an image's archive to the nodes ("kind load
// image-archive"), CONTAINER_TASKS is containerd's command for running containers on the node ("docker exec kind-control-plane ctr
// --namespace k8s.io tasks"), and FREEZE_APISERVER has the API server stand still for the number of seconds that it is given.
//
// Every story ends with the same checker (checker_test.go).
package e2e
