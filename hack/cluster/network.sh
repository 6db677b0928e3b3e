# The pods' network on this machine; up.sh and down.sh read it.
# shellcheck shell=bash disable=SC2154

# cni_folder is where the distribution put the plugins.
cni_folder() {
	local folder
	for folder in /usr/lib/cni /opt/cni/bin; do
		[ ! -x "$folder/bridge" ] || echo "$folder"
	done | head -1
}

# remember_kernel writes down what plugins, kubelet and kube-proxy change of the
# kernel's settings. Not every kernel has each.
remember_kernel() {
	local setting
	for setting in net/ipv4/ip_forward net/ipv4/conf/all/route_localnet net/bridge/bridge-nf-call-iptables net/bridge/bridge-nf-call-ip6tables \
		net/netfilter/nf_conntrack_tcp_timeout_established net/netfilter/nf_conntrack_tcp_timeout_close_wait \
		vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
		[ ! -r "/proc/sys/$setting" ] || echo "$setting $(cat "/proc/sys/$setting")"
	done >"$state/kernel-before"
}

restore_kernel() {
	[ -f "$state/kernel-before" ] || return 0
	local setting value
	while read -r setting value; do
		[ "$(cat "/proc/sys/$setting")" = "$value" ] || echo "$value" >"/proc/sys/$setting"
	done <"$state/kernel-before"
}

make_network() {
	if ip link show "$bridge" >/dev/null 2>&1; then
		fail "the interface $bridge is there already: run make cluster-down"
	fi
	if ip -4 -o addr | grep -q " $pod_prefix\."; then
		fail "$pod_range is in use on this machine: name another range, as in SYNCBARRIER_CLUSTER_PODS=10.99.0"
	fi
	remember_kernel
	# Chains of a kubelet that was there before are not ours to remove.
	{ iptables-save && ip6tables-save; } | grep '^:KUBE-' >"$state/chains-before" || true
	# This first: from here on there is something to undo.
	ip link add "$bridge" type bridge
	# A bridge of its own address. Left alone it takes the lowest of its ports',
	# another one with each pod that comes or goes, and pods send to the old one.
	ip link set "$bridge" address "$(cat "/sys/class/net/$bridge/address")"
	ip addr add "$gateway/24" dev "$bridge"
	ip link set "$bridge" up
	# A service's address that has no rule yet, or none any more, ends here
	# rather than at the machine's own gateway.
	ip route add "$service_range" dev "$bridge"
	# Pods reach each other and this machine. Nothing of theirs leaves it.
	iptables -w 10 -I FORWARD -i "$bridge" ! -o "$bridge" -m comment --comment syncbarrier-cluster -j REJECT
	mkdir -p "$state/net.d"
	cat >"$state/net.d/10-syncbarrier.conflist" <<-CONFIG
		{"cniVersion": "0.4.0", "name": "syncbarrier", "plugins": [
		  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "ipMasq": false, "hairpinMode": true,
		   "ipam": {"type": "host-local", "dataDir": "$state/addresses", "ranges": [[{"subnet": "$pod_range"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	CONFIG
	# The pods' own: the machine's name servers are out of their reach. Nothing
	# answers here either, but it says so at once.
	echo "nameserver $gateway" >"$state/resolv.conf"
}

# remove_kubelet_chains removes the chains of kubelet, which nothing of its own
# does, of both families. Those of kube-proxy are gone by then.
remove_kubelet_chains() {
	[ -f "$state/chains-before" ] && [ ! -s "$state/chains-before" ] || return 0
	local tables table chain
	for tables in iptables ip6tables; do
		for chain in INPUT OUTPUT; do
			"$tables" -w 10 -D "$chain" -j KUBE-FIREWALL 2>/dev/null || true
		done
		for table in filter mangle nat; do
			for chain in KUBE-FIREWALL KUBE-KUBELET-CANARY KUBE-IPTABLES-HINT; do
				if "$tables" -w 10 -t "$table" -F "$chain" 2>/dev/null; then
					"$tables" -w 10 -t "$table" -X "$chain"
				fi
			done
		done
	done
}

remove_network() {
	while iptables -w 10 -D FORWARD -i "$bridge" ! -o "$bridge" -m comment --comment syncbarrier-cluster -j REJECT 2>/dev/null; do :; done
	remove_kubelet_chains
	ip link delete "$bridge" 2>/dev/null || true
	rm -f /var/lib/cni/results/syncbarrier-*
	restore_kernel
}
