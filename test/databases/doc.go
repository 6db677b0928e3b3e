// Package databases gives tests a fresh database of each product, with Stores, programs that know nothing of Syncbarrier, and
// processes of their own on it.
package databases
