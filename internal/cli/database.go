package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Variables that say where the database is, for a program that has no flags to give.
const (
	databaseVariable = "SYNCBARRIER_DATABASE"
	fileVariable     = "SYNCBARRIER_DATABASE_FILE"
	schemaVariable   = "SYNCBARRIER_SCHEMA"
	poolerVariable   = "SYNCBARRIER_POOLER"
)

// session is what a verb works with.
type session struct {
	store  storage.Store
	file   *manifest.File // nil without -f
	target storage.Target // of the file
}

// suspended says that the file wants nothing to begin.
func (s *session) suspended() bool { return s.file != nil && s.file.Schema.Spec.Suspend }

// need says what a verb needs.
type need struct {
	file        bool
	create      bool // an SQLite file may come into being
	connections int
	waits       []storage.Class // for what to pass before the database is open; anything else ends the verb
}

// lockOnly: whoever has locked the database for itself lets go again; a server that is not there may be a wrong address.
var lockOnly = []storage.Class{storage.ClassLockTimeout}

// open reads the file, opens the database, and bounds the context by --timeout. close must be called.
func (p *Program) open(ctx context.Context, n need) (context.Context, *session, func(), error) {
	if p.flags.output != "text" && p.flags.output != "json" {
		return nil, nil, nil, usagef("--output is text or json, not %q", p.flags.output)
	}
	s := &session{}
	if err := p.readFile(s, n.file); err != nil {
		return nil, nil, nil, err
	}
	n.create = n.create && !s.suspended()
	address, err := p.address(s.file, n)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := p.bounded(ctx)
	s.store, err = p.openPatiently(ctx, address, n.waits)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return ctx, s, func() { s.store.Close(); cancel() }, nil
}

// openPatiently opens a database, again and again while what keeps it from that is of a class that the verb waits for.
func (p *Program) openPatiently(ctx context.Context, address Address, waits []storage.Class) (storage.Store, error) {
	for try := 0; ; try++ {
		store, err := p.Open(ctx, address)
		if err == nil || ctx.Err() != nil || !slices.Contains(waits, storage.ClassOf(err)) {
			return store, err
		}
		if try == 0 {
			p.say("waiting for the database: %v", err)
		}
		if ended := p.Clock.Sleep(ctx, min(lastPause, firstPause<<min(try, 7))); ended != nil {
			return nil, err
		}
	}
}

// bounded ends a context by --timeout; 0 is no bound.
func (p *Program) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.flags.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, p.flags.timeout, fmt.Errorf("gave up after %s (--timeout): %w", p.flags.timeout, context.DeadlineExceeded))
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
		if isFolder(p.flags.file) {
			return usagef("read -f: %s is a folder; name the file with the SyncSchema", p.flags.file)
		}
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
	address, err := p.databaseAddress()
	if err != nil {
		return Address{}, err
	}
	address.Schema, address.Pooler = p.flags.schema, p.flags.pooler
	address.TLSCA, address.TLSCert, address.TLSKey = cmp.Or(p.flags.tlsCA, address.TLSCA), cmp.Or(p.flags.tlsCert, address.TLSCert), cmp.Or(p.flags.tlsKey, address.TLSKey)
	address.Create, address.Connections = n.create, n.connections
	if file != nil { // a file says both, be it by its defaults: a variable that was left over must not take it to another schema
		address.Schema = cmp.Or(address.Schema, file.DatabaseSchema())
		address.Pooler = cmp.Or(address.Pooler, string(file.Pooler()))
	}
	address.Schema = cmp.Or(address.Schema, p.Getenv(schemaVariable))
	address.Pooler = cmp.Or(address.Pooler, p.Getenv(poolerVariable))
	if problem := manifest.ProblemOfSchema(address.Schema); address.Schema != "" && problem != "" {
		return Address{}, storage.Refuse(storage.CodeInvalidSpec, "database schema %.80q: %s", address.Schema, problem)
	}
	if address.Pooler != "" && address.Pooler != "None" && address.Pooler != "Transaction" {
		return Address{}, usagef("--pooler is None or Transaction, not %q", address.Pooler)
	}
	return address, nil
}

// databaseAddress takes the address from the flags or the environment, in this order, and never shows it.
func (p *Program) databaseAddress() (Address, error) {
	if p.flags.database != "" && p.flags.databaseFile != "" {
		return Address{}, usagef("--database and --database-file exclude each other")
	}
	if p.flags.database != "" {
		return Address{Database: p.flags.database}, nil
	}
	if p.flags.databaseFile != "" {
		return fileAddress(p.flags.databaseFile)
	}
	if value := p.Getenv(databaseVariable); value != "" {
		return Address{Database: value}, nil
	}
	if path := p.Getenv(fileVariable); path != "" {
		return fileAddress(path)
	}
	return Address{}, usagef("no database: give --database postgres://... or sqlite:PATH, --database-file, $%s or $%s", databaseVariable, fileVariable)
}

// fileAddress reads the address from a file that holds it, or from a folder that holds its parts.
func fileAddress(path string) (Address, error) {
	if isFolder(path) {
		return folderAddress(path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return Address{}, usage(fmt.Errorf("read --database-file: %w", err))
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return Address{}, usage(errors.New("--database-file is empty"))
	}
	return Address{Database: text}, nil
}
