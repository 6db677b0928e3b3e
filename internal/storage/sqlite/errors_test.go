package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestWhatSQLiteSaysGetsAStableCode(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	for name, tt := range map[string]struct {
		do   func(ctx context.Context, tx *sql.Conn) error
		code storage.Code
	}{
		"a full disk": {func(ctx context.Context, tx *sql.Conn) error {
			closeConnection(ctx)
			_, err := tx.ExecContext(ctx, "PRAGMA max_page_count = 1; CREATE TABLE big(b BLOB); INSERT INTO big VALUES (randomblob(1000000))")
			return err
		}, storage.CodeConnectionLost},
		"a refusal of the fence": {func(ctx context.Context, tx *sql.Conn) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM sync_writer_fence")
			return err
		}, storage.CodeFenceGuard},
		"a code in a program's own message": {func(ctx context.Context, tx *sql.Conn) error {
			_, err := tx.ExecContext(ctx, "SELECT no_such_column AS \"sync.storage.conflict\" FROM sync_commits")
			return err
		}, storage.CodeInternal},
		"a defect of ours": {func(ctx context.Context, tx *sql.Conn) error {
			_, err := tx.ExecContext(ctx, "SELEC 1")
			return err
		}, storage.CodeInternal},
		"an error that has a code": {func(context.Context, *sql.Conn) error {
			return storage.Refuse(storage.CodeUnverifiable, "as it is")
		}, storage.CodeUnverifiable},
		"a context that ended": {func(context.Context, *sql.Conn) error { return context.DeadlineExceeded }, storage.CodeCancelled},
		"any other error":      {func(context.Context, *sql.Conn) error { return errors.New("other") }, storage.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := store.inTx(testContext(t), "do something", true, tt.do)
			wantCode(t, err, tt.code)
			if tt.code != storage.CodeUnverifiable {
				wantText(t, err, "do something")
			}
		})
	}
}

func TestTheCodeOfATriggerIsTheBareMessageForOtherPrograms(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	err := p.commit("p", 1, 1)
	if err == nil || !strings.Contains(err.Error(), ": "+fenced+" (") {
		t.Errorf("a program sees %v", err)
	}
}

func TestADamagedFileIsNoDefectOfTheUsersSQL(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	store.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(content); i++ {
		content[i] = 0xa5
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := Open(testContext(t), Config{Path: path})
	if err == nil {
		defer damaged.Close()
		_, err = damaged.EnsureSchema(testContext(t), version7(), storage.Attempt{Number: 1})
	}
	wantCode(t, err, storage.CodeInternal)
	wantText(t, err, "malformed")
	wantCode(t, translateUserSQL(errors.Unwrap(err), "the SQL of version 7"), storage.CodeInternal)
}
