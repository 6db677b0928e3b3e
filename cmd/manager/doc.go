// Command manager is the operator: it brings the SyncSchemas and
// BackfillCheckpoints of a cluster to what they ask for (docs/design.md section
// 7).
//
// Here the parts are put together: the reconcilers of package controllers, the
// storage backend that they work with, leader election, probes and metrics. What
// the operator needs in its own namespace is asked for here; what it needs for
// its work, beside the reconcilers.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=syncbarrier-system,roleName=syncbarrier-self,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=syncbarrier-system,roleName=syncbarrier-self,resources=events,verbs=create
// +kubebuilder:rbac:groups="",namespace=syncbarrier-system,roleName=syncbarrier-self,resources=pods,verbs=get
package main
