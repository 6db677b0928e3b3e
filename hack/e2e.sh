#!/usr/bin/env bash
# Runs the stories of test/e2e on the cluster that KUBECONFIG names, or, without
# it, on one that it starts and ends. Arguments go to ginkgo, as in
#
#   hack/e2e.sh --ginkgo.focus="worker that is lost"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${KUBECONFIG:-}" ]; then
	# shellcheck source=cluster/settings.sh
	. hack/cluster/settings.sh
	if ! runs kube-apiserver; then
		trap hack/cluster/down.sh EXIT
	fi
	hack/cluster/up.sh
	export KUBECONFIG=$kubeconfig
	export KILL_CONTAINER="ctr --address $socket --namespace k8s.io tasks kill --signal SIGKILL"
fi
make --no-print-directory images
go test -v -count=1 -tags e2e -timeout 70m ./test/e2e --ginkgo.v --ginkgo.fail-fast "$@"
