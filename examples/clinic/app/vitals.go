package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/pkg/servegate"
)

// The vital signs of a patient are kept as programs of the sync protocol keep rows: packed, in the column order of the version that
// wrote them. Version 6 knows eight of them and version 7 a ninth, which makes the bitmap in front longer: who reads a row of one version
// with the columns of the other reads other numbers. So the barrier of version 7 packs every row anew, and who is older may not read.
var signs = []string{"pulse", "systolic", "diastolic", "temperature", "breaths", "oxygen", "weight", "height", "pain"}

// signsOf are those that a version knows.
func signsOf(version int) []string {
	if version < firstDerived {
		return signs[:8]
	}
	return signs
}

// errMispacked says that a row was not packed with the columns of this version: what must never be met.
var errMispacked = errors.New("the vital signs are not packed as this version packs them")

// pack puts values into a row: which of them are missing, a bit each, then those that are not, in order.
func pack(values []*int64) []byte {
	packed := make([]byte, (len(values)+7)/8)
	for i, value := range values {
		if value == nil {
			packed[i/8] |= 1 << (i % 8)
		}
	}
	for _, value := range values {
		if value != nil {
			packed = binary.LittleEndian.AppendUint64(packed, uint64(*value))
		}
	}
	return packed
}

// unpack takes so many values out of a row. A row with more or less in it was packed otherwise.
func unpack(packed []byte, count int) ([]*int64, error) {
	size := (count + 7) / 8
	if len(packed) < size {
		return nil, errMispacked
	}
	missing, rest := packed[:size], bytes.NewReader(packed[size:])
	values := make([]*int64, count)
	for i := range values {
		if missing[i/8]&(1<<(i%8)) != 0 {
			continue
		}
		values[i] = new(int64)
		if binary.Read(rest, binary.LittleEndian, values[i]) != nil {
			return nil, errMispacked
		}
	}
	if used := count % 8; rest.Len() > 0 || used > 0 && missing[size-1]>>used != 0 {
		return nil, errMispacked
	}
	return values, nil
}

// signsPartition is the one partition of all vital signs.
const signsPartition = "vitals"

// vitals is the clinic's access to them.
type vitals struct {
	*patients
	gate *servegate.Gate[pgx.Tx]
}

func (p *patients) openVitals() (*vitals, error) {
	gate, err := servegate.ForPool(p.pool, servegate.Options{Version: int64(p.version), Name: "clinic"})
	if err != nil {
		return nil, err
	}
	return &vitals{patients: p, gate: gate}, nil
}

// fillVitals fills their table, in the transaction that fills the patients. It does not make it, and fails until it is there: how rows
// are packed is noted beside the schema version, and a packed table of which nothing is noted is nobody's to read.
func fillVitals(ctx context.Context, tx pgx.Tx, rows int) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"vitals"},
		[]string{"_sync_partition", "_sync_row_id", "_sync_server_version", "_sync_scopes", "_sync_payload"},
		pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
			return []any{signsPartition, fmt.Sprint(i + 1), 1, "{}", pack(measured(len(signs)-1, int64(i)))}, nil
		}))
	return err
}

// measured are vital signs that anybody can check: each is one more than the one before.
func measured(count int, first int64) []*int64 {
	values := make([]*int64, count)
	for i := range values {
		value := first + int64(i)
		values[i] = &value
	}
	return values
}

// read returns a patient's vital signs. The gate is asked in the snapshot that is read, so what is read is packed as this version
// packs: the barrier that packs anew is the one that closes the gate.
func (v *vitals) read(ctx context.Context, id int64) (found map[string]*int64, err error) {
	err = v.gate.Query(ctx, "", func(ctx context.Context, tx pgx.Tx, _ servegate.Position) error {
		var packed []byte
		err := tx.QueryRow(ctx, `SELECT _sync_payload FROM vitals WHERE _sync_partition = $1 AND _sync_row_id = $2`, signsPartition, fmt.Sprint(id)).Scan(&packed)
		if err != nil {
			return err
		}
		names := signsOf(v.version)
		values, err := unpack(packed, len(names))
		if err != nil {
			return err
		}
		found = make(map[string]*int64, len(names))
		for i, name := range names {
			found[name] = values[i]
		}
		return nil
	})
	return found, err
}

// write sets a patient's vital signs, each one more than the one before, and tells the log: the partition first, then the row, then the
// commit with the version of the program, which the fence looks at, and what the commit changed.
func (v *vitals) write(ctx context.Context, id, first int64) error {
	packed, row := pack(measured(len(signsOf(v.version)), first)), fmt.Sprint(id)
	tx, err := v.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // committed or not, it is over
	var seq, version int64
	err = tx.QueryRow(ctx, `
		INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ($1, 1)
		ON CONFLICT (partition) DO UPDATE SET max_commit_seq = sync_partitions.max_commit_seq + 1
		RETURNING max_commit_seq`, signsPartition).Scan(&seq)
	if err != nil {
		return err
	}
	err = tx.QueryRow(ctx, `
		UPDATE vitals SET _sync_payload = $3, _sync_server_version = _sync_server_version + 1
		 WHERE _sync_partition = $1 AND _sync_row_id = $2
		RETURNING _sync_server_version`, signsPartition, row, packed).Scan(&version)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ($1, $2, 'clinic', $3, 'nurse', $4, $5)`,
		signsPartition, seq, fmt.Sprintf("%d-%d", v.version, seq), time.Now().UnixMilli(), v.version)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
		VALUES ($1, $2, 0, 'vitals', $3, 1, $4, '{}', $5)`, signsPartition, seq, row, version, packed)
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}
