package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BackfillCheckpoint is one named backfill of one version. The operator makes one for each entry of a SyncSchema, named
// <schema>-<checkpoint>; a user may write one for a backfill that the schema's file does not hold. Nothing in it can change
// but the live settings of its backfill.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=backfillcheckpoints,singular=backfillcheckpoint,shortName=bfc,categories=syncbarrier,scope=Namespaced
// +kubebuilder:printcolumn:name="Schema",type=string,JSONPath=`.spec.schemaRef.name`
// +kubebuilder:printcolumn:name="Checkpoint",type=string,JSONPath=`.spec.name`
// +kubebuilder:printcolumn:name="Version",type=integer,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Partitions",type=integer,JSONPath=`.status.partitions.total`,description="Partitions; one that covers all counts as one"
// +kubebuilder:printcolumn:name="Activated",type=integer,JSONPath=`.status.partitions.activated`,description="Partitions that are done and proven"
// +kubebuilder:printcolumn:name="Rows",type=integer,JSONPath=`.status.rows.done`,description="Rows filled, by the database's own count"
// +kubebuilder:printcolumn:name="Estimated",type=integer,JSONPath=`.status.rows.estimated`,description="Rows in all, by the database's estimate"
// +kubebuilder:printcolumn:name="Verdict",type=string,priority=1,JSONPath=`.status.behind[0].verdict`,description="What the last attempt to activate the furthest partition found"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: Jobs are named after it"
type BackfillCheckpoint struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name must have at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the backfill.
	// +required
	Spec BackfillCheckpointSpec `json:"spec"`

	// status mirrors what the database said last. It is written by the operator only and is rebuilt from the database when it
	// is lost. If omitted it gets an observedGeneration of -1: the operator has not looked yet.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status BackfillCheckpointStatus `json:"status,omitzero"`
}

// BackfillCheckpointList is a list of BackfillCheckpoints.
//
// +kubebuilder:object:root=true
type BackfillCheckpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BackfillCheckpoint `json:"items"`
}

// BackfillCheckpointSpec is one backfill of one version of a schema.
//
// +kubebuilder:validation:XValidation:rule="self.schemaRef == oldSelf.schemaRef",message="schemaRef cannot change: a checkpoint belongs to its schema for ever",fieldPath=".schemaRef"
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="name cannot change: write another checkpoint",fieldPath=".name"
// +kubebuilder:validation:XValidation:rule="self.version == oldSelf.version",message="version cannot change: a name belongs to its version for ever, so another version needs another checkpoint",fieldPath=".version"
// +kubebuilder:validation:XValidation:rule="has(self.partitions) == has(oldSelf.partitions) && (!has(self.partitions) || self.partitions == oldSelf.partitions)",message="partitions cannot change: write another checkpoint",fieldPath=".partitions"
// +kubebuilder:validation:XValidation:rule="self.sources == oldSelf.sources",message="sources cannot change: what was backfilled would no longer be proven; write another checkpoint",fieldPath=".sources"
// +kubebuilder:validation:XValidation:rule="has(self.backfill.update) == has(oldSelf.backfill.update) && (!has(self.backfill.update) || self.backfill.update == oldSelf.backfill.update)",message="backfill.update cannot change: write another checkpoint",fieldPath=".backfill.update"
// +kubebuilder:validation:XValidation:rule="has(self.backfill.statement) == has(oldSelf.backfill.statement) && (!has(self.backfill.statement) || self.backfill.statement == oldSelf.backfill.statement)",message="backfill.statement cannot change: write another checkpoint",fieldPath=".backfill.statement"
// +kubebuilder:validation:XValidation:rule="has(self.backfill.job) == has(oldSelf.backfill.job) && (!has(self.backfill.job) || self.backfill.job == oldSelf.backfill.job)",message="backfill.job cannot change: write another checkpoint",fieldPath=".backfill.job"
// +kubebuilder:validation:XValidation:rule="has(self.verify) == has(oldSelf.verify) && (!has(self.verify) || self.verify == oldSelf.verify)",message="verify cannot change: write another checkpoint",fieldPath=".verify"
type BackfillCheckpointSpec struct {
	// schemaRef names the SyncSchema of the same namespace that the checkpoint belongs to.
	// +required
	SchemaRef SchemaReference `json:"schemaRef"`

	Checkpoint `json:",inline"`
}

// SchemaReference names a SyncSchema of the same namespace.
type SchemaReference struct {
	// name is the SyncSchema's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}
