package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryVerbSaysJSONAsOneObject: with a reason and a message, and with an empty list where there is nothing, so that a script need not
// ask first what it got.
func TestEveryVerbSaysJSONAsOneObject(t *testing.T) {
	d := sqliteTarget(t)
	empty := "sqlite:" + filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(strings.TrimPrefix(empty, "sqlite:"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	verbs := [][]string{
		{"status"}, {"gate", "--version", "7"}, {"fence", "check"}, {"fence", "repair"}, {"checkpoint", "list"},
		{"checkpoint", "declare", "title-norm", "-f", "-"}, {"checkpoint", "claim", "title-norm"}, {"checkpoint", "claim", "title-norm", "--claim", "none"},
		{"checkpoint", "advance", "title-norm", "--epoch", "1", "--claim", "none", "--watermark", "0"},
		{"checkpoint", "activate", "title-norm", "--epoch", "1", "--claim", "none", "--watermark", "0"},
		{"abandon", "title-norm", "--version", "7", "--reason", "r", "--yes"}, {"prune", "--partition", "a"},
		{"remove"}, {"plan", "-f", "-"}, {"apply", "-f", "-", "--barrier-only"}, {"backfill", "title-norm"}, {"backfill", "other"},
		{"apply", "-f", "-"}, {"plan", "-f", "-"}, {"checkpoint", "claim", "title-norm"}, {"checkpoint", "list"}, {"fence", "check"},
		{"gate", "--version", "7", "--bogus"}, {"gate", "--version", "x"}, {"checkpoint", "bogus"}, {"abandon"}, {"aply"},
	}
	clinicAtV6(t, d, 3)
	for _, address := range []string{empty, d.address} {
		for _, verb := range verbs {
			args := append(verb, "--database", address, "-o", "json")
			wantObject(t, strings.Join(args, " "), runProgram(t, schemaV7, args...))
		}
	}
}

func wantObject(t *testing.T, what string, r result) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(r.out))
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		t.Errorf("%s: no object (%v):\n%s%s", what, err, r.out, r.errors)
		return
	}
	if err := decoder.Decode(&object); !errors.Is(err, io.EOF) {
		t.Errorf("%s: there is more than one object:\n%s", what, r.out)
	}
	for _, name := range []string{"reason", "message"} {
		if text, _ := object[name].(string); text == "" {
			t.Errorf("%s: it has no %s:\n%s", what, name, r.out)
		}
	}
	if strings.Contains(r.out, ": null") {
		t.Errorf("%s: it has a null:\n%s", what, r.out)
	}
}

func TestAPathIsNoURL(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, address := range []string{"sqlite:file:clinic.db", "sqlite:clinic.db?mode=ro", "sqlite:file::memory:?cache=shared", "sqlite://clinic.db"} {
		r := runProgram(t, schemaV6, "apply", "-f", "-", "--database", address).must(t, 20)
		if !strings.Contains(r.errors, "a path and nothing else") {
			t.Errorf("%s: it says %s", address, r.errors)
		}
	}
	if files, err := os.ReadDir("."); err != nil || len(files) != 0 {
		t.Errorf("files were made: %v %v", files, err)
	}
	if err := os.WriteFile("clinic.db?mode=ro", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runProgram(t, schemaV6, "apply", "-f", "-", "--database", "sqlite:clinic.db?mode=ro").must(t, 0)
	runProgram(t, schemaV6, "apply", "-f", "-", "--database", "sqlite://"+filepath.Join(t.TempDir(), "clinic.db")).must(t, 0)
}

// TestWorkGoesOnWhenNobodyReadsItsOutput: a pipe that is closed would end the process in the middle of its work.
func TestWorkGoesOnWhenNobodyReadsItsOutput(t *testing.T) {
	d := sqliteTarget(t)
	clinicAtV6(t, d, 5)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), runBound)
	defer cancel()
	cmd := command(ctx, "apply", "-f", "-", "--database", d.address)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(schemaV7), writer, writer
	if err := cmd.Run(); err != nil {
		t.Errorf("apply ended with %v", err)
	}
	run(t, d, "", "gate", "--version", "7").must(t, 0)
}
