package manifest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/config/crd"
)

// resourceSchema is the schema of one kind, ready to use.
type resourceSchema struct {
	structural *structuralschema.Structural
	validator  schemavalidation.SchemaValidator
	rules      *schemacel.Validator
}

// schemas are the schemas by kind, made once: compiling the CEL rules takes longer than all the rest.
var schemas = sync.OnceValues(func() (map[string]*resourceSchema, error) {
	made := map[string]*resourceSchema{}
	for kind, plural := range map[string]string{
		v1alpha1.KindSyncSchema: "syncschemas", v1alpha1.KindBackfillCheckpoint: "backfillcheckpoints",
	} {
		s, err := loadSchema("bases/" + v1alpha1.GroupVersion.Group + "_" + plural + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("load the schema of %s: %w", kind, err)
		}
		made[kind] = s
	}
	return made, nil
})

func loadSchema(path string) (*resourceSchema, error) {
	text, err := crd.Bases.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := sigsyaml.UnmarshalStrict(text, &definition); err != nil {
		return nil, err
	}
	for _, version := range definition.Spec.Versions {
		if version.Name == v1alpha1.GroupVersion.Version {
			return compileSchema(version.Schema)
		}
	}
	return nil, fmt.Errorf("it has no version %s", v1alpha1.GroupVersion.Version)
}

// compileSchema does what the API server does with the schema of a CustomResourceDefinition (apiextensions-apiserver,
// customresource_handler.go).
func compileSchema(in *apiextensionsv1.CustomResourceValidation) (*resourceSchema, error) {
	var internal apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(in, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	structural = structural.DeepCopy() // defaults are shared otherwise, and pruned in place
	if err := defaulting.PruneDefaults(structural); err != nil {
		return nil, err
	}
	validator, _, err := schemavalidation.NewSchemaValidator(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return &resourceSchema{
		structural: structural,
		validator:  validator,
		rules:      schemacel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}

// admit does with an object what the API server does with one that is created, in its order: unknown fields (which kubectl
// makes an error), nulls, defaults, schema, list keys, CEL. The object is changed: status goes, defaults come.
func (s *resourceSchema) admit(object map[string]any) field.ErrorList {
	delete(object, "status")
	errs := s.prune(object)
	meta, metaErrs := admitMetadata(object)
	errs = append(errs, metaErrs...)
	defaulting.Default(object, s.structural)
	errs = append(errs, withPaths(schemavalidation.ValidateCustomResource(nil, object, s.validator))...)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, object, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object)...)
	if meta == nil || blocksRules(errs) {
		return errs // the rules may take the types for granted
	}
	ruleErrs, _ := s.rules.Validate(context.Background(), nil, s.structural, object, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range ruleErrs {
		if err.Field == noPath {
			err.Field = "metadata.name" // what our rules on the root are about; a definition cannot give them this path
		}
	}
	return append(errs, ruleErrs...)
}

// noPath is how the API server's libraries write the path of the object itself.
var noPath = (*field.Path)(nil).String()

// withPaths leaves out what the library says of a number's format, without a path: it says the same of the field itself beside it.
func withPaths(errs field.ErrorList) field.ErrorList {
	without := func(err *field.Error) bool { return err.Field == noPath }
	if !slices.ContainsFunc(errs, func(err *field.Error) bool { return !without(err) }) {
		return errs
	}
	return slices.DeleteFunc(errs, without)
}

// prune finds unknown fields and drops nulls that stand for "omitted".
func (s *resourceSchema) prune(object map[string]any) field.ErrorList {
	var errs field.ErrorList
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(object, s.structural, true, options) {
		errs = append(errs, field.Forbidden(field.NewPath(path), "there is no such field"))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	return errs
}

// blocksRules says whether the API server would not run CEL rules after these errors: they look at values whose type, number or
// presence is wrong.
func blocksRules(errs field.ErrorList) bool {
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}

// admitMetadata reads the metadata strictly and writes it back as the API server would. The name must be there: nobody makes one up for a
// file.
func admitMetadata(object map[string]any) (*metav1.ObjectMeta, field.ErrorList) {
	path := field.NewPath("metadata")
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, field.ErrorList{field.TypeInvalid(path, field.OmitValueType{}, "it is not the metadata of an object")}
	}
	if !found {
		meta = &metav1.ObjectMeta{}
	}
	var errs field.ErrorList
	for _, unknownPath := range unknown {
		errs = append(errs, field.Forbidden(field.NewPath(unknownPath), "there is no such field"))
	}
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	meta.ManagedFields = nil
	if meta.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "the object needs a name"))
	} else {
		errs = append(errs, validation.ValidateObjectMeta(meta, true, validation.NameIsDNSSubdomain, path)...)
	}
	if err := objectmeta.SetObjectMeta(object, meta); err != nil {
		return nil, append(errs, field.InternalError(path, err))
	}
	return meta, errs
}
