package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const databaseVariable = "SYNCBARRIER_DATABASE"

// session is what a verb works with.
type session struct {
	store  storage.Store
	file   *manifest.File // nil without -f
	target storage.Target // of the file
}

// need says what a verb needs.
type need struct {
	file        bool
	create      bool // an SQLite file may come into being
	connections int
}

// open reads the file, opens the database, and bounds the context by --timeout. close must be called.
func (p *Program) open(ctx context.Context, n need) (context.Context, *session, func(), error) {
	if p.flags.output != "text" && p.flags.output != "json" {
		return nil, nil, nil, usagef("--output is text or json, not %q", p.flags.output)
	}
	s := &session{}
	if err := p.readFile(s, n.file); err != nil {
		return nil, nil, nil, err
	}
	address, err := p.address(s.file, n)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.flags.timeout, fmt.Errorf("gave up after %s (--timeout): %w", p.flags.timeout, context.DeadlineExceeded))
	s.store, err = p.Open(ctx, address)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return ctx, s, func() { s.store.Close(); cancel() }, nil
}

func (p *Program) readFile(s *session, needed bool) error {
	if p.flags.file == "" {
		if needed {
			return usagef("-f FILE is needed: the SyncSchema to work with (- is standard input)")
		}
		return nil
	}
	text, name := p.In, "standard input"
	if p.flags.file != "-" {
		opened, err := os.Open(p.flags.file)
		if err != nil {
			return usage(fmt.Errorf("read -f: %w", err))
		}
		defer func() { _ = opened.Close() }() // only read from
		text, name = opened, p.flags.file
	}
	file, err := manifest.Parse(text, name)
	if err != nil {
		return err
	}
	target, waiting, err := manifest.Convert(file)
	if err != nil {
		return err
	}
	for _, checkpoint := range waiting {
		p.say("checkpoint %q of version %d waits until the schema has that version", checkpoint.Spec.Name, checkpoint.Spec.Version)
	}
	s.file, s.target = file, target
	return nil
}

func (p *Program) address(file *manifest.File, n need) (Address, error) {
	database, err := p.databaseAddress()
	if err != nil {
		return Address{}, err
	}
	address := Address{
		Database: database, Schema: p.flags.schema, Pooler: p.flags.pooler,
		TLSCA: p.flags.tlsCA, TLSCert: p.flags.tlsCert, TLSKey: p.flags.tlsKey,
		Create: n.create, Connections: n.connections,
	}
	if file != nil {
		if address.Schema == "" {
			address.Schema = file.DatabaseSchema()
		}
		if address.Pooler == "" {
			address.Pooler = string(file.Pooler())
		}
	}
	if address.Pooler != "" && address.Pooler != "None" && address.Pooler != "Transaction" {
		return Address{}, usagef("--pooler is None or Transaction, not %q", address.Pooler)
	}
	return address, nil
}

// databaseAddress takes the address from the flag, the file, or the environment, in this order, and never shows it.
func (p *Program) databaseAddress() (string, error) {
	switch {
	case p.flags.database != "" && p.flags.databaseFile != "":
		return "", usagef("--database and --database-file exclude each other")
	case p.flags.database != "":
		return p.flags.database, nil
	case p.flags.databaseFile != "":
		content, err := os.ReadFile(p.flags.databaseFile)
		if err != nil {
			return "", usage(fmt.Errorf("read --database-file: %w", err))
		}
		address := strings.TrimSpace(string(content))
		if address == "" {
			return "", usage(errors.New("--database-file is empty"))
		}
		return address, nil
	case p.Getenv(databaseVariable) != "":
		return p.Getenv(databaseVariable), nil
	}
	return "", usagef("no database: give --database postgres://... or sqlite:PATH, --database-file, or %s", databaseVariable)
}
