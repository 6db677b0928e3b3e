// Package gate shows what rollouts do while the gate of a version is closed, and when it opens: with the operator as a process, the real
// Deployment, ReplicaSet and StatefulSet controllers, real backfills, and a stand-in for the kubelet that makes a pod Ready only when its
// readiness gate is True. Pods that serve are counted every 200 ms from before a change to after it, and the lowest count is held against what
// is claimed.
package gate
