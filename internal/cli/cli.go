// Package cli is the command line: one file a verb, over manifest, barrier and backfill. It works on a database alone, with the
// same SyncSchema file that a cluster takes (docs/design.md section 9).
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Opener opens the database that an address names. The scheme decides which backend; only cmd/syncbarrier knows them.
type Opener func(ctx context.Context, address Address) (storage.Store, error)

// Address is everything that says which database is meant and how to reach it.
type Address struct {
	Database string // postgres://... or sqlite:PATH
	Name     string // what messages call the database by, if its address is not to stand there; "": its address
	Schema   string // PostgreSQL
	Pooler   string // PostgreSQL: None or Transaction
	TLSCA    string // paths of PEM files
	TLSCert  string
	TLSKey   string
	// Create lets an SQLite file come into being.
	Create bool
	// Connections is how many are needed at once.
	Connections int
}

// Program is one run of the command line. The zero values of streams and clock mean the process's own.
type Program struct {
	Open    Opener
	Version string
	// Name is what the program was called by: as kubectl-syncbarrier it is a plugin of kubectl, and speaks of a cluster first.
	Name   string
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Clock  clock.Clock
	Getenv func(string) string

	flags  flags
	screen io.Writer // what Err was given as: a progress bar draws on it, and everything else goes through Err
}

// flags are those that every verb takes.
type flags struct {
	database     string
	databaseFile string
	file         string
	schema       string
	pooler       string
	tlsCA        string
	tlsCert      string
	tlsKey       string
	timeout      time.Duration
	output       string
}

// Run carries one command out and returns the exit code. SIGINT and SIGTERM end it cleanly: what is under way is rolled back.
func (p *Program) Run(ctx context.Context, args []string) int {
	p.fillDefaults()
	ctx, stop := interruptible(ctx)
	defer stop()
	root := p.command()
	root.SetArgs(args)
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	err := root.ExecuteContext(ctx)
	if err != nil && asksForJSON(args) {
		p.flags.output = "json" // the flag may stand behind one that could not be read
	}
	return p.finish(ctx, err)
}

func (p *Program) fillDefaults() {
	if p.In == nil {
		p.In = os.Stdin
	}
	if p.Out == nil {
		p.Out = os.Stdout
	}
	if p.Err == nil {
		p.Err = os.Stderr
	}
	p.screen = p.Err
	p.Out, p.Err = legible.Writer(p.Out), legible.Writer(p.Err)
	if p.Clock == nil {
		p.Clock = clock.Real{}
	}
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
}

// signalled is the cause of a context that a signal ended.
type signalled struct{ signal os.Signal }

func (s signalled) Error() string { return "ended by " + s.signal.String() }

// interruptible gives a context that SIGINT or SIGTERM ends, with the signal as its cause. A second signal ends the process.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// Whoever read the output may go away (`| head -1`): then a write fails, and the work goes on.
	signal.Ignore(syscall.SIGPIPE)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		signal.Reset(syscall.SIGPIPE)
		cancel(nil)
	}
}

const (
	programName = "syncbarrier"
	pluginName  = "kubectl-syncbarrier"
)

// isPlugin says whether kubectl called the program.
func (p *Program) isPlugin() bool { return p.Name == pluginName }

const longHelp = `Syncbarrier takes a database to a new schema version and its data with it: it migrates behind one exclusive lock, makes the
database refuse writers that are too old, fills the rows the new version needs, proves from the commit log that no change was
missed, and only then says that the new version may serve.

It works on a database alone, with the SyncSchema file that a cluster takes too:

  syncbarrier plan  -f clinic.yaml --database postgres://app@db/clinic     what would run, which locks, how long
  syncbarrier apply -f clinic.yaml --database postgres://app@db/clinic     do it, with a progress bar
  syncbarrier gate --version 7 --database sqlite:clinic.db                 may version 7 serve? exit 0 yes, 3 no
  syncbarrier status --database postgres://app@db/clinic                   version, fence, backfills, gate

The database is named by --database, by SYNCBARRIER_DATABASE, or by a file (--database-file) that holds the address.

In a cluster, where the operator does the work, it shows SyncSchemas and speaks to them; installed as kubectl-syncbarrier it is also
'kubectl syncbarrier':

  kubectl syncbarrier status              all SyncSchemas of the namespace; with a name: one, with its backfills
  kubectl syncbarrier watch clinic        follow it until it is Ready, or a person must act
  kubectl syncbarrier approve clinic      release the plan that it waits with
  kubectl syncbarrier why POD             why a pod is Ready, or is not
  kubectl syncbarrier bypass clinic       open its gate for pods until a time, by decision and not by proof

Exit codes:
  0  done, or the gate is open        20 InvalidSpec          26 Conflict
  1  anything else                    21 InvalidSQL           27 FenceBroken
  2  wrong usage                      22 NotTransactional     28 VerificationFailed
  3  the gate is closed               23 VersionRegression    29 NotConverging, Unverifiable
  4  gave up waiting                  24 ContentDrift         130 Ctrl-C
  10 ownership lost                   25 LayoutMismatch       143 SIGTERM
  11 a newer catalog`

// knownVerb refuses a verb that there is not, and names those that are near.
func knownVerb(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return err
}

func (p *Program) command() *cobra.Command {
	root := &cobra.Command{
		Use:           programName,
		Short:         "Schema changes that carry data, without a lost write or a stale read",
		Long:          longHelp,
		Version:       p.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownVerb,

		SuggestionsMinimumDistance: 2,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := root.PersistentFlags()
	f.StringVar(&p.flags.database, "database", "", "postgres://USER:PASSWORD@HOST/DATABASE, or sqlite:PATH (default: $"+databaseVariable+")")
	f.StringVar(&p.flags.databaseFile, "database-file", "", "read the address from this file, so that it stands in no process list; or from a folder with the file url, or with host, port, database, user, password and sslmode (default: $"+fileVariable+")")
	f.StringVarP(&p.flags.file, "file", "f", "", "SyncSchema file, with any standalone BackfillCheckpoints; - is standard input")
	f.StringVar(&p.flags.schema, "schema", "", "database schema (default: the file's; without a file $"+schemaVariable+", else public)")
	f.StringVar(&p.flags.pooler, "pooler", "", "what the address is: None, or Transaction for a transaction pooler (default: the file's; without a file $"+poolerVariable+")")
	f.StringVar(&p.flags.tlsCA, "tls-ca", "", "PEM file with the server's certificate authority")
	f.StringVar(&p.flags.tlsCert, "tls-cert", "", "PEM file with the client's certificate")
	f.StringVar(&p.flags.tlsKey, "tls-key", "", "PEM file with the client's key")
	f.DurationVar(&p.flags.timeout, "timeout", time.Hour, "give up waiting after this long; 0: never")
	f.StringVarP(&p.flags.output, "output", "o", "text", "text or json")
	if p.isPlugin() {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl syncbarrier"}
	}
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if p.flags.timeout < 0 {
			return usagef("--timeout: %s is below 0; 0 waits without end", p.flags.timeout)
		}
		if err := checkNames(cmd, args); err != nil {
			return err
		}
		return refuseDatabaseFlags(cmd)
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddGroup(&cobra.Group{ID: onDatabase, Title: "On a database:"}, &cobra.Group{ID: inCluster, Title: "In a cluster, through the operator:"})
	root.AddCommand(grouped(onDatabase,
		p.planCommand(), p.applyCommand(), p.statusCommand(), p.gateCommand(), p.backfillCommand(), p.checkpointCommand(),
		p.fenceCommand(), p.abandonCommand(), p.pruneCommand(), p.removeCommand(), p.installCommand())...)
	root.AddCommand(grouped(inCluster,
		p.watchCommand(), p.suspendCommand(), p.resumeCommand(), p.retryCommand(), p.approveCommand(), p.whyCommand(), p.bypassCommand())...)
	hideDatabaseFlags(root)
	return root
}
