// Command testservices starts and stops the database server that all tests of a
// run share:
//
//	go run ./hack/testservices start
//	go run ./hack/testservices stop
//
// Nobody needs it: tests start the server themselves, and it stops by itself
// when it is idle. With it, what is missing on a machine is said before the
// tests are built, and nothing is left behind when they are done.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testservices:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: testservices start|stop")
	}
	switch args[0] {
	case "start":
		return testdb.StartShared()
	case "stop":
		err := testdb.StopShared()
		if errors.Is(err, testdb.ErrInUse) {
			fmt.Println("testservices: left running, other tests use it:", err)
			return nil
		}
		return err
	default:
		return fmt.Errorf("%q is neither start nor stop", args[0])
	}
}
