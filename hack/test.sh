#!/usr/bin/env bash
# Runs the tests, against real database servers and a real Kubernetes API server:
#
#   hack/test.sh                  all packages, and the storage contract on the
#                                 oldest and the newest PostgreSQL supported too
#   hack/test.sh PACKAGE...       these packages only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# -count=1: a cached result says nothing about the server of today.
# -p 3: most packages wait for servers of their own more than they compute.
flags=(-count=1 -p 3 -timeout 25m)
# Memory is cheaper here than time: the garbage is collected less often, in compilers, in
# tests and in the API servers that they start. Of what a server computes from its start to
# the end of its tests that is a fifth.
export GOGC="${GOGC:-400}"

stop_services() {
	status=$?
	for lane in $(jobs -p); do # only where this script was cut short
		pkill -P "$lane" || true
	done
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

# The tests of PostgreSQL that run beside others wait for the server more than they compute.
postgres=./internal/storage/postgres
atonce=(-parallel 4)

# A -run that matches nothing succeeds, so ask first whether there are the contracts.
listed=$(go test -list Contract "$postgres")
for name in TestContract TestContractSimpleProtocol TestContractPgBouncer; do
	if ! grep -qx "$name" <<<"$listed"; then
		echo "$postgres has no $name." >&2
		exit 1
	fi
done

# The contract is run whole four times, so that each server and each way of speaking
# to one has at least one whole run: as most programs speak, with prepared statements,
# on the oldest and on the newest server, where catalogs, syntax and messages differ
# most; by the simple protocol and behind PgBouncer on the default server, since there
# each statement of ours is given its parameters in another way, whatever the server.
# Prepared statements on the default server are what all other tests use: a whole run
# of them too could find nothing but what three things at once bring about.
contract() {
	echo "The storage contract on PostgreSQL $1:"
	env -u SYNCBARRIER_TEST_POSTGRES SYNCBARRIER_TEST_POSTGRES_MAJOR="$1" \
		go test "${flags[@]}" "${atonce[@]}" -run Contract -skip "SimpleProtocol|PgBouncer" "$postgres"
}

# What takes longest begins first and in lanes of its own, since it waits for its
# databases more than it computes: all contracts, the other tests of PostgreSQL, and
# the other packages.
lanes=$(mktemp -d)
(renice -n 5 $BASHPID >/dev/null # the others wait for one another more
	go test "${flags[@]}" "${atonce[@]}" -run Contract -skip "^TestContract\$" "$postgres" && contract 14 && contract 18) >"$lanes/contracts" 2>&1 &
contracts=$!
go test "${flags[@]}" "${atonce[@]}" -skip Contract "$postgres" >"$lanes/postgres" 2>&1 &
storage=$!

others=$(go list ./... | grep -v "/internal/storage/postgres$")
result=0
# shellcheck disable=SC2086 # each word of it is a package
go test "${flags[@]}" ./controllers ./test/operator ./test/capture ./test/gate $others || result=1
wait "$storage" || result=1
cat "$lanes/postgres"
wait "$contracts" || result=1
cat "$lanes/contracts"
rm -rf "$lanes"
exit "$result"
