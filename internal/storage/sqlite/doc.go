// Package sqlite keeps a barrier in an SQLite database file. Store implements storage.Store.
//
// The tables are those of the sync protocol and ours beside them (catalog.sql); triggers are called syncbarrier_* and never by the
// protocol's own names, because a program that follows it creates those at each start.
//
// What must hold against every program is kept by triggers: the fence (fence.sql) and the guards (guards.sql). They are installed and
// replaced inside the barrier's transaction and at no moment absent. A connection that switched triggers off
// (SQLITE_DBCONFIG_ENABLE_TRIGGER) is outside what they can hold.
//
// SQLite has one lock for all writers of a file. Every transaction of ours that writes takes it first (BEGIN IMMEDIATE), so what
// it reads afterwards is true until it commits, and an old snapshot cannot write at all.
//
// # The file
//
// A file that a barrier fills first gets a write-ahead log. One with content keeps the journal mode that its programs chose: a write-ahead
// log needs shared memory, so on a network volume it would destroy the file.
//
// Foreign keys are enforced on every connection but a barrier's own. There DROP TABLE would first delete the rows of the table, and those of other
// tables that refer to them ON DELETE CASCADE, which is how rebuilding a table loses its children. A barrier checks the references in
// what the user's SQL wrote at its end instead.
package sqlite
