#!/usr/bin/env bash
# Shows Syncbarrier at work in a cluster: installs the operator, brings up a small
# application at version 6 with its database, applies the commit that makes it
# version 7, and draws what happens until everything is Ready.
#
# On the cluster that KUBECONFIG names (LOAD_IMAGE says how it gets images, see
# hack/cluster/load.sh), or, without it, on one that it starts on this machine and
# leaves running: make cluster-down ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
namespace=${NAMESPACE:-shop}
patients=${PATIENTS:-20000}
manifests=examples/clinic/app/deploy
work=dist/quickstart

step() { printf '\n\033[1m%s\033[0m\n' "== $*"; }

if [ -z "${KUBECONFIG:-}" ]; then
	step "a cluster on this machine"
	# shellcheck source=cluster/settings.sh
	. hack/cluster/settings.sh
	hack/cluster/up.sh
	export KUBECONFIG=$kubeconfig
else
	kubectl() { command kubectl "$@"; }
	if [ -z "${LOAD_IMAGE:-}" ] && ! (. hack/cluster/settings.sh && runs containerd); then
		echo "KUBECONFIG names a cluster of yours: say in LOAD_IMAGE how it gets an image, such as LOAD_IMAGE=\"kind load image-archive\"" >&2
		exit 2
	fi
fi

if kubectl get namespace "$namespace" >/dev/null 2>&1; then
	echo "The namespace $namespace is there already. Remove it with kubectl delete namespace $namespace, or name another one in NAMESPACE." >&2
	exit 1
fi

step "the images"
make --no-print-directory images

# image NAME: the line of a kustomization that puts the image of `make images` in place.
image() {
	local reference
	reference=$(sed -n "s/^$2=//p" dist/images/references)
	echo "- {name: $1, newName: ${reference%:*}, newTag: \"${reference##*:}\"}"
}

# overlay NAME FOLDER [LINES]: a kustomization over a folder of this checkout.
overlay() {
	mkdir -p "$work/$1"
	{
		echo "resources: [../../../$2]"
		echo "images:"
		image ghcr.io/syncbarrier/syncbarrier operator
		image clinic clinic
		image postgres postgres
		echo "${3:-}"
	} >"$work/$1/kustomization.yaml"
}

step "the operator"
overlay operator config/default
kubectl apply --server-side --force-conflicts -k "$work/operator" | grep -v unchanged
kubectl rollout status deployment/syncbarrier-manager -n syncbarrier-system --timeout=180s

step "the clinic at version 6: $patients patients, three pods, in the namespace $namespace"
kubectl create namespace "$namespace"
overlay base "$manifests/base" "namespace: $namespace"
kubectl apply -k "$work/base"
# The address of the database is a secret: it holds the password.
password=$(head -c 12 /dev/urandom | base64 | tr -d '+/=')
host=$(kubectl get service clinic-db -n "$namespace" -o jsonpath='{.spec.clusterIP}')
kubectl create secret generic clinic-app -n "$namespace" \
	--from-literal=password="$password" --from-literal=uri="postgres://postgres:$password@$host:5432/clinic?sslmode=disable"
kubectl rollout status deployment/clinic-db -n "$namespace" --timeout=120s
overlay v6 "$manifests/v6" "namespace: $namespace
patches:
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: PATIENTS, value: \"$patients\"}}"
kubectl apply -k "$work/v6"
kubectl rollout status deployment/clinic -n "$namespace" --timeout=120s
kubectl wait syncschema/clinic -n "$namespace" --for=condition=Ready --timeout=120s

step "the commit that makes it version 7"
git --no-pager diff --no-index --no-prefix "$manifests/v6" "$manifests/v7" || true

step "from here on nobody does anything"
echo "(The backfill is held to $((patients / 15 + 1)) rows a second, so that there is something to see.)"
overlay v7 "$manifests/v7" "namespace: $namespace
patches:
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/checkpoints/0/backfill/maxRowsPerSecond, value: $((patients / 15 + 1))}
    - {op: add, path: /spec/checkpoints/0/backfill/batchRows, value: $((patients / 100 + 1))}"
go build -o dist/programs/quickstart ./hack/quickstart
kubectl apply -k "$work/v7" >/dev/null
dist/programs/quickstart -namespace "$namespace"
kubectl wait backfillcheckpoints --all -n "$namespace" --for=condition=Ready --timeout=60s >/dev/null # its status follows the gate's

step "the end"
kubectl get syncschemas,backfillcheckpoints,pods -n "$namespace"
echo
echo "Look around: export KUBECONFIG=$KUBECONFIG; kubectl get syncbarrier -n $namespace"
echo "Remove it:   kubectl delete namespace $namespace; make cluster-down ends a cluster of cluster-up"
