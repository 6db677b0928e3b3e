package main

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

func TestAProgramMustBeForItsArchitectureAndAskForNothing(t *testing.T) {
	own, err := os.Executable() // of packages that need no C
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	cases := map[string]struct{ file, architecture, want string }{
		"a program that stands alone":         {own, runtime.GOARCH, ""},
		"one of another architecture":         {own, other, "not for " + other},
		"one that is linked dynamically":      {"/bin/sh", runtime.GOARCH, "interpreter"},
		"no program":                          {"main.go", runtime.GOARCH, "bad magic number"},
		"an architecture that has no image":   {own, "mips", "no image"},
		"a program that was not built at all": {"nothing", runtime.GOARCH, "no such file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := check(c.file, c.architecture)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
