package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAShareIsDoneWhenItsRangesAreAndNothingItHadToActivateIsLeft(t *testing.T) {
	open := storage.Claim{Rows: []storage.CheckpointRow{{Partition: "a"}}}
	done, half := storage.Lease{Partition: "a", Done: true}, storage.Lease{Partition: "a"}
	elsewhere := storage.Lease{Partition: "b", Done: true}
	for name, c := range map[string]struct {
		leases     []storage.Lease
		othersScan bool
		want       bool
	}{
		"no range is this share's":                                  {nil, true, true},
		"no range is this share's, and nobody scans":                {nil, false, true},
		"a range is not finished":                                   {[]storage.Lease{done, half}, true, false},
		"others scan, and whoever ends activates":                   {[]storage.Lease{done}, true, true},
		"all ranges are finished, and the row is not activated":     {[]storage.Lease{done}, false, false},
		"this share's row is activated, another share's row is not": {[]storage.Lease{elsewhere}, false, true},
	} {
		if got := shareDone(open, c.leases, c.othersScan); got != c.want {
			t.Errorf("%s: done is %t", name, got)
		}
	}
}

func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFolderHoldsAnAddressOrItsParts(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"address":                {map[string]string{"url": "postgres://u:p@db/app\n"}, "postgres://u:p@db/app"},
		"address in a namespace": {map[string]string{"url": "postgres://u:p@db/app", "namespace": "shop"}, "postgres://u:p@db.shop.svc/app"},
		"parts": {map[string]string{"host": "db\n", "port": "6432\r\n", "database": "app", "user": "u", "password": "p@/ \n", "sslmode": "verify-full", "namespace": "shop"},
			"postgres://u:p%40%2F%20@db.shop.svc:6432/app?sslmode=verify-full"},
	} {
		folder := t.TempDir()
		write(t, folder, c.files)
		got, err := fileAddress(folder)
		if err != nil || got.Database != c.want || got.TLSCA != "" {
			t.Errorf("%s: %+v, error %v, want %s", name, got, err, c.want)
		}
	}
	folder := t.TempDir()
	write(t, folder, map[string]string{"password": "S3CRET", "user": "u"})
	if _, err := fileAddress(folder); err == nil || !strings.Contains(err.Error(), "host is empty") || strings.Contains(err.Error(), "S3CRET") {
		t.Errorf("of half of the parts it says %v", err)
	}
}

func TestAChangeOfAnyFileIsNoticed(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string]string{"url": "postgres://u:p@db/app", "ca.crt": "one"})
	p := &Program{flags: flags{databaseFile: folder}, Getenv: func(string) string { return "" }}
	w := &worker{program: p}
	address, err := p.address(nil, need{})
	if err != nil {
		t.Fatal(err)
	}
	address.Connections = workerConnections
	w.files = identify(address)
	if address.TLSCA != filepath.Join(folder, "ca.crt") || w.moved() {
		t.Fatalf("nothing was changed: %+v", address)
	}
	for name, content := range map[string]string{"ca.crt": "two", "url": "postgres://u:q@db/app", "tls.key": "key"} {
		write(t, folder, map[string]string{name: content})
		if !w.moved() {
			t.Errorf("a change of %s is not noticed", name)
		}
		if address, err = p.address(nil, need{connections: workerConnections}); err != nil {
			t.Fatal(err)
		}
		w.files = identify(address)
	}
}

// terminationMessage is how much of a log's end becomes a pod's termination message (Kubernetes documentation, "Determine the Reason for Pod
// Failure").
const terminationMessage = 2048

func TestAWorkersLastLineFitsATerminationMessageWhateverKeysItNames(t *testing.T) {
	for name, key := range map[string]string{
		"plain": "k", "quotes": `"`, "control characters": "\x1b", "direction": "\u202e", "bytes that are no text": "\xff", "wide": "日", "tags": "\U000e0001",
	} {
		var log bytes.Buffer
		p := &Program{Err: &log, flags: flags{output: "json", database: "postgres://db/app"}}
		p.Open = func(context.Context, Address) (storage.Store, error) {
			return nil, storage.Refuse(storage.CodeVerificationFailed, "wrong rows: %s", strings.Repeat(key, 4000))
		}
		p.fillDefaults()
		var ended reported
		if err := p.newWorker(strings.Repeat("c", 63), "token", backfill.Share{Of: 64}).run(t.Context()); !errors.As(err, &ended) || ended.code != 28 {
			t.Fatalf("%s: it ends with %v", name, err)
		}
		var said struct{ Reason, Msg string }
		line := strings.TrimSpace(log.String())
		if err := json.Unmarshal([]byte(line), &said); err != nil || said.Reason != "VerificationFailed" || !strings.HasPrefix(said.Msg, "wrong rows: ") {
			t.Errorf("%s: %v: %s", name, err, line)
		}
		if len(line) > terminationMessage {
			t.Errorf("%s: the line has %d bytes", name, len(line))
		}
	}
}
