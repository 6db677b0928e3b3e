package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// toolTimeout bounds pg_config and ldd.
const toolTimeout = 30 * time.Second

// postgresStart makes a database server with one database at the first start, and runs it. It reads the same settings as the image "postgres" of
// Docker Hub, which takes its place in clusters that reach a registry. It needs no program but the shell and PostgreSQL's own.
const postgresStart = `#!/bin/sh
set -eu
if [ ! -e "$PGDATA/PG_VERSION" ]; then
	umask 077
	echo "$POSTGRES_PASSWORD" |
		%[1]s/initdb --pgdata="$PGDATA" --username=postgres --pwfile=/dev/stdin --auth=scram-sha-256 --encoding=UTF8 --no-locale --no-sync
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	echo "CREATE DATABASE \"$POSTGRES_DB\"" | %[1]s/postgres --single -D "$PGDATA" postgres
fi
exec %[1]s/postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
`

// postgresLayout takes the PostgreSQL of this machine: its programs, what they share, and the libraries that they are linked to. Paths
// stay what they are, since they are compiled into the programs.
func postgresLayout() (layout, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	defer cancel()
	configuration, err := findPgConfig()
	if err != nil {
		return layout{}, err
	}
	var folders []string
	for _, which := range []string{"--bindir", "--pkglibdir", "--sharedir"} {
		output, err := exec.CommandContext(ctx, configuration, which).Output()
		if err != nil {
			return layout{}, fmt.Errorf("ask %s %s: %w", configuration, which, err)
		}
		folders = append(folders, strings.TrimSpace(string(output)))
	}
	bin, libraries, share := folders[0], folders[1], folders[2]
	linked := []string{filepath.Join(bin, "postgres"), filepath.Join(bin, "initdb"), "/bin/sh"}
	for _, module := range []string{"plpgsql.so", "dict_snowball.so"} { // initdb uses these
		linked = append(linked, filepath.Join(libraries, module))
	}
	files := map[string]string{}
	for _, file := range linked {
		files[file] = file
		if err := addLibraries(ctx, files, file); err != nil {
			return layout{}, err
		}
	}
	if err := addFolder(files, share); err != nil {
		return layout{}, err
	}
	// Distributions have PostgreSQL read the system's time zones, of which these are enough for programs that ask for none.
	for _, zone := range []string{"UTC", "Etc/UTC", "GMT"} {
		file := filepath.Join("/usr/share/zoneinfo", zone)
		if _, err := os.Stat(file); err == nil {
			files[file] = file
		}
	}
	return layout{
		files: files,
		texts: map[string]text{
			"/start":      {content: fmt.Sprintf(postgresStart, bin), executable: true},
			"/etc/passwd": {content: "postgres:x:999:999::/tmp:/bin/sh\n"},
		},
		user:       "999:999",
		entrypoint: []string{"/start"},
	}, nil
}

// findPgConfig prefers the newest of Debian's versioned folders: its pg_config on PATH may be of a version of which no server is here.
func findPgConfig() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return filepath.Join(filepath.Dir(slices.Max(found)), "pg_config"), nil
	}
	onPath, err := exec.LookPath("pg_config")
	if err != nil {
		return "", errors.New("there is no PostgreSQL on this machine: run hack/install-tools.sh")
	}
	return onPath, nil
}

// libraryPath is a file in the output of ldd.
var libraryPath = regexp.MustCompile(`(/\S+) \(0x`)

// addLibraries adds the libraries that a program is linked to.
func addLibraries(ctx context.Context, files map[string]string, program string) error {
	output, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return fmt.Errorf("ask which libraries %s is linked to: %w", program, err)
	}
	found := map[string]string{}
	for _, match := range libraryPath.FindAllStringSubmatch(string(output), -1) {
		found[match[1]] = match[1]
	}
	maps.Copy(files, found)
	return nil
}

// addFolder adds a folder's files. Debian's extensions are of no use here, but for the language that triggers are written in.
func addFolder(files map[string]string, folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		skipped := filepath.Base(filepath.Dir(path)) == "extension" && !strings.HasPrefix(entry.Name(), "plpgsql")
		if entry.Type().IsRegular() && !skipped {
			files[path] = path
		}
		return nil
	})
}
