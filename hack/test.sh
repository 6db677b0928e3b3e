#!/usr/bin/env bash
# Runs the tests, against real database servers and a real Kubernetes API server:
#
#   hack/test.sh                  all packages, then the storage contract on the
#                                 oldest and the newest PostgreSQL supported
#   hack/test.sh PACKAGE...       these packages only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# -count=1: a cached result says nothing about the server of today.
# -p 4: most packages wait for servers of their own more than they compute.
flags=(-count=1 -p 4 -timeout 20m)

stop_services() {
	status=$?
	go run ./hack/testservices stop || status=1
	exit "$status"
}
trap stop_services EXIT
echo "Starting the PostgreSQL that the tests share."
go run ./hack/testservices start

if [ "$#" -gt 0 ]; then
	go test "${flags[@]}" "$@"
	exit
fi

# The tests of the operator start a Kubernetes API server, which is compiled here
# where there is none.
./hack/controlplane.sh
go test "${flags[@]}" ./...

# A -run that matches nothing succeeds, so ask first whether there is a contract.
if ! go test -list Contract ./internal/storage/postgres | grep Contract; then
	echo "No test of ./internal/storage/postgres has Contract in its name." >&2
	exit 1
fi
unset SYNCBARRIER_TEST_POSTGRES
contract() {
	SYNCBARRIER_TEST_POSTGRES_MAJOR=$1 go test "${flags[@]}" -run Contract ./internal/storage/postgres
}
echo "The storage contract on PostgreSQL 14 and 18, side by side:"
contract 14 &
oldest=$!
contract 18
wait "$oldest"
