package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// newLogger writes a line an entry.
func newLogger(to io.Writer, o *options) logr.Logger {
	// logr counts verbosity upwards, slog downwards in steps of one.
	handling := &slog.HandlerOptions{Level: slog.Level(-min(o.logLevel, mostVerbose))}
	if strings.EqualFold(o.logFormat, "text") {
		return logr.FromSlogHandler(calm{slog.NewTextHandler(to, handling)})
	}
	return logr.FromSlogHandler(calm{slog.NewJSONHandler(to, handling)})
}

// mostVerbose is how much is logged at most. From 8 on the client of the API server logs every answer with its body, and a Secret is one.
const mostVerbose = 7

// useLogger makes the libraries log as we do; those that use the package log too, as the HTTP servers do.
func useLogger(logger logr.Logger) {
	slog.SetDefault(slog.New(logr.ToSlogHandler(logger)))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}

// calm is a handler that takes for an error only what somebody may have to do something about. The libraries call errors too what is part of
// the life of a cluster, and passes by itself.
type calm struct{ slog.Handler }

// Handle lowers the level of an error that passes.
func (c calm) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelError {
		return c.Handler.Handle(ctx, record)
	}
	record.Attrs(func(attr slog.Attr) bool {
		if err, ok := attr.Value.Any().(error); ok && passes(record.Message, err) {
			record.Level = slog.LevelInfo
			return false
		}
		return true
	})
	return c.Handler.Handle(ctx, record)
}

// WithAttrs and WithGroup keep the handler what it is.
func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{c.Handler.WithAttrs(attrs)} }

// WithGroup is like WithAttrs.
func (c calm) WithGroup(name string) slog.Handler { return calm{c.Handler.WithGroup(name)} }

// passing are errors of libraries that have no type, by the message that they are logged with and how they begin.
var passing = map[string]string{
	// The Secret of the webhook's certificate is shipped empty, and filled right after. cert-controller says so of one that was emptied too, and
	// fills it again.
	"secret is not well-formed, cannot update webhook configurations": "Cert secret is not well-formed",
	// Who ends gives the lease up. One that was taken away ends the program, which logs that as what it is.
	"error received after stop sequence was engaged": "leader election lost",
}

// passes says of an error of the API server that it is about two who wrote the same object, of whom one writes again (two replicas that make the
// certificate, a status that was taken away), or about a namespace that is being deleted, which takes in no events; of others that they are
// known to pass, or come of the program's end.
func passes(message string, err error) bool {
	if errors.Is(err, context.Canceled) || apierrors.IsConflict(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return true
	}
	begin, known := passing[message]
	return known && strings.HasPrefix(err.Error(), begin)
}
