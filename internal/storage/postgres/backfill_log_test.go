package postgres

import (
	"fmt"
	"slices"
	"testing"
)

// window writes a window as its end and the commits of its changes.
func window(position, upto int64, commits ...int64) logWindow {
	w := logWindow{partition: "p", position: position, upto: upto, last: upto}
	for _, seq := range commits {
		w.changes = append(w.changes, logChange{seq: seq, table: "todos", rowID: "1"})
	}
	return w
}

func TestAWindowIsCutBetweenCommits(t *testing.T) {
	cases := []struct {
		name          string
		windows       []logWindow
		changes, read int
		want          []string // upto and commits of each window that is kept
		ok            bool
	}{
		{"nothing", nil, 5, 5, nil, true},
		{"no news", []logWindow{window(3, 3)}, 5, 5, []string{"3 []"}, true},
		{"all fits", []logWindow{window(0, 9, 1, 2, 3)}, 5, 5, []string{"9 [1 2 3]"}, true},
		{"the sixth is too much", []logWindow{window(0, 9, 1, 2, 3, 4, 5, 6)}, 5, 5, []string{"5 [1 2 3 4 5]"}, true},
		{"a commit is not cut", []logWindow{window(0, 9, 1, 2, 3, 3, 3, 3)}, 4, 10, []string{"2 [1 2]"}, true},
		{"the first commit alone is too much", []logWindow{window(0, 9, 3, 3, 3, 4)}, 2, 10, []string{"3 [3 3 3]"}, true},
		{"a first commit of which more may come", []logWindow{window(0, 9, 3, 3, 3)}, 2, 2, []string{"2 []"}, true},
		{"a first commit right behind the position, of which more may come", []logWindow{window(2, 9, 3, 3, 3)}, 2, 2, nil, false},
		{"the last commit read may be in part", []logWindow{window(0, 9, 1, 2, 3, 3)}, 10, 3, []string{"2 [1 2]"}, true},
		{"the second window takes what the first left", []logWindow{window(0, 9, 1, 2), window(0, 9, 1, 2, 3)}, 3, 10, []string{"9 [1 2]", "1 [1]"}, true},
		{"a window behind one that is cut is left out", []logWindow{window(0, 9, 1, 2, 3), window(0, 9, 1)}, 2, 10, []string{"2 [1 2]"}, true},
		{"a window that cannot be cut does not stop the others", []logWindow{window(2, 9, 3, 3, 3), window(0, 9, 1)}, 10, 2, []string{"9 [1]"}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cut, ok := cutWindows(c.windows, c.changes, c.read)
			var got []string
			for _, w := range cut {
				commits := []int64{}
				for _, change := range w.changes {
					commits = append(commits, change.seq)
				}
				got = append(got, fmt.Sprint(w.upto, commits))
			}
			if !slices.Equal(got, c.want) || ok != c.ok {
				t.Errorf("got %v, %t, want %v, %t", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestRangesAreCutAtEqualDistances(t *testing.T) {
	sample := [][]string{{"a"}, {"b"}, {"c"}, {"d"}, {"e"}, {"f"}}
	cases := []struct {
		sample [][]string
		count  int
		want   []string
	}{
		{nil, 1, []string{"-..-"}},
		{nil, 5, []string{"-..-"}},
		{sample[:1], 5, []string{"-..a", "a..-"}},
		{sample, 1, []string{"-..-"}},
		{sample, 2, []string{"-..d", "d..-"}},
		{sample, 3, []string{"-..c", "c..e", "e..-"}},
	}
	for _, c := range cases {
		var got []string
		for _, r := range cutAt("p", c.sample, c.count) {
			bound := func(key []string) string {
				if key == nil {
					return "-"
				}
				return key[0]
			}
			got = append(got, bound(r.lower)+".."+bound(r.upper))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d ranges of %v: got %v, want %v", c.count, c.sample, got, c.want)
		}
	}
}
