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

# A -run that matches nothing succeeds, so ask first whether there is a contract.
if ! go test -list Contract ./internal/storage/postgres | grep Contract; then
	echo "No test of ./internal/storage/postgres has Contract in its name." >&2
	exit 1
fi
contract() {
	echo "The storage contract on PostgreSQL $1:"
	env -u SYNCBARRIER_TEST_POSTGRES SYNCBARRIER_TEST_POSTGRES_MAJOR="$1" \
		go test "${flags[@]}" -run Contract ./internal/storage/postgres
}
# Beside the packages, not after them: both wait for their databases more than they
# compute. What they print is shown at the end, in one piece.
contracts=$(mktemp)
(contract 14 && contract 18) >"$contracts" 2>&1 &
contracts_done=$!

# The longest packages first, so that none of them is left alone at the end.
result=0
go test "${flags[@]}" ./internal/storage/postgres ./controllers ./test/operator ./test/capture ./test/gate ./... || result=1
wait "$contracts_done" || result=1
cat "$contracts"
rm -f "$contracts"
exit "$result"
