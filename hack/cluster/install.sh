#!/usr/bin/env bash
# Installs what a cluster of real containers needs and this machine lacks:
# containerd, runc, the CNI plugins, iptables, ip, conntrack and openssl. On
# Debian and its relatives, as root, by apt-get; elsewhere it says what is
# missing and fails. What is there already is left alone.
set -euo pipefail

if [ "$(uname -s)" != Linux ] || [ "$(id -u)" -ne 0 ]; then
	echo "A cluster of real containers needs root on Linux: to use a cluster that you have, name its kubeconfig in KUBECONFIG." >&2
	exit 1
fi

packages=()
want() { command -v "$1" >/dev/null || packages+=("$2"); }
want containerd containerd
want runc runc
want iptables iptables
want ip iproute2
want conntrack conntrack
want openssl openssl
want findmnt util-linux
compgen -G '/etc/ssl/cert*/ca-certificates.crt' >/dev/null || compgen -G '/etc/pki/tls/certs/ca-bundle.crt' >/dev/null || packages+=(ca-certificates)
[ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || packages+=(containernetworking-plugins)

if [ "${#packages[@]}" -eq 0 ]; then
	echo "containerd, runc, the CNI plugins and iptables are here: nothing to install."
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "Missing on this machine: ${packages[*]}. Install them by its package manager, or name the kubeconfig of a cluster that you have in KUBECONFIG." >&2
	exit 1
fi
echo "Installing: ${packages[*]}"
# RUNLEVEL=1 keeps the packages from starting a containerd of the system's: the
# cluster starts its own.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}"
