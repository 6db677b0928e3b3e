package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// finalStage reads the last stage of a Dockerfile of ours: one instruction a line, none of them continued.
func finalStage(t *testing.T, file string) (base string, files []string, user string, entrypoint []string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "FROM": // a new stage forgets the one before
			base, files, user, entrypoint = rest, nil, "", nil
		case "COPY":
			words := strings.Fields(rest)
			files = append(files, words[len(words)-1])
		case "USER":
			user = rest
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &entrypoint); err != nil {
				t.Fatalf("ENTRYPOINT %s is not written as a list: %v", rest, err)
			}
		case "ENV", "ADD", "CMD", "VOLUME", "WORKDIR":
			if base == "scratch" {
				t.Errorf("the archive knows nothing of the Dockerfile's %s %s", instruction, rest)
			}
		}
	}
	return base, files, user, entrypoint
}

func TestTheDockerfileAndTheArchiveMakeTheSameImage(t *testing.T) {
	programs := t.TempDir()
	for _, program := range []string{"manager", "syncbarrier"} {
		if err := os.WriteFile(filepath.Join(programs, program), []byte(program+"'s content"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	content, err := contentOf("operator", programs)
	if err != nil {
		t.Fatal(err)
	}
	image, err := content.image()
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	base, files, user, entrypoint := finalStage(t, filepath.Join("..", "..", "Dockerfile"))
	if base != "scratch" {
		t.Errorf("the Dockerfile's image is made from %s, the archive from nothing", base)
	}
	if user == "" || config.Config.User != user {
		t.Errorf("the archive runs as %q, the Dockerfile's image as %q", config.Config.User, user)
	}
	if len(entrypoint) == 0 || !slices.Equal(config.Config.Entrypoint, entrypoint) {
		t.Errorf("the archive starts %q, the Dockerfile's image %q", config.Config.Entrypoint, entrypoint)
	}
	inArchive := filesOf(t, content)
	slices.Sort(files)
	if len(files) == 0 || !slices.Equal(inArchive, files) {
		t.Errorf("the archive has the files %q, the Dockerfile's image %q", inArchive, files)
	}
}

// filesOf lists the files of an archive, and fails if a program is none that everybody may run, or anybody may write.
func filesOf(t *testing.T, content layout) (found []string) {
	t.Helper()
	opened, err := content.open()
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	archive := tar.NewReader(opened)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(found)
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeDir {
			continue
		}
		if program := !strings.Contains(header.Name, "/"); header.Mode&0o022 != 0 || program != (header.Mode == 0o755) {
			t.Errorf("%s has the mode %o", header.Name, header.Mode)
		}
		found = append(found, "/"+header.Name)
	}
}

func TestATagIsMadeOfTheContent(t *testing.T) {
	programs, to := t.TempDir(), t.TempDir()
	tag := func(content string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(programs, "pause"), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		reference, err := build("pause", programs, to)
		if err != nil {
			t.Fatal(err)
		}
		return reference
	}
	first, again, other := tag("one"), tag("one"), tag("two")
	if first != again {
		t.Errorf("the same content has the tags %s and %s", first, again)
	}
	if first == other {
		t.Errorf("different contents share the tag %s", first)
	}
}
