package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// worker is one share of a claim, as Jobs run it: it waits out a database that is away, takes up credentials that were changed, logs in
// lines, and ends well only if the database says that its share is done (docs/design.md section 7).
type worker struct {
	program *Program
	log     *slog.Logger
	name    string
	token   string
	share   backfill.Share
	address Address // as it was read last
	files   string  // what identifies the contents it came from
	shown   time.Time
	rows    int64 // rows done when they were shown last
}

// workerConnections is enough for one share, whose steps come one after the other: there may be 64 workers.
const workerConnections = 2

// Bounds of the pause between two tries to reach the database.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// errMoved ends a run so that the database is opened anew.
var errMoved = errors.New("the database's address or credentials were changed")

func (p *Program) newWorker(name, token string, share backfill.Share) *worker {
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, is := a.Value.Any().(error); is {
			return slog.String(a.Key, shortened(err.Error()))
		}
		return a
	}}
	var handler slog.Handler = slog.NewTextHandler(p.Err, options)
	if p.json() {
		handler = slog.NewJSONHandler(p.Err, options)
	}
	return &worker{program: p, log: slog.New(handler).With("checkpoint", name, "index", share.Index, "of", share.Of), name: name, token: token, share: share}
}

// run works until the share is done or cannot be, and logs as its last line how it ended: that line becomes the pod's termination message.
func (w *worker) run(ctx context.Context) error {
	if w.program.flags.output != "text" && w.program.flags.output != "json" {
		return usagef("--output is text or json, not %q", w.program.flags.output)
	}
	ctx, end := w.program.bounded(ctx)
	defer end()
	err := w.work(ctx)
	if err == nil {
		return nil
	}
	code := exitCode(ctx, err)
	message := err.Error()
	if code == exitUsage {
		message = withoutSecrets(message)
	}
	w.log.Error(shortened(message), "reason", reasonOf(err, code), "code", storage.CodeOf(err), "exitCode", code)
	return reported{code}
}

// shortened bounds a message so that the line it stands in fits a termination message, which holds the last 2 KiB of a log: a line whose
// beginning is lost tells the operator nothing. What counts is the message as it is written, where a character of a key can take six bytes.
func shortened(message string) string {
	const limit = 1200
	for most := limit; ; most -= limit / 20 {
		short := legible.Cut(message, most)
		written, err := json.Marshal(short)
		if err != nil || len(legible.Text(string(written))) <= limit || most <= limit/20 {
			return short
		}
	}
}

// work opens the database and works on it, again and again as its address changes.
func (w *worker) work(ctx context.Context) error {
	for {
		store, err := w.open(ctx)
		if err != nil {
			return err
		}
		err = w.workOn(ctx, store)
		store.Close()
		if !errors.Is(err, errMoved) || ctx.Err() != nil {
			return err
		}
		w.log.Info("address and credentials are read again")
	}
}

// open reads the address and opens the database, however long that takes. A first address that cannot be read is the caller's mistake;
// later it is a Secret in the middle of a change.
func (w *worker) open(ctx context.Context) (storage.Store, error) {
	for try := 0; ; try++ {
		address, err := w.program.address(nil, need{connections: workerConnections})
		known := w.files != ""
		if err == nil {
			w.address, w.files = address, identify(address)
			var store storage.Store
			if store, err = w.program.Open(ctx, address); err == nil {
				return store, nil
			}
			if !storage.ClassOf(err).Retryable() && (!known || storage.ClassOf(err) != storage.ClassInvalidSpec) {
				return nil, err
			}
		} else if !known {
			return nil, err
		}
		if err := w.pause(ctx, try, err); err != nil {
			return nil, err
		}
	}
}

func (w *worker) pause(ctx context.Context, try int, why error) error {
	pause := min(lastPause, firstPause<<min(try, 7))
	pause += time.Duration(rand.Float64() * float64(pause) / 2)
	w.log.Warn("waiting", "for", pause.Round(time.Millisecond).String(), "reason", storage.ClassOf(why), "error", withoutSecrets(why.Error()))
	if err := w.program.Clock.Sleep(ctx, pause); err != nil {
		return fmt.Errorf("%w (last: %w)", err, why)
	}
	return nil
}

// identify tells addresses apart by their contents, certificates included, and holds nothing of them.
func identify(address Address) string {
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%+v", address) // a hash never fails to be written to
	for _, file := range []string{address.TLSCA, address.TLSCert, address.TLSKey} {
		if file == "" {
			continue
		}
		content, err := os.ReadFile(file)
		_, _ = fmt.Fprintf(hash, "|%x %v", content, err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// moved says whether the address is another one than the one that was opened.
func (w *worker) moved() bool {
	address, err := w.program.address(nil, need{connections: workerConnections})
	return err == nil && identify(address) != w.files
}

// workOn runs the share on an open database until the database says that it is done.
func (w *worker) workOn(ctx context.Context, store storage.Store) error {
	ctx, move := context.WithCancelCause(ctx)
	defer move(nil)
	runner := &backfill.Runner{Store: store, Clock: w.program.Clock, Report: func(e backfill.Event) {
		w.event(e)
		if e.Kind == backfill.EventWaiting && w.moved() {
			move(errMoved)
		}
	}}
	for {
		claim, err := w.claim(ctx, store)
		if err != nil {
			return w.caused(ctx, err)
		}
		if err := runner.Run(ctx, claim, w.share); err != nil {
			return w.caused(ctx, fmt.Errorf("backfill %q: %w", w.name, err))
		}
		done, err := w.done(ctx, store)
		if err != nil || done {
			return w.caused(ctx, err)
		}
	}
}

// caused gives the reason for which a context was ended in place of the error that its end led to.
func (w *worker) caused(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errMoved) {
		return errMoved
	}
	return err
}

// claim reads the claim that this worker is to work for, and logs in passing what there is to do.
func (w *worker) claim(ctx context.Context, store storage.Store) (claim storage.Claim, err error) {
	err = w.persist(ctx, func() error {
		if _, err := store.Status(ctx); err != nil { // refused by a catalog that this program is too old for
			return err
		}
		definition, err := store.ReadDefinition(ctx, w.name)
		if err != nil {
			return err
		}
		if err := runnable(definition); err != nil {
			return err
		}
		claim, err = store.ReadClaim(ctx, w.name, w.token)
		return err
	})
	if err == nil && w.shown.IsZero() {
		w.shown = w.program.Clock.Now()
		w.log.Info("at work", "rowsOfCheckpoint", len(claim.Rows))
	}
	return claim, err
}

// done asks the database whether this share is done: its ranges are, and nothing that it had to activate is left.
func (w *worker) done(ctx context.Context, store storage.Store) (done bool, err error) {
	err = w.persist(ctx, func() error {
		claim, err := store.ReadClaim(ctx, w.name, w.token)
		if err != nil {
			return err
		}
		if len(claim.Rows) == 0 {
			done = true
			w.log.Info("the checkpoint is activated")
			return nil
		}
		// Taking the ranges again is how their state is read under this claim; nobody else takes them.
		leases, err := store.TakeRanges(ctx, claim, w.share.Index, w.share.Of)
		if err != nil {
			return err
		}
		progress, err := store.ReadProgress(ctx, w.name)
		if err != nil {
			return err
		}
		// While others scan, whoever ends the last range activates. With all ranges done, what is open of this share's rows was left here.
		done = shareDone(claim, leases, progress.RangesDone < progress.RangesTotal)
		if done {
			w.log.Info("this share is done, others are at work", "activated", progress.Activated, "partitions", progress.Total)
		}
		return nil
	})
	return done, err
}

// shareDone says whether a share is done, given the open rows of the claim, the share's ranges, and whether others still scan.
func shareDone(claim storage.Claim, leases []storage.Lease, othersScan bool) bool {
	for _, lease := range leases {
		if !lease.Done {
			return false
		}
		if _, open := claim.Row(lease.Partition); open && !othersScan {
			return false
		}
	}
	return true
}

// persist repeats what fails for a reason that passes.
func (w *worker) persist(ctx context.Context, step func() error) error {
	for try := 0; ; try++ {
		err := step()
		if err == nil || !storage.ClassOf(err).Retryable() {
			return err
		}
		if w.moved() {
			return errMoved
		}
		if err := w.pause(ctx, try, err); err != nil {
			return err
		}
	}
}

// event logs what the runner reports: each activation, each wait that is felt, and progress every few seconds.
func (w *worker) event(e backfill.Event) {
	switch e.Kind {
	case backfill.EventActivated:
		w.log.Info("activated", "partition", e.Partition, "rest", e.Rest)
	case backfill.EventWaiting:
		if e.Pause >= time.Second {
			w.log.Warn("waiting", "for", e.Pause.Round(time.Millisecond).String(), "reason", storage.ClassOf(e.Err), "error", e.Err)
		}
	case backfill.EventScanned, backfill.EventTailed:
		now := w.program.Clock.Now()
		if now.Sub(w.shown) < lineEvery {
			return
		}
		rate := float64(e.Rows-w.rows) / now.Sub(w.shown).Seconds()
		w.log.Info("rows", "kind", e.Kind, "partition", e.Partition, "rows", e.Rows, "perSecond", int64(rate))
		w.shown, w.rows = now, e.Rows
	}
}
