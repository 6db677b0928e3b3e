#!/usr/bin/env bash
# Builds container images without a container engine:
#
#   hack/images.sh NAME...     operator, clinic, postgres, pause, metrics
#
# into dist/images/NAME.tar, and prints NAME=REFERENCE for each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

programs=dist/programs
mkdir -p "$programs" dist/images

# compile PACKAGE NAME
compile() {
	CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$programs/$2" "$1"
}

for name in "$@"; do
	case "$name" in
	operator)
		compile ./cmd/manager manager
		compile ./cmd/syncbarrier syncbarrier
		;;
	clinic) compile ./examples/clinic/app clinic ;;
	pause) compile ./hack/images/pause pause ;;
	metrics) compile ./test/e2e/metrics metrics ;;
	esac
done
go run ./hack/images -programs "$programs" -to dist/images "$@"
