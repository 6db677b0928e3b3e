// Command syncbarrier is the command line of Syncbarrier; installed as kubectl-syncbarrier it is also `kubectl syncbarrier`.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/syncbarrier/syncbarrier/internal/cli"
)

// version is set by the linker, see VERSION in the Makefile.
var version = "development"

func main() {
	program := &cli.Program{Open: open, Version: version, Name: filepath.Base(os.Args[0])}
	os.Exit(program.Run(context.Background(), os.Args[1:]))
}
