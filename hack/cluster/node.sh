# What runs containers: containerd, kubelet and kube-proxy; up.sh reads it.
# shellcheck shell=bash disable=SC2154

start_containerd() {
	local sandbox
	sandbox=$(sed -n 's/^pause=//p' "$state/images")
	# restrict_oom_score_adj lets containers start where root may not lower a
	# process's score, as inside another container or a small machine.
	cat >"$state/containerd.toml" <<-CONFIG
		version = 2
		root = "$state/containerd"
		state = "$state/containerd-run"
		disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
		[grpc]
		  address = "$socket"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "$sandbox"
		  restrict_oom_score_adj = true
		  [plugins."io.containerd.grpc.v1.cri".containerd]
		    snapshotter = "overlayfs"
		    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		      runtime_type = "io.containerd.runc.v2"
		      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		        SystemdCgroup = false
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "$(cni_folder)"
		    conf_dir = "$state/net.d"
	CONFIG
	start containerd containerd --config "$state/containerd.toml"
	awaited containerd 60 ctr --address "$socket" version
}

start_kubelet() {
	cat >"$state/kubelet.yaml" <<-CONFIG
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		address: $gateway
		port: $(port kubelet)
		healthzPort: 0
		authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
		authorization: {mode: Webhook}
		tlsCertFile: $pki/node.crt
		tlsPrivateKeyFile: $pki/node.key
		containerRuntimeEndpoint: unix://$socket
		cgroupDriver: cgroupfs
		failCgroupV1: false
		failSwapOn: false
		enforceNodeAllocatable: []
		# The machine is shared and its disk may be nearly full: nothing is evicted
		# or collected for that.
		evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
		imageGCHighThresholdPercent: 100
		# There is no name server: pods use addresses. Nothing answers here, and says so at once.
		clusterDNS: [$gateway]
		clusterDomain: cluster.local
		resolvConf: $state/resolv.conf
		podLogsDir: $state/logs
		shutdownGracePeriod: 0s
	CONFIG
	start kubelet "$(program kubelet)" --config="$state/kubelet.yaml" --kubeconfig="$pki/node.conf" \
		--hostname-override="$node" --root-dir="$state/kubelet" --cert-dir="$pki" --node-ip="$gateway"
	awaited kubelet 120 node_is_ready
}

node_is_ready() { kubectl get node "$node" --no-headers | grep -q ' Ready '; }

start_proxy() {
	cat >"$state/proxy.yaml" <<-CONFIG
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		clientConnection: {kubeconfig: $pki/proxy.conf}
		mode: iptables
		clusterCIDR: $pod_range
		# An answer from pod to pod over the bridge would not pass the translation
		# back where the kernel does not show bridged packets to iptables.
		iptables: {masqueradeAll: true, minSyncPeriod: 0s}
		conntrack: {maxPerCore: 0}
		bindAddress: $gateway
		healthzBindAddress: 127.0.0.1:$(port proxy-health)
		metricsBindAddress: 127.0.0.1:$(port proxy-metrics)
	CONFIG
	start kube-proxy "$(program kube-proxy)" --config="$state/proxy.yaml" --hostname-override="$node"
	awaited kube-proxy 60 service_has_a_rule
}

# Until then a pod that dials the API server's service is refused.
service_has_a_rule() { iptables-save -t nat | grep -q -e "-d $service_first/32 .*default/kubernetes:https"; }
