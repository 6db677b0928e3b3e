// Package crd holds the CustomResourceDefinitions that controller-gen makes from api/v1alpha1, so that the command line can validate
// a file by the very schema that the API server uses.
package crd

import "embed"

// Bases holds the generated files, bases/syncbarrier.dev_<plural>.yaml.
//
//go:embed bases/*.yaml
var Bases embed.FS
