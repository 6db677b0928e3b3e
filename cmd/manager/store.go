package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
)

// openDatabase is the controllers' Opener: the one place where the operator chooses a backend.
//
// The certificates of a connection come from Secrets, and the driver reads them from files, once, while the pool is opened. So they are in
// a folder of this process alone for that long.
func openDatabase(ctx context.Context, c controllers.Connection) (controllers.Database, error) {
	return openWith(ctx, c, controllers.PoolConnections)
}

// openForGates is the Opener of what only reads gates.
func openForGates(ctx context.Context, c controllers.Connection) (controllers.Database, error) {
	return openWith(ctx, c, controllers.GateConnections)
}

func openWith(ctx context.Context, c controllers.Connection, connections int32) (controllers.Database, error) {
	config := postgres.Config{
		URL: string(c.URL), Name: cmp.Or(c.Name, "the database"), Pooler: c.Pooler,
		MaxConnections: connections, ApplicationName: "syncbarrier-manager",
	}
	if c.TLSCA == "" && c.TLSCert == "" && c.TLSKey == "" {
		return openPostgres(ctx, config)
	}
	folder, err := os.MkdirTemp("", "syncbarrier-tls-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the certificates of %s: %w", c.Name, err)
	}
	config.TLSCA, config.TLSCert, config.TLSKey = filepath.Join(folder, "ca.pem"), filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	err = errors.Join(writeSecret(&config.TLSCA, c.TLSCA), writeSecret(&config.TLSCert, c.TLSCert), writeSecret(&config.TLSKey, c.TLSKey))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the certificates of %s for the driver: %w", c.Name, err), os.RemoveAll(folder))
	}
	database, err := openPostgres(ctx, config)
	if removal := os.RemoveAll(folder); removal != nil && err == nil {
		database.Close()
		return nil, fmt.Errorf("remove the certificates of %s: %w", c.Name, removal)
	}
	return database, err
}

// writeSecret writes a text to a file that this user alone can read. Without a text there is no file, and the path becomes empty.
func writeSecret(path *string, text controllers.Secret) error {
	if text == "" {
		*path = ""
		return nil
	}
	return os.WriteFile(*path, []byte(string(text)), 0o600)
}

func openPostgres(ctx context.Context, config postgres.Config) (controllers.Database, error) {
	database, err := postgres.OpenDatabase(ctx, config)
	if err != nil {
		return nil, err // not database: a nil *postgres.Database is no nil controllers.Database
	}
	return database, nil
}
