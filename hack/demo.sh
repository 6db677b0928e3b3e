#!/usr/bin/env bash
# The main job in one run: version 6 of a small clinic application is at work, version 7 adds a column that has to be filled.
# It works on an SQLite file of its own, or, with DATABASE_URL=postgres://..., in a database schema of its own there.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
writer=
postgres=${DATABASE_URL:-}
schema=clinic_demo_$$
if [ -n "$postgres" ]; then
  database=$postgres
else
  database=sqlite:$work/clinic.db
fi
export SYNCBARRIER_DATABASE=$database

finish() {
  code=$?
  if [ -n "$writer" ]; then kill "$writer" 2>/dev/null || true; wait "$writer" 2>/dev/null || true; fi
  if [ -n "$postgres" ] && [ -x "$work/clinic" ]; then "$work/clinic" drop -database "$database" -schema "$schema" >/dev/null || true; fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT

step() { printf '\n\033[1m%s\033[0m\n' "== $*"; }
say_and_run() {
  printf '$ syncbarrier %s\n' "$*"
  "$work/syncbarrier" --schema "$schema" "$@"
}
clinic() { local verb=$1; shift; "$work/clinic" "$verb" -database "$database" -schema "$schema" "$@"; }

# wait_for FILE TEXT: until the file has a line with the text, 30 seconds at most.
wait_for() {
  for _ in $(seq 300); do
    if grep -m1 -e "$2" "$1"; then return 0; fi
    sleep 0.1
  done
  echo "demo: nothing like '$2' happened within 30 s:" >&2
  cat "$1" >&2
  return 1
}

step "building"
go build -o "$work/syncbarrier" ./cmd/syncbarrier
go build -o "$work/clinic" ./examples/clinic

step "the clinic at version 6: ${ROWS:-20000} patients, and a program of version 6 that writes all the time"
clinic init -rows "${ROWS:-20000}"
say_and_run apply -f examples/clinic/v6.yaml
clinic write -version 6 >"$work/old.log" 2>&1 &
writer=$!
wait_for "$work/old.log" "version 6 writes"

step "what version 7 would do"
say_and_run plan -f examples/clinic/v7.yaml

step "the barrier: one transaction"
say_and_run apply -f examples/clinic/v7.yaml --barrier-only

step "the old program, from that moment on"
wait_for "$work/old.log" "refused by the database"

step "version 7 may not serve yet"
code=0
say_and_run gate -f examples/clinic/v7.yaml || code=$?
if [ "$code" -ne 3 ]; then echo "demo: the gate answered with exit code $code, not 3" >&2; exit 1; fi

step "the backfill, to its activation"
say_and_run backfill name-search
clinic check
say_and_run status

step "version 7 may serve"
say_and_run gate -f examples/clinic/v7.yaml
