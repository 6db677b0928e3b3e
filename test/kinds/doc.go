// Package kinds holds tests of the custom resource definitions and the samples on a real API server: what it takes, what it refuses,
// and what a person sees.
package kinds
