// Package webhook is what happens when an object is admitted to the cluster
// (docs/design.md section 8, docs/gates.md).
//
// What becomes of a pod is a pure function of the pod, without a look-up: a pod
// that was created before its SyncSchema does not differ, for life, from one that
// was created after. What becomes of a SyncSchema is a pure function of its
// annotations, before and after, and of who asks. The handlers decode, call these,
// and encode.
package webhook
