// Package capture takes a database from one version to the next under the load of a program that knows nothing of us: pgbench, in its own
// workload and in scripts. The command line is the real program, as a process of its own.
package capture
