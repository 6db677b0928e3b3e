// Package gitops embeds what the project gives to GitOps tools, so that tests run the very files that users take.
package gitops

import "embed"

// Files holds the health script and the ignored differences for Argo CD, and the health expressions for Flux.
//
//go:embed argocd/health.lua argocd/ignore-differences.yaml flux/health.yaml flux/health-approval.yaml
var Files embed.FS
