package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// testTimeout bounds one test: a wait without end fails by its name.
const testTimeout = 3 * time.Minute

// syncbarrier is the path of the program, built once for all tests.
var syncbarrier string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "syncbarrier-capture")
	if err == nil {
		syncbarrier = filepath.Join(folder, "syncbarrier")
		build := exec.Command("go", "build", "-o", syncbarrier, "github.com/syncbarrier/syncbarrier/cmd/syncbarrier")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build syncbarrier:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder) // the system's temporary folder is emptied by others too
	os.Exit(code)
}

// command prepares a run of the program. Nothing of this process's environment reaches it but where programs are.
func command(ctx context.Context, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, syncbarrier, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	return cmd, &output
}

// exitCode is how a program ended, -1 if a signal ended it.
func exitCode(t testing.TB, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return 1
}
