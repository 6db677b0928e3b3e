// Package controllers brings SyncSchemas and BackfillCheckpoints to what they ask for (docs/design.md section 7). On one side is the
// Kubernetes API, on the other the engine: storage.Store, internal/barrier, internal/manifest. There is no SQL here, and no
// backend: cmd/manager gives an Opener.
//
// One pass of a reconciler goes through phases, each in a file of its own:
//
//	SyncSchema          translate -> connect -> observe -> pods -> children -> suspend -> warn -> approve -> await pods -> migrate -> gate
//	BackfillCheckpoint  schema -> connect -> observe -> declare -> settings -> suspend -> work
//
// The third reconciler, of pods, writes one condition of theirs: find -> learn (read the gates) -> judge (internal/podgate) -> write. Its request is
// a SyncSchema, and a pass is over all pods that require it.
//
// The first phase that something is in the way of gives the verdict, which is the reason of Ready. Then status is written once, by
// server-side apply, and only if it changed; events follow the write.
//
// A pass never waits: one attempt at a barrier is one pass, and the pause until the next is a requeue. What a pass knows it
// has read in this pass. Nothing is decided by a condition or a status that was written before, so a status that is lost
// is rebuilt. What is kept in memory between passes is pacing and presentation: when the next attempt is due, how many there were, and
// the samples that a rate is made of.
package controllers
