#!/usr/bin/env bash
# Ends the cluster of hack/cluster/up.sh: stops exactly the processes that it
# wrote down, ends its containers, and leaves no mount, network namespace,
# interface, rule or file of it. May be run at any time, also after a start that
# failed half-way.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=settings.sh
. "$here/settings.sh"
. "$here/network.sh"

# stop NAME: SIGTERM, and SIGKILL after ten seconds.
stop() {
	local pid born
	runs "$1" || return 0
	read -r pid born <"$state/pids/$1"
	kill -TERM "$pid"
	if ! until_true 10 gone "$1"; then
		kill -KILL "$pid"
		until_true 10 gone "$1" || fail "$1 (process $pid) does not end"
	fi
}

gone() { ! runs "$1"; }

# end_containers ends what runs in containers, and names their network
# namespaces in the file "namespaces" before they are forgotten.
end_containers() {
	runs containerd || return 0
	local id
	for id in $(containers containers list -q); do
		# What the plugins wrote down about it, its loopback included.
		rm -f /var/lib/cni/results/*"$id"*
		containers containers info "$id" | grep -o '/var/run/netns/[a-z0-9-]*' || true
	done | sort -u >"$state/namespaces"
	for id in $(containers tasks list -q); do
		containers tasks delete --force "$id" >/dev/null 2>&1 || true
	done
	until_true 20 no_tasks || say "containers are still there: $(containers tasks list -q | xargs)"
}

no_tasks() { [ -z "$(containers tasks list -q)" ]; }

# end_shims ends containerd's helpers, one a pod. They are told by the address of
# this cluster's containerd, which is an argument of theirs.
end_shims() {
	local pid
	for pid in $(shims); do kill -KILL "$pid" 2>/dev/null || true; done
	until_true 10 no_shims || fail "shims of containerd do not end: $(shims | xargs)"
}

shims() {
	local folder
	for folder in /proc/[0-9]*; do
		# A process may end while it is looked at.
		if { tr '\0' ' ' <"$folder/cmdline"; } 2>/dev/null | grep -q -- "containerd-shim.* -address $socket "; then
			basename "$folder"
		fi
	done
}

no_shims() { [ -z "$(shims)" ]; }

remove_namespaces() {
	[ -f "$state/namespaces" ] || return 0
	local path
	while read -r path; do
		[ ! -e "$path" ] || ip netns delete "$(basename "$path")"
	done <"$state/namespaces"
}

# remove_mounts unmounts what lies in the cluster's folder, the deepest first.
remove_mounts() {
	mounts | sort -r | while read -r target; do umount "$target" || umount --lazy "$target"; done
	[ -z "$(mounts)" ] || fail "mounts are left in $state: $(mounts | xargs)"
}

mounts() { awk -v folder="$state/" 'index($2, folder) == 1 {print $2}' /proc/self/mounts; }

# remove_cgroups removes kubelet's, unless there was a kubelet before.
remove_cgroups() {
	local root
	for root in $(find /sys/fs/cgroup -maxdepth 2 -name kubepods); do
		grep -qx "$root" "$state/cgroups-before" || find "$root" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
}

if [ ! -e "$state" ]; then
	say "there is none"
	exit 0
fi
# Nothing may start anew what the next step ends.
for name in kube-scheduler kube-controller-manager kubelet kube-proxy kube-apiserver etcd; do stop "$name"; done
end_containers
stop containerd
end_shims
remove_namespaces
proxy=$(sed -n 's/^kube-proxy=//p' "$state/programs" 2>/dev/null || true)
if [ -x "$proxy" ] && [ -f "$state/proxy.yaml" ]; then
	"$proxy" --config="$state/proxy.yaml" --cleanup >"$state/cleanup.log" 2>&1 || say "kube-proxy could not remove its rules: $(tail -1 "$state/cleanup.log")"
fi
remove_network
remove_mounts
[ ! -f "$state/cgroups-before" ] || remove_cgroups
find /var/log/containers -lname "$state/*" -delete 2>/dev/null || true
# Outside $state lies what kubelet and the plugins insist on. Folders go if nobody else uses them.
[ -s "$state/cgroups-before" ] || rm -f /var/lib/kubelet/device-plugins/{kubelet.sock,DEPRECATION,kubelet_internal_checkpoint}
for folder in /var/lib/kubelet/device-plugins /var/lib/kubelet /var/lib/cni/results /var/lib/cni /var/log/containers \
	/run/containerd/runc/k8s.io /run/containerd/runc /run/containerd/s /run/containerd; do
	rmdir "$folder" 2>/dev/null || true
done
rm -rf --one-file-system "$state"
say "it is gone, and nothing of it is left"
