package podgate

import (
	"testing"
)

func TestAPodMayStartOnceTheDatabaseHasItsVersion(t *testing.T) {
	asks := Pod{Annotation: "clinic=7", Environment: []string{"clinic=7"}}
	for name, c := range map[string]struct {
		pod   Pod
		facts Facts
		want  bool
	}{
		"migrated, its gate still closed":      {asks, Facts{Found: true, Gate: read(pending(7))}, true},
		"migrated beyond it":                   {asks, Facts{Found: true, Gate: read(stored(8))}, true},
		"not migrated":                         {asks, Facts{Found: true, Gate: read(stored(6))}, false},
		"no SyncSchema":                        {asks, Facts{}, false},
		"not read":                             {asks, Facts{Found: true, Problem: "gone"}, false},
		"another owner's database":             {asks, Facts{Found: true, Gate: read(), Foreign: "elsewhere/shop/billing"}, false},
		"a standby":                            {asks, Facts{Found: true, Gate: read(standby)}, false},
		"an emptied marker":                    {asks, Facts{Found: true, Gate: read(emptied)}, false},
		"no catalog":                           {asks, Facts{Found: true, Gate: read(noCatalog)}, false},
		"edited":                               {Pod{Annotation: "clinic=6", Environment: []string{"clinic=7"}}, Facts{Found: true, Gate: read()}, false},
		"malformed":                            {Pod{Annotation: "clinic"}, Facts{Found: true, Gate: read()}, false},
		"nothing required":                     {Pod{}, Facts{Found: true, Gate: read()}, false},
		"a person decided":                     {asks, Facts{Found: true, Gate: read(stored(6)), Bypass: &Bypass{Reason: "INC-1"}}, true},
		"of two databases one is not migrated": {Pod{Annotation: "billing=9,clinic=7"}, Facts{Found: true, Gate: read()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(string) Facts { return c.facts }
			if got := MayStart(c.pod, Judge(c.pod, of), of); got != c.want {
				t.Errorf("it may start: %t, want %t", got, c.want)
			}
		})
	}
}
