package main

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// nobody is the user of images that need none in particular. Clusters that give each namespace a user of its own override it.
const nobody = "65532:65532"

// layout is what is in an image and how it runs.
type layout struct {
	files       map[string]string // path in the image: path on this machine
	texts       map[string]text   // path in the image: what the file says
	user        string
	entrypoint  []string
	environment []string
}

// text is a file that is on no disk.
type text struct {
	content    string
	executable bool
}

// platform is what the programs were compiled for: images run on this machine's own cluster.
func platform() (system, architecture string) { return "linux", runtime.GOARCH }

// authorities is where programs look for the certificates of public authorities first (Go's crypto/x509, root_linux.go).
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// operatorLayout is what the Dockerfile makes.
func operatorLayout(programs string) layout {
	return layout{
		files: map[string]string{
			authorities:    ownAuthorities(),
			"/manager":     filepath.Join(programs, "manager"),
			"/syncbarrier": filepath.Join(programs, "syncbarrier"),
		},
		user:       nobody,
		entrypoint: []string{"/manager"},
	}
}

// ownAuthorities is where this machine has that file: distributions differ.
func ownAuthorities() string {
	for _, file := range []string{authorities, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return authorities
}

// programLayout is one program and nothing else.
func programLayout(programs, program string) layout {
	return layout{
		files:      map[string]string{"/" + program: filepath.Join(programs, program)},
		user:       nobody,
		entrypoint: []string{"/" + program},
	}
}

// open gives the layer as an archive, the same bytes for the same content: in order, without times.
func (l layout) open() (io.ReadCloser, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, folder := range l.folders() {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(l.files)) {
		content, err := os.ReadFile(l.files[target])
		if err != nil {
			return nil, err
		}
		information, err := os.Stat(l.files[target])
		if err != nil {
			return nil, err
		}
		if err := add(archive, target, content, information.Mode()&0o111 != 0); err != nil {
			return nil, err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(l.texts)) {
		if err := add(archive, target, []byte(l.texts[target].content), l.texts[target].executable); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(&buffer), archive.Close()
}

func add(archive *tar.Writer, target string, content []byte, executable bool) error {
	mode := int64(0o644)
	if executable {
		mode = 0o755
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(target, "/"), Mode: mode, Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// folders are those that files lie in, parents first.
func (l layout) folders() []string {
	seen := map[string]bool{}
	for _, target := range slices.Concat(slices.Collect(maps.Keys(l.files)), slices.Collect(maps.Keys(l.texts))) {
		for folder := path.Dir(target); folder != "/"; folder = path.Dir(folder) {
			seen[strings.TrimPrefix(folder, "/")] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
