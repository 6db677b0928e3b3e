#!/usr/bin/env bash
# Says in one sentence why this machine cannot run a cluster of real containers,
# and fails; or installs what is missing for it (install.sh) and succeeds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

cannot() {
	echo "This machine cannot run a cluster of real containers: $*. To run on a cluster that you have, name its kubeconfig in KUBECONFIG." >&2
	exit 1
}

[ "$(uname -s)" = Linux ] || cannot "that needs Linux"
[ "$(id -u)" -eq 0 ] || cannot "that needs root"
"$here/install.sh" >&2

# Each is tried, and taken back at once: what root may do differs from machine to machine.
tried=$(mktemp -d /var/lib/syncbarrier-tried.XXXXXX)
trap 'rm -rf "$tried"; ip link delete sb-tried 2>/dev/null || true' EXIT
mkdir "$tried"/{lower,upper,work,merged}
unshare --net --mount --pid --fork true 2>/dev/null || cannot "it may not make namespaces"
mount -t overlay overlay -o "lowerdir=$tried/lower,upperdir=$tried/upper,workdir=$tried/work" "$tried/merged" 2>/dev/null ||
	cannot "it cannot mount an overlay file system in /var/lib"
umount "$tried/merged"
ip link add sb-tried type bridge 2>/dev/null || cannot "it may not make a network bridge"
ip link delete sb-tried
iptables -w 10 -t nat -S >/dev/null 2>&1 || cannot "its kernel does not translate addresses (iptables -t nat)"
groups=/sys/fs/cgroup
[ ! -d "$groups/memory" ] || groups=$groups/memory
mkdir "$groups/syncbarrier-tried" 2>/dev/null || cannot "it may not make control groups in $groups"
rmdir "$groups/syncbarrier-tried"
