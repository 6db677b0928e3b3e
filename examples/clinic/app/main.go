// Command app is the clinic as a program in a cluster: it serves and changes patients over HTTP, and has a version.
//
// It knows nothing of Syncbarrier but one setting: its connections say which schema version it was built for. Everything else is what
// any program does that is released in versions: version 7 reads a column that version 6 does not know, and each later version one more.
// With VITALS it is a program of the sync protocol too, whose packed rows only its own version can read (vitals.go): then it asks the gate
// itself, with every read.
//
// `app load` is the other side: users that read and write all the time (load.go).
//
// Environment: DATABASE_URL; APP_VERSION; LISTEN (":8080"); PATIENTS, how many a program of version 6 begins with ("1000");
// VITALS, anything, to keep vital signs.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	// startTimeout bounds how long the first program waits for its database.
	startTimeout = 2 * time.Minute
	// shutdownTimeout bounds how long requests under way are waited for at the end.
	shutdownTimeout = 10 * time.Second
	// farewell is how long clients are told to leave.
	farewell = 2 * time.Second
	// requestTimeout bounds one request with its statement.
	requestTimeout = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := run
	if len(os.Args) == 2 && os.Args[1] == "load" {
		work = runLoad
	}
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "clinic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	version, err := strconv.Atoi(os.Getenv("APP_VERSION"))
	if err != nil || version < 1 {
		return errors.New("APP_VERSION is no version: a whole number from 1")
	}
	rows, err := strconv.Atoi(setting("PATIENTS", "1000"))
	if err != nil {
		return errors.New("PATIENTS is no number")
	}
	patients, err := openPatients(os.Getenv("DATABASE_URL"), version)
	if err != nil {
		return err
	}
	defer patients.pool.Close()
	if setting("VITALS", "") != "" {
		if patients.vitals, err = patients.openVitals(); err != nil {
			return err
		}
	}
	if version < firstDerived {
		if err := patients.createWithin(ctx, startTimeout, rows); err != nil {
			return err
		}
	}
	server := &http.Server{Addr: setting("LISTEN", ":8080"), Handler: patients.handler(), ReadHeaderTimeout: requestTimeout}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	fmt.Printf("clinic of version %d listens on %s\n", version, server.Addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Clients that keep connections are told to leave first: a connection that is closed while a request is on its way loses it.
	patients.ending.Store(true)
	time.Sleep(farewell)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	return server.Shutdown(ending)
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
