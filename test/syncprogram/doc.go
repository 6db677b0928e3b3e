// Package syncprogram is a program that follows Syncular's server protocol to the letter: its tables, its start, its
// statements, its order of locks. Tests put it beside a Store, on a database either of them made.
//
// It comes at two ages. Older was built before there were fences and checkpoints. Newer has the protocol's own barrier: it creates
// its trigger again at every start, locks sync_partitions before it migrates, and declares, claims, advances and activates
// checkpoints.
//
// Nothing here is improved. Where the protocol reads the marker before its lock, so does this program; where it would lower a
// horizon, so does this one. What the database must make of that is the tests' matter.
package syncprogram
