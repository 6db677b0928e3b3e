#!/usr/bin/env bash
# Prints the manifests of the operator, in one file that kubectl can apply:
#
#   hack/manifests.sh [FOLDER [IMAGE]]
#
# FOLDER is one of config/, default if not given. IMAGE, NAME:TAG or
# NAME@sha256:DIGEST, takes the place of the one in config/manager; the workers
# run the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=config/${1:-default}
image=${2:-}

if [ -z "$image" ]; then
	exec hack/tool kustomize build "$folder"
fi
# kustomize refers to folders below or beside its own only, so the overlay that
# names the image is made in the checkout, in a folder that git ignores.
mkdir -p dist
overlay=$(mktemp -d dist/overlay.XXXXXX)
trap 'rm -rf "$overlay"' EXIT
cat >"$overlay/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../../$folder
END
(cd "$overlay" && ../../hack/tool kustomize edit set image "ghcr.io/syncbarrier/syncbarrier=$image")
hack/tool kustomize build "$overlay"
