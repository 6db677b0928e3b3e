package cli

import "testing"

func TestOneIsNotMany(t *testing.T) {
	for got, want := range map[string]string{
		abandonedWord("c", 7, 1): `checkpoint "c" of version 7 is given up: 1 record of its progress deleted, no row of yours was touched`,
		abandonedWord("c", 7, 2): `checkpoint "c" of version 7 is given up: 2 records of its progress deleted, no row of yours was touched`,
		rowsWord(0):              "all partitions",
		rowsWord(1):              "1 partition",
		rowsWord(2):              "2 partitions",
	} {
		if got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}
