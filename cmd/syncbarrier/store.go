package main

import (
	"context"
	"os"
	"regexp"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/cli"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/storage/sqlite"
)

// open chooses the backend by the scheme of the address. An address that fits neither is not repeated in the error: it may
// hold a password.
func open(ctx context.Context, address cli.Address) (storage.Store, error) {
	if path, ok := strings.CutPrefix(address.Database, "sqlite:"); ok {
		if err := checkPath(path); err != nil {
			return nil, err
		}
		store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Create: address.Create})
		if err != nil {
			return nil, err // not store: a nil *sqlite.Store is no nil storage.Store
		}
		return store, nil
	}
	if strings.HasPrefix(address.Database, "postgres://") || strings.HasPrefix(address.Database, "postgresql://") {
		store, err := postgres.Open(ctx, postgres.Config{
			URL: address.Database, Name: address.Name, Schema: address.Schema, Pooler: address.Pooler, MaxConnections: int32(address.Connections),
			ApplicationName: "syncbarrier", TLSCA: address.TLSCA, TLSCert: address.TLSCert, TLSKey: address.TLSKey,
		})
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	return nil, storage.Refuse(storage.CodeInvalidSpec, "the database address must begin with postgres:// or sqlite:")
}

var parameters = regexp.MustCompile(`\?[A-Za-z_]+=`)

// checkPath refuses to make a file of what is meant as a URL: what stands behind sqlite: is a path and nothing else, so parameters would
// become part of the file's name, and a host the folder at the root of the disk. A file that is there may be called anything.
func checkPath(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	host := strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///")
	if host || strings.HasPrefix(path, "file:") || parameters.MatchString(path) {
		return storage.Refuse(storage.CodeInvalidSpec, "sqlite:%s: there is no such file, and it looks like a URL: behind sqlite: stands a path and nothing else", path).
			WithHint("write sqlite:clinic.db or sqlite:/data/clinic.db, without a host and without parameters")
	}
	return nil
}
