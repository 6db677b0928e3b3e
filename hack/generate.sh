#!/usr/bin/env bash
# Writes the files that are generated from the Go sources:
#
#   hack/generate.sh          into this checkout
#   hack/generate.sh FOLDER   into another folder, of the same layout
#
# They are the deep-copy methods and the custom resource definitions, from the
# types in api/, the manager's role, from the markers in controllers/ and
# cmd/manager, docs/api.md, from the comments in api/, and docs/metrics.md, from
# the metrics that the operator registers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
into=${1:-.}

for api in api/*/; do
	version=$(basename "$api")
	mkdir -p "$into/api/$version"
	hack/tool controller-gen object "paths=./api/$version" "output:object:dir=$into/api/$version"
done
mkdir -p "$into/config/crd/bases" "$into/config/rbac"
hack/tool controller-gen crd paths=./api/... "output:crd:dir=$into/config/crd/bases"
hack/tool controller-gen rbac:roleName=syncbarrier-manager paths=./controllers paths=./cmd/manager "output:rbac:dir=$into/config/rbac"

# crd-ref-docs leaves blanks at the ends of lines and several empty lines.
mkdir -p "$into/docs"
hack/tool crd-ref-docs --log-level=ERROR --source-path=api --config=hack/apidocs/config.yaml --templates-dir=hack/apidocs \
	--renderer=markdown --output-path="$into/docs/api.md"
tidied=$(sed 's/ *$//' "$into/docs/api.md" | cat -s)
echo "$tidied" >"$into/docs/api.md"

go run ./hack/metricsdocs >"$into/docs/metrics.md"
