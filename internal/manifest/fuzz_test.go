package manifest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Whatever a file holds, it is read or refused with a reason, and what is read can be judged.
func FuzzParseAnswersEveryFile(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		clinic, clinic + "---\n" + late, string(full), "", "---", "...", "\ufeff", "{", "{}", "[]", "null", "a: b", "a: &a [*a]", "? [a]\n: b", "<<: {a: b}",
		"!!binary a", "a: !!float x", "- - - -", "%YAML 1.1\n---\na: b", "a: |\n  ---\n  b", "\x00", "\xff\xfe", "a:\n\t- b", `{"a": 1e999}`, "a: .inf", "a: 0x_1",
		"apiVersion: syncbarrier.dev/v1alpha1\nkind: SyncSchema\nspec: []",
		"apiVersion: syncbarrier.dev/v1alpha1\nkind: SyncSchema\nmetadata: 1\nspec: {database: [], tables: {}, checkpoints: [null, 1]}",
		"apiVersion: syncbarrier.dev/v1alpha1\nkind: BackfillCheckpoint\nmetadata: {name: a}\nspec: {backfill: {update: {set: {a: null}}}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(bytes.NewReader(text), "file")
		if err != nil {
			if storage.CodeOf(err) != storage.CodeInvalidSpec || !strings.HasPrefix(err.Error(), "file: ") {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		if _, _, err := Convert(file); err != nil && storage.CodeOf(err) != storage.CodeInvalidSpec {
			t.Fatalf("the error is %v", err)
		}
	})
}
