// Command clinic is a small application that follows the sync protocol: what it writes, it also writes to the commit log, with
// the schema version it was built for. `make demo` runs it as the old program that is still at work during a migration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "clinic:", err)
		os.Exit(1)
	}
}

const usage = `usage:
  clinic init  -database ADDRESS [-schema NAME] -rows N      create the patients of version 6
  clinic write -database ADDRESS [-schema NAME] -version V   rename patients all the time, as a program of version V, until ended
  clinic check -database ADDRESS [-schema NAME]              compare every derived value with its definition
  clinic drop  -database ADDRESS -schema NAME                drop the demo's own database schema (PostgreSQL)

ADDRESS is postgres://... or sqlite:PATH`

func run() error {
	if len(os.Args) < 2 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("clinic", flag.ContinueOnError)
	address := flags.String("database", "", "postgres://... or sqlite:PATH")
	schema := flags.String("schema", "public", "database schema (PostgreSQL)")
	rows := flags.Int("rows", 20000, "patients to create")
	version := flags.Int64("version", 6, "the schema version this program was built for")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db, err := open(ctx, *address, *schema)
	if err != nil {
		return err
	}
	defer db.Close()
	switch os.Args[1] {
	case "init":
		return db.createPatients(ctx, *rows)
	case "write":
		return writeUntilEnded(ctx, db, *version)
	case "check":
		return check(ctx, db)
	case "drop":
		return db.dropSchema(ctx)
	default:
		return errors.New(usage)
	}
}

// writeEvery is the pause between two writes.
const writeEvery = 50 * time.Millisecond

// writeUntilEnded renames patients one after the other and tells when the database begins or stops to refuse it.
func writeUntilEnded(ctx context.Context, db *database, version int64) error {
	refused, written := false, 0
	for n := 0; ; n++ {
		err := db.rename(ctx, n, version)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			written++
			if written == 1 || refused {
				fmt.Printf("version %d writes\n", version)
			}
			refused = false
		case !refused:
			refused = true
			fmt.Printf("version %d was refused by the database after %d writes: %v\n", version, written, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(writeEvery):
		}
	}
}

func check(ctx context.Context, db *database) error {
	wrong, err := db.wrongRows(ctx)
	if err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%d patients have another name_search than lower(name)", wrong)
	}
	fmt.Println("every patient's name_search is lower(name)")
	return nil
}
