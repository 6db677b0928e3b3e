// Package v1alpha1 holds the custom resources of Syncbarrier: SyncSchema, one version of a database schema with its
// backfills, and BackfillCheckpoint, one backfill of one version. docs/design.md section 7 describes them.
//
// The rules for values stand as markers on the types, so that the API server and the command line apply the same ones: both
// run the schema that controller-gen makes from them (config/crd). Relations between lists are checked in internal/manifest.
//
// Defaults are static and stand on leaves only. A group that is left out as a whole is therefore not filled by the
// API server; the accessors in defaults.go give the same values for it.
//
// +kubebuilder:object:generate=true
// +groupName=syncbarrier.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds of this group.
const (
	KindSyncSchema         = "SyncSchema"
	KindBackfillCheckpoint = "BackfillCheckpoint"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "syncbarrier.dev", Version: "v1alpha1"}

// SchemeBuilder collects what AddToScheme adds.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the kinds of this package to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&SyncSchema{}, &SyncSchemaList{},
		&BackfillCheckpoint{}, &BackfillCheckpointList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
