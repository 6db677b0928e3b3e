// Package storage says what Syncbarrier keeps in a database and what can happen to it. It holds the Store interface in
// the words of docs/design.md section 1, the records it returns, the errors with their stable codes, and the pure decisions
// both backends share. It imports no driver and no Kubernetes.
//
// # Authority
//
// The database is the truth. A Store decides on nothing that it did not read in the same transaction, under the lock
// that keeps it true. No clock decides anything: times are for people.
//
// # The barrier
//
// EnsureSchema is one transaction. Its locks come first and together; then it reads the facts (Facts), lets Decide judge
// them, carries the steps out, moves the marker, declares the checkpoints and raises the fence, checks fence and guards, and
// commits. Whatever fails, nothing of it is left.
//
// # The fence
//
// The minimum writer version for all partitions is part of the trigger on sync_commits itself, not a row that the trigger
// looks up: an old snapshot cannot miss it. Rows of sync_writer_fence mirror it for readers, and raise it further for single
// partitions.
//
// # Ownership
//
// A claim of a checkpoint raises its owner epoch and draws a random token. Every batch of a worker is one transaction whose
// last statement checks both, and the lease of the key range it works on; a worker that lost ownership finds no row and
// rolls its batch back. A restarted worker takes its own ranges back at once by raising their lease epoch: no lease
// ever has to expire.
//
// # Proof
//
// A checkpoint that has a definition becomes activated only in a transaction in which our proof row stands; the guards
// in the database skip any other such update. The serve gate is open only if one read of the database showed that the stored version
// fits and that every checkpoint recorded up to the running version exists and is activated.
package storage
