package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// File is what a file holds: every value is inside the bounds of the schema, and every default is filled in.
type File struct {
	// Name is what errors call the file.
	Name string
	// Schema is the SyncSchema. Its spec.database may be empty, or say nothing about the address.
	Schema v1alpha1.SyncSchema
	// Namespace is what the file itself says; empty: nothing, and Schema has the default one.
	Namespace string
	// Checkpoints are the standalone BackfillCheckpoints, all of this schema, in the file's order.
	Checkpoints []v1alpha1.BackfillCheckpoint

	schemaDocument      *document
	checkpointDocuments []*document
}

// DatabaseSchema is the database schema that the file names, "public" if it names none.
func (f *File) DatabaseSchema() string {
	if postgres := f.Schema.Spec.Database.Postgres; postgres != nil && postgres.Schema != "" {
		return postgres.Schema
	}
	return v1alpha1.DefaultPostgresSchema
}

// Pooler is what the file says stands before the server, PoolerNone if it says nothing.
func (f *File) Pooler() v1alpha1.PoolerMode {
	if postgres := f.Schema.Spec.Database.Postgres; postgres != nil && postgres.Pooler != "" {
		return postgres.Pooler
	}
	return v1alpha1.PoolerNone
}

// Parse reads one SyncSchema and any number of BackfillCheckpoints of it, as YAML documents or as JSON. The name is what errors call
// the file.
//
// What the file may hold is what the API server takes, but for three things: unknown fields and keys that are there twice are
// errors, as kubectl makes them; spec.database may be left out; and metadata.name must be there.
//
// Errors: storage.CodeInvalidSpec with every problem found, each with its line and field; else what the reader returned.
func Parse(r io.Reader, name string) (*File, error) {
	file, err := parse(r, name)
	var found problems
	switch {
	case errors.As(err, &found):
		return nil, found.invalid(name)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return file, nil
}

func parse(r io.Reader, name string) (*File, error) {
	documents, err := splitDocuments(r)
	if err != nil {
		return nil, err
	}
	file := &File{Name: name}
	var found problems
	for i := range documents {
		if err := file.add(&documents[i]); err != nil {
			var more problems
			if !errors.As(err, &more) {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	if file.schemaDocument == nil && len(found) == 0 {
		found = append(found, problem{message: fmt.Sprintf("the file holds no %s", v1alpha1.KindSyncSchema)})
	}
	if len(found) > 0 {
		return nil, found
	}
	return file, file.checkBelonging()
}

// add reads one document into the file.
func (f *File) add(d *document) error {
	if err := d.decode(); err != nil {
		return err
	}
	if err := d.checkKind(); err != nil {
		return err
	}
	made, err := schemas()
	if err != nil {
		return err
	}
	kind := d.object["kind"].(string) // checkKind saw that it is one
	if kind == v1alpha1.KindSyncSchema {
		return f.addSchema(d, made[kind])
	}
	return f.addCheckpoint(d, made[kind])
}

// checkKind says whether the document is one of ours.
func (d *document) checkKind() error {
	wrong := func(fieldName, format string, args ...any) error {
		return problems{{line: d.lineOf(fieldName), message: fieldName + ": " + fmt.Sprintf(format, args...)}}
	}
	kind, _ := d.object["kind"].(string)
	version, _ := d.object["apiVersion"].(string)
	switch {
	case version == "":
		return wrong("apiVersion", "it must be %s, and is missing", v1alpha1.GroupVersion)
	case kind == "":
		return wrong("kind", "it must be %s or %s, and is missing", v1alpha1.KindSyncSchema, v1alpha1.KindBackfillCheckpoint)
	case kind != v1alpha1.KindSyncSchema && kind != v1alpha1.KindBackfillCheckpoint:
		return wrong("kind", "a file holds one %s and any number of %ss, not a %.64q",
			v1alpha1.KindSyncSchema, v1alpha1.KindBackfillCheckpoint, kind)
	case version != v1alpha1.GroupVersion.String():
		return wrong("apiVersion", "it must be %s, not %.64q", v1alpha1.GroupVersion, version)
	}
	return nil
}

func (f *File) addSchema(d *document, s *resourceSchema) error {
	if f.schemaDocument != nil {
		return problems{{line: d.lineOf("kind"), message: fmt.Sprintf("kind: a file holds one %s; there is one on line %d already",
			v1alpha1.KindSyncSchema, f.schemaDocument.lineOf("kind"))}}
	}
	f.schemaDocument = d
	if meta, ok := d.object["metadata"].(map[string]any); ok {
		f.Namespace, _ = meta["namespace"].(string) // anything else is refused below
	}
	placeholder := fillDatabase(d.object)
	if errs := s.admit(d.object); len(errs) > 0 {
		return d.schemaProblems(errs)
	}
	if err := toTyped(d.object, &f.Schema); err != nil {
		return err
	}
	if placeholder {
		f.Schema.Spec.Database.Postgres.URLFrom = nil
	}
	return nil
}

func (f *File) addCheckpoint(d *document, s *resourceSchema) error {
	if errs := s.admit(d.object); len(errs) > 0 {
		return d.schemaProblems(errs)
	}
	var checkpoint v1alpha1.BackfillCheckpoint
	if err := toTyped(d.object, &checkpoint); err != nil {
		return err
	}
	f.Checkpoints = append(f.Checkpoints, checkpoint)
	f.checkpointDocuments = append(f.checkpointDocuments, d)
	return nil
}

// fillDatabase gives a SyncSchema that says nothing about the address one that the schema accepts, and says whether it did. The
// command line takes its database from beside the file; the cluster's rule stays as it is.
func fillDatabase(object map[string]any) bool {
	spec, ok := object["spec"].(map[string]any)
	if !ok {
		return false
	}
	if spec["database"] == nil {
		spec["database"] = map[string]any{}
	}
	database, ok := spec["database"].(map[string]any)
	if !ok {
		return false
	}
	if database["postgres"] == nil {
		delete(database, "postgres")
		if len(database) > 0 {
			return false // it names something else, which the schema refuses
		}
		database["postgres"] = map[string]any{}
	}
	postgres, ok := database["postgres"].(map[string]any)
	if !ok || postgres["urlFrom"] != nil || postgres["connection"] != nil {
		return false
	}
	postgres["urlFrom"] = map[string]any{"secretKeyRef": map[string]any{"name": "beside-the-file", "key": "url"}}
	return true
}

// toTyped fills a typed object from one that the schema has admitted.
func toTyped(object map[string]any, into any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode the %v: %w", object["kind"], err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("decode the %v: %w", object["kind"], err)
	}
	return nil
}

// checkBelonging: a standalone checkpoint belongs to the schema of its file, and no two have one name.
func (f *File) checkBelonging() error {
	var found problems
	seen := map[string]int{}
	for i := range f.Checkpoints {
		checkpoint, d := &f.Checkpoints[i], f.checkpointDocuments[i]
		var errs field.ErrorList
		metadata := field.NewPath("metadata")
		if checkpoint.Namespace != f.Schema.Namespace {
			errs = append(errs, field.Invalid(metadata.Child("namespace"), checkpoint.Namespace,
				fmt.Sprintf("the %s of this file is in namespace %q", v1alpha1.KindSyncSchema, f.Schema.Namespace)))
		}
		if checkpoint.Spec.SchemaRef.Name != f.Schema.Name {
			errs = append(errs, field.Invalid(field.NewPath("spec", "schemaRef", "name"), checkpoint.Spec.SchemaRef.Name,
				fmt.Sprintf("the %s of this file is called %q", v1alpha1.KindSyncSchema, f.Schema.Name)))
		}
		if _, twice := seen[checkpoint.Name]; twice {
			errs = append(errs, field.Duplicate(metadata.Child("name"), checkpoint.Name))
		}
		seen[checkpoint.Name] = i
		found = append(found, fieldProblems(errs, d.lineOf)...)
	}
	return found.orNil()
}

// lineOf gives the line of a path that Relations made.
func (f *File) lineOf(path string) int {
	rest, standalone := strings.CutPrefix(path, v1alpha1.KindBackfillCheckpoint+"[")
	if !standalone {
		return f.schemaDocument.lineOf(path)
	}
	name, rest, _ := strings.Cut(rest, "]")
	for i := range f.Checkpoints {
		if f.Checkpoints[i].Name == name {
			return f.checkpointDocuments[i].lineOf(rest)
		}
	}
	return 0
}
