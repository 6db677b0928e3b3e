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
	export CONTAINER_TASKS="ctr --address $socket --namespace k8s.io tasks"
	export FREEZE_APISERVER="$PWD/hack/cluster/freeze.sh kube-apiserver"
fi
make --no-print-directory images
stories=()
if [ -z "${E2E_ALL:-}" ]; then
	stories=(--ginkgo.label-filter='!all')
else
	# What an autoscaler goes by, for the story that has one.
	hack/images.sh metrics >>dist/images/references
	hack/cluster/load.sh metrics
	# The operator of an earlier commit, for the story that upgrades it.
	before=${E2E_BEFORE:-HEAD~20}
	echo "The operator that is upgraded from: $(git log -1 --format='%h %s' "$before")"
	rm -rf dist/before
	mkdir -p dist/before
	git archive "$before" | tar -x -C dist/before
	(cd dist/before && mkdir -p dist/images && hack/images.sh operator >dist/images/references && hack/cluster/load.sh operator)
fi
go test -v -count=1 -tags e2e -timeout 100m ./test/e2e --ginkgo.v --ginkgo.fail-fast --ginkgo.timeout=100m "${stories[@]}" "$@"
