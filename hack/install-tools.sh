#!/usr/bin/env bash
# Installs what the tests need and this machine lacks: PostgreSQL, PgBouncer,
# and npm, which fetches the other versions of PostgreSQL. On Debian and its
# relatives, as root, by apt-get; elsewhere it says what to install and fails.
# What is there already, from wherever, is left alone.
set -euo pipefail

# has_postgres is true if there is a PostgreSQL server where the tests look for
# one: on PATH, at pg_config, or in Debian's versioned folders.
has_postgres() {
	command -v initdb >/dev/null && return
	if command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/initdb" ]; then
		return
	fi
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

has_pgbouncer() {
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]
}

if ! command -v go >/dev/null; then
	echo "Go is missing: install the version that go.mod names, or a newer one, from go.dev/dl." >&2
	exit 1
fi

packages=()
has_postgres || packages+=(postgresql)
has_pgbouncer || packages+=(pgbouncer)
command -v npm >/dev/null || packages+=(npm)
command -v git >/dev/null || packages+=(git)
command -v make >/dev/null || packages+=(make)

if [ "${#packages[@]}" -eq 0 ]; then
	echo "PostgreSQL, PgBouncer and npm are here: nothing to install."
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "Missing on this machine: ${packages[*]}. Install them by its package manager (Homebrew has them by these names)." >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "Missing on this machine: ${packages[*]}. Run: sudo apt-get install ${packages[*]}" >&2
	exit 1
fi

echo "Installing: ${packages[*]}"
# RUNLEVEL=1 keeps the packages from starting servers at their usual ports: the
# tests start their own, elsewhere.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}"
