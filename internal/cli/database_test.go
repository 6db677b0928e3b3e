package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestWhatIsWaitedForUntilADatabaseIsOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clinic.yaml")
	text := "apiVersion: syncbarrier.dev/v1alpha1\nkind: SyncSchema\nmetadata: {name: clinic}\nspec: {version: 1, tables: []}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args  []string
		code  storage.Code
		opens int
	}{
		"apply waits for a lock":               {[]string{"apply", "-f", file}, storage.CodeLockTimeout, 3},
		"a backfill waits for a lock":          {[]string{"backfill", "c"}, storage.CodeLockTimeout, 3},
		"gate --wait waits for a lock":         {[]string{"gate", "--version", "1", "--wait"}, storage.CodeLockTimeout, 3},
		"gate --wait waits for a server":       {[]string{"gate", "--version", "1", "--wait"}, storage.CodeConnectionLost, 3},
		"gate answers at once":                 {[]string{"gate", "--version", "1"}, storage.CodeConnectionLost, 1},
		"apply does not wait for a server":     {[]string{"apply", "-f", file}, storage.CodeConnectionLost, 1},
		"nobody waits for another password":    {[]string{"gate", "--version", "1", "--wait"}, storage.CodeAuthenticationFailed, 1},
		"status does not wait":                 {[]string{"status"}, storage.CodeLockTimeout, 1},
		"an address that is wrong stays wrong": {[]string{"gate", "--version", "1", "--wait"}, storage.CodeInvalidSpec, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opens := 0
			var out, problems bytes.Buffer
			p := Program{Out: &out, Err: &problems, In: strings.NewReader(""), Open: func(context.Context, Address) (storage.Store, error) {
				if opens++; opens < 3 {
					return nil, storage.Refuse(test.code, "not yet")
				}
				return nil, storage.Refuse(storage.CodeNewerCatalog, "opened")
			}}
			code := p.Run(t.Context(), append(test.args, "--database", "sqlite:x", "--timeout", "1m"))
			if opens != test.opens {
				t.Errorf("it was opened %d times, want %d", opens, test.opens)
			}
			if wanted := test.opens == 3; (code == exitNewerCatalog) != wanted {
				t.Errorf("exit code %d\n%s%s", code, out.String(), problems.String())
			}
		})
	}
}

func TestAVariableThatWasLeftOverTakesAFileToNoOtherSchema(t *testing.T) {
	environment := map[string]string{databaseVariable: "postgres://u@db/app", schemaVariable: "left_over", poolerVariable: "Transaction"}
	inFile := &manifest.File{Schema: v1alpha1.SyncSchema{Spec: v1alpha1.SyncSchemaSpec{Database: v1alpha1.Database{
		Postgres: &v1alpha1.PostgresDatabase{Schema: "shop", Pooler: v1alpha1.PoolerNone}}}}}
	for name, c := range map[string]struct {
		flags          flags
		file           *manifest.File
		schema, pooler string
	}{
		"no file: the variables":      {schema: "left_over", pooler: "Transaction"},
		"a file":                      {file: inFile, schema: "shop", pooler: "None"},
		"a file that says nothing":    {file: &manifest.File{}, schema: "public", pooler: "None"},
		"a flag wins over the file":   {flags: flags{schema: "other", pooler: "Transaction"}, file: inFile, schema: "other", pooler: "Transaction"},
		"a flag wins over a variable": {flags: flags{schema: "other"}, schema: "other", pooler: "Transaction"},
	} {
		p := &Program{flags: c.flags, Getenv: func(name string) string { return environment[name] }}
		address, err := p.address(c.file, need{})
		if err != nil {
			t.Fatal(err)
		}
		if address.Schema != c.schema || address.Pooler != c.pooler {
			t.Errorf("%s: schema %q and pooler %q, want %q and %q", name, address.Schema, address.Pooler, c.schema, c.pooler)
		}
	}
}

func TestAnyVariableThatNamesADatabaseMeansTheDatabase(t *testing.T) {
	for variable, cluster := range map[string]bool{"": true, databaseVariable: false, fileVariable: false} {
		p := &Program{Getenv: func(name string) string { return map[string]string{variable: "set"}[name] }}
		if got, err := p.meansCluster(clusterFlags{}, false); got != cluster || err != nil {
			t.Errorf("with %q set it means the cluster: %v (%v), want %v", variable, got, err, cluster)
		}
	}
}
