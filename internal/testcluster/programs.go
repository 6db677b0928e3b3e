package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// findTimeout bounds the search for the programs, which runs go a few times.
const findTimeout = time.Minute

// findPrograms returns the paths of the control plane's programs by their name.
func findPrograms(names ...string) (map[string]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	var problems bytes.Buffer
	find := exec.CommandContext(ctx, filepath.Join(root, "hack", "controlplane.sh"), append([]string{"--find"}, names...)...)
	find.Stderr = &problems
	output, err := find.Output()
	if err != nil {
		return nil, fmt.Errorf("find the programs of the control plane: %w: %s", err, problems.String())
	}
	found := map[string]string{}
	for line := range strings.Lines(string(output)) {
		name, path, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[name] = path
	}
	for _, name := range names {
		if found[name] == "" {
			return nil, fmt.Errorf("hack/controlplane.sh --find says nothing of %s", name)
		}
	}
	return found, nil
}

// Root returns the folder of this checkout: the first one with a go.mod, from
// the working folder up. Tests run in the folder of their package.
func Root() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return "", errors.New("no folder from the working folder up has a go.mod")
		}
		folder = parent
	}
}
