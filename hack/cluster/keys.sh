# Keys, certificates and kubeconfigs of the cluster; up.sh reads it.
# shellcheck shell=bash disable=SC2154

pki=$state/pki

# signed NAME SUBJECT [ALTERNATIVE NAMES]: a key and its certificate.
signed() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$pki/$1.key" -out "$pki/$1.csr" -subj "$2" 2>/dev/null
	openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 365 -out "$pki/$1.crt" \
		-extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=clientAuth,serverAuth\n' "${3:-DNS:localhost}") 2>/dev/null
}

# access NAME FILE: a kubeconfig that has the keys in it, so that it can be copied.
access() {
	cat >"$2" <<-CONFIG
		apiVersion: v1
		kind: Config
		clusters:
		- name: syncbarrier
		  cluster:
		    server: https://$gateway:$(port apiserver)
		    certificate-authority-data: $(base64 -w0 "$pki/ca.crt")
		users:
		- name: $1
		  user:
		    client-certificate-data: $(base64 -w0 "$pki/$1.crt")
		    client-key-data: $(base64 -w0 "$pki/$1.key")
		contexts:
		- name: syncbarrier
		  context: {cluster: syncbarrier, user: $1}
		current-context: syncbarrier
	CONFIG
}

make_keys() {
	mkdir -p "$pki"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$pki/ca.key" -out "$pki/ca.crt" -subj /CN=syncbarrier-cluster -days 365 2>/dev/null
	signed apiserver /CN=kube-apiserver \
		"DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:$service_first,IP:$gateway"
	signed admin /O=system:masters/CN=admin
	signed node "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$gateway"
	signed controllers /CN=system:kube-controller-manager
	signed scheduler /CN=system:kube-scheduler
	signed proxy /CN=system:kube-proxy
	openssl genrsa -out "$pki/tokens.key" 2048 2>/dev/null
	access admin "$kubeconfig"
	local user
	for user in node controllers scheduler proxy; do
		access "$user" "$pki/$user.conf"
	done
}
