#!/usr/bin/env bash
# Fails, with the difference, if a generated file is not what the sources in
# this checkout generate. It changes nothing here and does not ask what is
# committed, so it says the same in a clean checkout and in the middle of work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

hack/generate.sh "$fresh"

# What is there but is generated no longer is out of date too.
mkdir -p "$fresh/was"
for file in api/*/zz_generated.*.go config/crd/bases/*.yaml config/rbac/role.yaml docs/api.md docs/metrics.md; do
	[ -e "$file" ] || continue
	mkdir -p "$fresh/was/$(dirname "$file")"
	cp "$file" "$fresh/was/$file"
done
mkdir "$fresh/is"
mv "$fresh/api" "$fresh/config" "$fresh/docs" "$fresh/is/"
if ! (cd "$fresh" && diff -ru was is); then
	echo "Generated files are out of date (- as they are, + as they should be): run make generate." >&2
	exit 1
fi
echo "Generated files are up to date."
