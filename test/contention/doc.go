// Package contention holds tests in which many want the same: migrators, writers, owners, workers, each as a process of its own
// where that makes a difference.
package contention
