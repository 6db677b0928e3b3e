package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/syncbarrier/syncbarrier/test/syncprogram"
)

// Rows are packed as every program of the sync protocol packs them, and a row of one version is none of the other.
func TestVitalSignsArePackedAsTheProtocolSays(t *testing.T) {
	for version, other := range map[int]int{6: 7, 7: 6} {
		values := measured(len(signsOf(version)), 60)
		values[2] = nil
		var columns []syncprogram.Column
		var plain []any
		for i, name := range signsOf(version) {
			columns = append(columns, syncprogram.Column{Name: name, Type: "integer", Nullable: true})
			if values[i] == nil {
				plain = append(plain, nil)
				continue
			}
			plain = append(plain, *values[i])
		}
		want, err := syncprogram.EncodeRow(columns, plain)
		if err != nil {
			t.Fatal(err)
		}
		packed := pack(values)
		if !bytes.Equal(packed, want) {
			t.Errorf("version %d packs % x, the protocol % x", version, packed, want)
		}
		back, err := unpack(packed, len(values))
		if err != nil || !bytes.Equal(pack(back), packed) {
			t.Errorf("version %d does not get back what it packed: %v", version, err)
		}
		if _, err := unpack(packed, len(signsOf(other))); !errors.Is(err, errMispacked) {
			t.Errorf("version %d reads a row of version %d: %v", other, version, err)
		}
	}
}
