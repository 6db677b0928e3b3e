#!/usr/bin/env bash
# Starts a Kubernetes of one node on this machine, with kubelet and real
# containers, and returns when the node is Ready and services are reachable.
# hack/cluster/down.sh ends it. Needs root on Linux.
#
# Its kubeconfig is /var/lib/syncbarrier-cluster/kubeconfig
# (SYNCBARRIER_CLUSTER_STATE names another folder).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=settings.sh
. "$here/settings.sh"
. "$here/keys.sh"
. "$here/network.sh"
. "$here/node.sh"

# program NAME: the path that hack/controlplane.sh found.
program() { sed -n "s/^$1=//p" "$state/programs"; }

# port NAME: the same one at every question, and free at the first.
port() {
	local number
	[ -f "$state/ports/$1" ] || while :; do
		number=$((RANDOM % 10000 + 20000))
		if [ -z "$(ss -Hltn "sport = :$number")" ] && ! grep -qsx "$number" "$state"/ports/*; then
			echo "$number" >"$state/ports/$1"
			break
		fi
	done
	cat "$state/ports/$1"
}

# start NAME COMMAND...: in a session of its own, so that an interrupt at the
# terminal does not reach it, and writes down which process it is.
start() {
	local name=$1
	shift
	setsid "$@" >"$state/$name.log" 2>&1 </dev/null &
	local pid=$!
	echo "$pid $(born "$pid")" >"$state/pids/$name"
}

# awaited NAME SECONDS COMMAND...: until the command succeeds, the program ends or
# the time is over.
awaited() {
	local name=$1 seconds=$2
	shift 2
	if ! until_true "$seconds" "$@"; then
		tail -20 "$state/$name.log" >&2
		fail "$name is not ready after $seconds s; its log is $state/$name.log. Run make cluster-down before the next attempt."
	fi
}

api_is_ready() { kubectl get --raw /readyz; }

start_control_plane() {
	local etcd peer
	etcd=http://127.0.0.1:$(port etcd) peer=http://127.0.0.1:$(port etcd-peer)
	# A cluster of tests may lose everything with the machine: no fsync.
	start etcd "$(program etcd)" --data-dir="$state/etcd" --listen-client-urls="$etcd" --advertise-client-urls="$etcd" \
		--listen-peer-urls="$peer" --initial-advertise-peer-urls="$peer" --initial-cluster="default=$peer" --unsafe-no-fsync --log-level=warn
	start kube-apiserver "$(program kube-apiserver)" --etcd-servers="$etcd" --bind-address="$gateway" --advertise-address="$gateway" \
		--secure-port="$(port apiserver)" --service-cluster-ip-range="$service_range" --client-ca-file="$pki/ca.crt" --cert-dir="$pki" \
		--tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/tokens.key" \
		--service-account-signing-key-file="$pki/tokens.key" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
		--kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
		--kubelet-preferred-address-types=InternalIP --allow-privileged=true
	awaited kube-apiserver 180 api_is_ready
	start kube-controller-manager "$(program kube-controller-manager)" --kubeconfig="$pki/controllers.conf" --use-service-account-credentials \
		--service-account-private-key-file="$pki/tokens.key" --root-ca-file="$pki/ca.crt" --leader-elect=false --secure-port=0
	start kube-scheduler "$(program kube-scheduler)" --kubeconfig="$pki/scheduler.conf" --leader-elect=false --secure-port=0
}

main() {
	if runs kube-apiserver && runs kubelet && node_is_ready; then
		say "it runs already. export KUBECONFIG=$kubeconfig"
		return
	fi
	[ ! -e "$state" ] || fail "$state is what is left of a cluster: run make cluster-down"
	"$here/able.sh"
	local programs images
	programs=$("$repository/hack/controlplane.sh" etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
	images=$("$repository/hack/images.sh" pause)
	mkdir -p "$state/pids" "$state/ports"
	chmod 700 "$state"
	echo "$programs" >"$state/programs"
	echo "$images" >"$state/images"
	# Cgroups of a kubelet that was there before are not ours to remove.
	find /sys/fs/cgroup -maxdepth 2 -name kubepods >"$state/cgroups-before"
	make_network
	make_keys
	start_containerd
	"$here/load.sh" pause
	start_control_plane
	start_kubelet
	start_proxy
	say "the node is Ready ($SECONDS s). export KUBECONFIG=$kubeconfig"
}

main
