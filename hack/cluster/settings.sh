# What the scripts of this folder agree on; they read it, nobody runs it.
# shellcheck shell=bash disable=SC2034

# state holds everything of the cluster: keys, logs, process ids, images,
# containers. It has to be short: sockets in it have at most 107 characters.
state=${SYNCBARRIER_CLUSTER_STATE:-/var/lib/syncbarrier-cluster}
kubeconfig=$state/kubeconfig
socket=$state/containerd.sock

# The pods' bridge. Everything that listens for the cluster listens on its
# address or on the loopback, so nothing is reachable from outside the machine.
bridge=syncbarrier0
pod_prefix=${SYNCBARRIER_CLUSTER_PODS:-10.244.0}
pod_range=$pod_prefix.0/24
gateway=$pod_prefix.1
service_prefix=${SYNCBARRIER_CLUSTER_SERVICES:-10.96.0}
service_range=$service_prefix.0/24
service_first=$service_prefix.1
node=syncbarrier

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { echo "cluster: $*" >&2; }

fail() {
	say "$*"
	exit 1
}

# until_true SECONDS COMMAND...: asks again until it succeeds. False if it never did.
until_true() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

# runs NAME: is the program that was started under this name still there? A
# number alone may belong to somebody else by now, so its start time is compared.
runs() {
	local pid born
	[ -f "$state/pids/$1" ] || return 1
	read -r pid born <"$state/pids/$1"
	[ "$(born "$pid")" = "$born" ]
}

# born PID: when the process started, in the kernel's ticks since boot; nothing
# if there is none. Its name may hold spaces, so what follows the name is counted.
born() {
	local stat
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
	awk '{print $20}' <<<"${stat##*) }"
}

kubectl() { "$(sed -n 's/^kubectl=//p' "$state/programs")" --kubeconfig "$kubeconfig" "$@"; }

containers() { ctr --address "$socket" --namespace k8s.io "$@"; }
