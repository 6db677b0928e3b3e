#!/usr/bin/env bash
# Has one of the cluster's programs stand still for a time, as a machine does that
# swaps or is moved, and go on:
#
#   hack/cluster/freeze.sh kube-apiserver SECONDS
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=settings.sh
. "$here/settings.sh"

runs "$1" || fail "$1 does not run"
read -r pid _ <"$state/pids/$1"
# It goes on whatever becomes of this script.
trap 'kill -CONT "$pid"' EXIT
kill -STOP "$pid"
sleep "$2"
