package main

import (
	"context"
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
		store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Create: address.Create})
		if err != nil {
			return nil, err // not store: a nil *sqlite.Store is no nil storage.Store
		}
		return store, nil
	}
	if strings.HasPrefix(address.Database, "postgres://") || strings.HasPrefix(address.Database, "postgresql://") {
		store, err := postgres.Open(ctx, postgres.Config{
			URL: address.Database, Schema: address.Schema, Pooler: address.Pooler, MaxConnections: int32(address.Connections),
			ApplicationName: "syncbarrier", TLSCA: address.TLSCA, TLSCert: address.TLSCert, TLSKey: address.TLSKey,
		})
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	return nil, storage.Refuse(storage.CodeInvalidSpec, "the database address must begin with postgres:// or sqlite:")
}
