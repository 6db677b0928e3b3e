package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
