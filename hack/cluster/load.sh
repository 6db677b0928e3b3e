#!/usr/bin/env bash
# Gives the cluster images that hack/images.sh built:
#
#   hack/cluster/load.sh NAME...
#
# Into the cluster of hack/cluster/up.sh, or by the command that LOAD_IMAGE holds,
# which gets an archive's path, as in
# LOAD_IMAGE="kind load image-archive" or LOAD_IMAGE="minikube image load".
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=settings.sh
. "$here/settings.sh"

for name in "$@"; do
	archive=$repository/dist/images/$name.tar
	[ -f "$archive" ] || fail "there is no $archive: run make images"
	if [ -n "${LOAD_IMAGE:-}" ]; then
		$LOAD_IMAGE "$archive" >&2
	elif runs containerd; then
		containers images import "$archive" >/dev/null
	else
		fail "no cluster of make cluster-up is running, and LOAD_IMAGE names no command that gives an image to another one"
	fi
done
