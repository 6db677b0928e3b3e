package storage

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// packed writes a payload as the sync protocol has it: the null bitmap, least significant bit first, then the values.
func packed(nulls []bool, values []byte) []byte {
	payload := make([]byte, PayloadBitmapBytes(len(nulls)))
	for i, null := range nulls {
		if null {
			payload[i/8] |= 1 << (i % 8)
		}
	}
	return append(payload, values...)
}

func TestAppendingColumnsIsPackingTheRowAnewWithNULLs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nulls := rapid.SliceOfN(rapid.Bool(), 0, 40).Draw(t, "nulls")
		values := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "values")
		more := rapid.IntRange(0, 40).Draw(t, "more")
		before := packed(nulls, values)
		kept := bytes.Clone(before)
		now := append([]bool{}, nulls...)
		for range more {
			now = append(now, true)
		}
		got, ok := RewritePayload(before, len(nulls), len(now))
		if want := packed(now, values); !ok || !bytes.Equal(got, want) {
			t.Fatalf("%d to %d columns: %x became %x, want %x", len(nulls), len(now), before, got, want)
		}
		if !bytes.Equal(before, kept) {
			t.Fatalf("the payload given was changed to %x", before)
		}
	})
}

func TestAppendingTwiceIsAppendingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nulls := rapid.SliceOfN(rapid.Bool(), 0, 30).Draw(t, "nulls")
		first := len(nulls) + rapid.IntRange(0, 20).Draw(t, "first")
		second := first + rapid.IntRange(0, 20).Draw(t, "second")
		payload := packed(nulls, []byte("values"))
		once, _ := RewritePayload(payload, len(nulls), second)
		half, _ := RewritePayload(payload, len(nulls), first)
		twice, _ := RewritePayload(half, first, second)
		if !bytes.Equal(once, twice) {
			t.Fatalf("%d to %d to %d columns: %x, at once %x", len(nulls), first, second, twice, once)
		}
	})
}

func TestWhatIsWrittenForAppendedColumns(t *testing.T) {
	for _, test := range []struct {
		old, now int
		mask     byte
		inserted []byte
	}{
		{3, 3, 0, nil}, {3, 10, 0xf8, []byte{0x03}}, {8, 9, 0, []byte{0x01}}, {0, 3, 0, []byte{0x07}}, {1, 2, 0x02, nil},
		{7, 8, 0x80, nil}, {9, 26, 0xfe, []byte{0xff, 0x03}}, {8, 8, 0, nil},
	} {
		t.Run(fmt.Sprintf("from %d to %d", test.old, test.now), func(t *testing.T) {
			mask, inserted := PayloadAppend(test.old, test.now)
			if mask != test.mask || !bytes.Equal(inserted, test.inserted) {
				t.Errorf("got %02x and %x, want %02x and %x", mask, inserted, test.mask, test.inserted)
			}
		})
	}
}

func TestAPayloadThatIsShorterThanItsBitmapIsNotRewritten(t *testing.T) {
	for length := range 2 {
		if got, ok := RewritePayload(make([]byte, length), 9, 10); ok || got != nil {
			t.Errorf("%d bytes for 9 columns became %x", length, got)
		}
	}
	if got, ok := RewritePayload(nil, 0, 1); !ok || !bytes.Equal(got, []byte{0x01}) {
		t.Errorf("no columns: %x, %t", got, ok)
	}
}
