package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBadInputIsRefusedByFieldAndClassAndChangesNothing: every row is a file (schemaV7 with something replaced) or other input.
func TestBadInputIsRefusedByFieldAndClassAndChangesNothing(t *testing.T) {
	cases := []struct {
		name     string
		old, new string // replaced in schemaV7
		code     int
		says     []string
		// underTheLock: what the SQL says can be checked only against the migrated tables, so plan, which migrates none, passes it.
		underTheLock bool
	}{
		{"YAML that is none", "spec:", "spec: [", 20, []string{"line"}, false},
		{"a field that does not exist", "version: 7\n  tables", "version: 7\n  tabels: []\n  tables", 20, []string{"tabels"}, false},
		{"a type that does not exist", "title_norm, type: string", "title_norm, type: text", 20, []string{"type", "text"}, false},
		{"a column removed", "    - {name: title, type: string}\n", "", 25, []string{"todos", "title"}, false},
		{"a column retyped", "{name: title, type: string}", "{name: title, type: integer}", 25, []string{"todos", "title"}, false},
		{"NOT NULL added to a table with rows", "title_norm, type: string, nullable: true", "title_norm, type: string", 20, []string{"title_norm", "todos"}, false},
		{"a column name twice", "{name: title_norm,", "{name: title,", 20, []string{"title"}, false},
		{"a checkpoint name twice", "  checkpoints:\n", "  checkpoints:\n  - {name: title-norm, version: 7, sources: [{table: todos, changes: CommitLog}], backfill: {update: {table: todos, set: {title_norm: title}}}}\n", 20, []string{"title-norm"}, false},
		{"a reserved table name", "- name: todos\n", "- name: sync_commits\n    columns: [{name: id, type: integer}]\n    primaryKey: [id]\n  - name: todos\n", 20, []string{"sync_commits"}, false},
		{"a reserved partition", "sources: [{table: todos", "partitions: ['capture:x']\n    sources: [{table: todos", 20, []string{"partitions"}, false},
		{"an empty partition", "sources: [{table: todos", "partitions: ['']\n    sources: [{table: todos", 20, []string{"partitions"}, false},
		{"a name longer than the database takes", "title_norm, type: string", strings.Repeat("n", 64) + ", type: string", 20, []string{"name"}, false},
		{"a version lower than the stored one", "version: 7\n  tables", "version: 5\n  tables", 20, nil, false},
		{"a version that is none", "version: 7\n  tables", "version: 0\n  tables", 20, []string{"version"}, false},
		{"a version beyond its bound", "version: 7\n  tables", "version: 2147483648\n  tables", 20, []string{"version"}, false},
		{"a fence below what the checkpoint needs", "version: 7\n  tables", "version: 7\n  minWriterVersion: 6\n  tables", 20, []string{"minWriterVersion"}, false},
		{"an update of a column that does not exist", "set: {title_norm:", "set: {title_nrom:", 20, []string{"title_nrom"}, false},
		{"an update of the key", "set: {title_norm: lower(title)}", "set: {id: id}", 20, []string{"id"}, false},
		{"SQL that the database does not know", "lower(title)", "lowercase(title)", 21, []string{"title-norm"}, true},
		{"a verify query without the key", "SELECT id FROM todos WHERE title_norm", "SELECT title FROM todos WHERE title_norm", 20, []string{"none-missing"}, true},
		{"a source that is no table", "sources: [{table: todos", "sources: [{table: todoes", 20, []string{"todoes"}, false},
		{"neither commits nor capture", "changes: CommitLog", "changes: Guess", 20, []string{"changes", "Guess"}, false},
		{"Online, which this version does not have", "version: 7\n  tables", "version: 7\n  strategy: {type: Online}\n  tables", 20, []string{"Online"}, false},
	}
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		before := d.contents(t)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				file := strings.Replace(schemaV7, c.old, c.new, 1)
				if file == schemaV7 {
					t.Fatal("the case changes nothing in the file")
				}
				verbs := []string{"apply", "plan"}
				if c.underTheLock {
					verbs = verbs[:1]
				}
				for _, verb := range verbs {
					r := run(t, d, file, verb, "-f", "-", "-o", "json", "--timeout", "20s")
					if r.code != c.code {
						t.Errorf("%s: exit code %d, want %d\n%s%s", verb, r.code, c.code, r.out, r.errors)
					}
					for _, want := range c.says {
						if !strings.Contains(r.out+r.errors, want) {
							t.Errorf("%s does not name %q: %s%s", verb, want, r.out, r.errors)
						}
					}
				}
				if after := d.contents(t); after != before {
					t.Errorf("something was changed:\n%s\n--- before\n%s", after, before)
				}
			})
		}
	})
}

func TestContentOfAnAppliedVersionCannotBeEdited(t *testing.T) {
	cases := []struct {
		name, old, new string
		code           int
	}{
		{"a checkpoint's SQL is edited", "lower(title)", "upper(title)", 24},
		{"a checkpoint is added", "  checkpoints:\n", "  checkpoints:\n  - {name: other, version: 7, sources: [{table: todos, changes: CommitLog}], backfill: {update: {table: todos, set: {title_norm: title}}}}\n", 24},
		{"a checkpoint's verify is edited", "title_norm IS NULL", "title_norm IS NULL OR false", 24},
		{"an index is added", "indexes:\n", "indexes:\n    - {name: more, columns: [title]}\n", 24},
		{"the name is used again at 8", "version: 7\n    sources", "version: 8\n    sources", 24},
		{"the version goes back", "version: 7\n  tables", "version: 6\n  tables", 20},
		{"a column is removed at 8", "    - {name: title, type: string}\n", "", 25},
	}
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		before := d.contents(t)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				file := strings.Replace(schemaV7, c.old, c.new, 1)
				if strings.HasSuffix(c.name, "at 8") {
					file = strings.Replace(file, "version: 7\n  tables", "version: 8\n  tables", 1)
				}
				r := run(t, d, file, "apply", "-f", "-", "--timeout", "20s")
				if r.code != c.code {
					t.Errorf("exit code %d, want %d\n%s%s", r.code, c.code, r.out, r.errors)
				}
				if d.contents(t) != before {
					t.Error("something was changed")
				}
			})
		}
		t.Run("a git revert is VersionRegression, and the gates stay as they are", func(t *testing.T) {
			run(t, d, schemaV6, "apply", "-f", "-").must(t, 23)
			run(t, d, "", "gate", "--version", "7").must(t, 0)
		})
		t.Run("white space and line ends are no change", func(t *testing.T) {
			file := strings.ReplaceAll(schemaV7, "\n", "\r\n")
			run(t, d, file, "apply", "-f", "-").must(t, 0)
		})
	})
}

func TestDatabasesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database. ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, address string
		code          int
		says          string
	}{
		{"no scheme", "clinic.db", 20, "postgres:// or sqlite:"},
		{"a file that is no database", "sqlite:" + text, 20, "text.db"},
		{"a directory", "sqlite:" + dir, 20, dir},
		{"an empty path", "sqlite:", 20, "path"},
		{"a file that is not there", "sqlite:" + filepath.Join(dir, "none.db"), 20, "none.db"},
		{"a server that is not there", "postgres://op:S3CRET@127.0.0.1:1/clinic", 4, ""},
		{"odd characters in the password", "postgres://op:S3CRET%zz@db/x", 20, ""},
		{"a password that makes another host", "postgres://op:S3CRETp@ss/w#rd@db/x", 20, ""},
		{"a DSN with a password file", "postgres://op@127.0.0.1/x?passfile=/etc/S3CRET", 20, "passfile"},
		{"a DSN with a service file", "postgres://op@127.0.0.1/x?servicefile=/etc/S3CRET", 20, "servicefile"},
		{"a DSN with a certificate file", "postgres://op@127.0.0.1/x?sslrootcert=/etc/S3CRET", 20, "sslrootcert"},
		{"a DSN with a socket", "postgres://op@/x?host=/var/run/S3CRET", 20, "host"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := runProgram(t, "", "--database", c.address, "status", "--timeout", "5s")
			if r.code != c.code {
				t.Errorf("exit code %d, want %d: %s", r.code, c.code, r.errors)
			}
			if strings.Contains(r.out+r.errors, "S3CRET") {
				t.Errorf("the secret is shown: %s", r.errors)
			}
			if !strings.Contains(r.errors, c.says) {
				t.Errorf("it does not name %q: %s", c.says, r.errors)
			}
		})
	}
}

func TestWrongCallsExitWith2AndTeach(t *testing.T) {
	cases := []struct {
		name string
		args []string
		says string
	}{
		{"an unknown verb", []string{"aply"}, "aply"},
		{"an unknown flag", []string{"status", "--databse", "x"}, "--databse"},
		{"no database", []string{"status"}, "--database"},
		{"no file", []string{"--database", "sqlite:x", "apply"}, "-f FILE"},
		{"a folder as the file", []string{"--database", "sqlite:x", "apply", "-f", t.TempDir()}, "is a folder"},
		{"no version", []string{"--database", "sqlite:" + filepath.Join(t.TempDir(), "x"), "gate"}, ""},
		{"a time limit below nothing", []string{"--database", "sqlite:x", "status", "--timeout", "-5s"}, "--timeout"},
		{"an owner that is none", []string{"--database", "sqlite:x", "apply", "-f", "x.yaml", "--take-over", "clinic"}, "--take-over"},
		{"an output that does not exist", []string{"--database", "sqlite:x", "status", "-o", "yaml"}, "yaml"},
		{"shares without a claim", []string{"--database", "sqlite:x", "backfill", "c", "--of", "2"}, "--claim"},
		{"a claim that is empty", []string{"--database", "sqlite:x", "checkpoint", "claim", "c", "--claim", ""}, "--claim is empty"},
		{"a partition that is empty", []string{"--database", "sqlite:x", "checkpoint", "claim", "c", "--partition="}, "--partition is empty"},
		{"a worker whose claim is empty", []string{"--database", "sqlite:x", "backfill", "c", "--claim", ""}, "--claim is empty"},
		{"an advance without a claim", []string{"--database", "sqlite:x", "checkpoint", "advance", "c", "--epoch", "1", "--watermark", "1", "--claim", ""}, "--claim is empty"},
		{"abandon without a reason", []string{"--database", "sqlite:x", "checkpoint", "abandon"}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no version" {
				t.Setenv("SYNCBARRIER_DATABASE", "")
				d := sqliteTarget(t)
				clinicAtV6(t, d, 1)
				run(t, d, "", "gate").must(t, 2)
				return
			}
			r := runProgram(t, "", c.args...).must(t, 2)
			if !strings.Contains(r.errors, c.says) || !strings.Contains(r.errors, "--help") {
				t.Errorf("it says: %s", r.errors)
			}
		})
	}
}

func TestEveryVerbHasHelpThatShowsHowItIsCalled(t *testing.T) {
	for _, verb := range [][]string{{}, {"plan"}, {"apply"}, {"status"}, {"gate"}, {"backfill"}, {"checkpoint"}, {"checkpoint", "claim"},
		{"checkpoint", "advance"}, {"checkpoint", "activate"}, {"checkpoint", "declare"}, {"checkpoint", "list"}, {"checkpoint", "abandon"},
		{"fence"}, {"fence", "check"}, {"fence", "repair"}, {"abandon"}, {"prune"}, {"remove"}} {
		r := runProgram(t, "", append(verb, "--help")...).must(t, 0)
		if !strings.Contains(r.out, "Usage:") || len(r.out) < 200 {
			t.Errorf("syncbarrier %v --help says:\n%s", verb, r.out)
		}
	}
}
