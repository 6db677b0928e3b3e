// Command images builds container images without a container engine, from programs that are compiled already:
//
//	images -programs FOLDER -to FOLDER NAME...
//
// writes one archive NAME.tar for each, which `ctr images import`, `docker load` and `kind load image-archive` take, and prints
// NAME=REFERENCE. The tag is made of the content: the same content has the same tag, and a tag never changes its meaning, so that
// no node runs an image of yesterday under the name of today's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	programs := flag.String("programs", "", "folder of the compiled programs")
	to := flag.String("to", "", "folder of the archives")
	flag.Parse()
	for _, image := range flag.Args() {
		reference, err := build(image, *programs, *to)
		if err != nil {
			fmt.Fprintf(os.Stderr, "images: build %s: %v\n", image, err)
			os.Exit(1)
		}
		fmt.Printf("%s=%s\n", image, reference)
	}
}

// repositories are the images' names. Nothing is ever pulled from localhost.
var repositories = map[string]string{
	"operator": "localhost/syncbarrier/operator",
	"clinic":   "localhost/syncbarrier/clinic",
	"postgres": "localhost/syncbarrier/postgres",
	"pause":    "localhost/syncbarrier/pause",
	"metrics":  "localhost/syncbarrier/metrics",
}

// contentOf says what is in an image.
func contentOf(image, programs string) (layout, error) {
	switch image {
	case "operator":
		return operatorLayout(programs), nil
	case "clinic", "pause", "metrics":
		return programLayout(programs, image), nil
	case "postgres":
		return postgresLayout()
	}
	return layout{}, errors.New("there is no such image: operator, clinic, postgres, pause or metrics")
}

// build writes the archive of an image and returns its reference.
func build(image, programs, to string) (string, error) {
	content, err := contentOf(image, programs)
	if err != nil {
		return "", err
	}
	made, err := content.image()
	if err != nil {
		return "", err
	}
	digest, err := made.Digest()
	if err != nil {
		return "", err
	}
	reference, err := name.NewTag(repositories[image] + ":" + digest.Hex[:12])
	if err != nil {
		return "", err
	}
	// Under another name first: an interrupted build leaves no half an archive.
	unfinished := filepath.Join(to, fmt.Sprintf(".%s.%d", image, os.Getpid()))
	if err := tarball.WriteToFile(unfinished, reference, made); err != nil {
		return "", errors.Join(err, os.Remove(unfinished))
	}
	return reference.String(), os.Rename(unfinished, filepath.Join(to, image+".tar"))
}

// image makes an image of one layer.
func (l layout) image() (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(l.open)
	if err != nil {
		return nil, err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = platform()
	file.Config = v1.Config{User: l.user, Entrypoint: l.entrypoint, Env: l.environment}
	return mutate.ConfigFile(made, file)
}
