#!/usr/bin/env bash
# Finds the programs of a Kubernetes control plane that the tests start, and
# builds from source those that are nowhere:
#
#   hack/controlplane.sh [PROGRAM...]          finds or builds
#   hack/controlplane.sh --find [PROGRAM...]   finds, or fails and says what is missing
#
# Without a name it looks for the four that the tests of the operator need:
# etcd, kube-apiserver, kube-controller-manager and kubectl. For each it prints
# NAME=PATH. Looked at in this order, program by program:
#
#   1. the folder that KUBEBUILDER_ASSETS names,
#   2. the newest download that setup-envtest left in its own folder,
#   3. what this script built before, in the user's cache folder, by version.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
module=$here/controlplane
version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$module/go.mod")
platform=$(go env GOOS)-$(go env GOARCH)
built=${XDG_CACHE_HOME:-$HOME/.cache}/syncbarrier/controlplane/$version-$platform

build=yes
if [ "${1:-}" = --find ]; then
	build=no
	shift
fi
[ "$#" -gt 0 ] || set -- etcd kube-apiserver kube-controller-manager kubectl

# downloaded prints the folder of the newest Kubernetes that setup-envtest has.
downloaded() {
	local store=${XDG_DATA_HOME:-$HOME/.local/share}/kubebuilder-envtest/k8s
	[ -d "$store" ] || return 0
	find "$store" -mindepth 1 -maxdepth 1 -type d -name "*-$platform" | sort -V | tail -1
}

# find_program prints where the program is, or nothing.
find_program() {
	local folder
	for folder in "${KUBEBUILDER_ASSETS:-}" "$(downloaded)" "$built"; do
		if [ -n "$folder" ] && [ -x "$folder/$1" ]; then
			echo "$folder/$1"
			return
		fi
	done
}

# build_program compiles one program into the cache folder.
build_program() {
	local package=k8s.io/kubernetes/cmd/$1
	[ "$1" != etcd ] || package=go.etcd.io/etcd/server/v3
	local stamp=k8s.io/component-base/version minor=${version#v1.}
	local flags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}"
	mkdir -p "$built"
	# Built under another name first: an interrupted build leaves no half a
	# program, and two builds at once do not meet.
	GOWORK=off CGO_ENABLED=0 go -C "$module" build -trimpath -ldflags "$flags" -o "$built/.$1.$$" "$package"
	mv "$built/.$1.$$" "$built/$1"
}

missing=()
for name in "$@"; do
	[ -n "$(find_program "$name")" ] || missing+=("$name")
done
if [ "${#missing[@]}" -gt 0 ] && [ "$build" = no ]; then
	echo "Missing on this machine: ${missing[*]}. Run hack/controlplane.sh, which builds them once (up to 15 minutes), or name a folder that has them in KUBEBUILDER_ASSETS." >&2
	exit 1
fi
if [ "${#missing[@]}" -gt 0 ]; then
	cat >&2 <<-END
		Building ${missing[*]} of Kubernetes $version from source, into $built.
		This compiles most of Kubernetes and takes up to 15 minutes on two cores; it is done once for a version.
		To use programs that you have, name their folder in KUBEBUILDER_ASSETS.
	END
	for name in "${missing[@]}"; do
		echo "  building $name ($(date -u +%H:%M:%S))" >&2
		build_program "$name"
	done
	echo "  built ($(date -u +%H:%M:%S))" >&2
fi
for name in "$@"; do
	echo "$name=$(find_program "$name")"
done
