package storage

import "testing"

func TestAWeakenedFenceIsSummedUp(t *testing.T) {
	var seven []FenceFinding
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		seven = append(seven, FenceFinding{Object: "trigger " + name, Problem: "is missing"})
	}
	for _, tt := range []struct {
		report FenceReport
		want   string
	}{
		{FenceReport{}, ""},
		{FenceReport{Findings: seven[:1]}, "the fence or its guards are weakened: trigger a is missing"},
		{FenceReport{Findings: seven[:2], GotIn: 3},
			"the fence or its guards are weakened: trigger a is missing; trigger b is missing; 3 commits got in below the fence"},
		{FenceReport{Findings: seven}, "the fence or its guards are weakened: trigger a is missing; trigger b is missing; trigger c is missing; " +
			"trigger d is missing; trigger e is missing; and 2 more"},
	} {
		if got := tt.report.Summary(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
		if err := tt.report.Refusal(); (err == nil) != tt.report.Intact() || err != nil && CodeOf(err) != CodeFenceBroken {
			t.Errorf("%q is refused by %v", tt.want, err)
		}
	}
}
