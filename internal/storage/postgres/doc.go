// Package postgres keeps a barrier in a PostgreSQL database (14 to 18). Store implements storage.Store.
//
// Everything lives in one database schema, named in full wherever SQL of ours refers to it. The tables are those of the sync
// protocol and ours beside them (catalog.sql); functions and triggers are called syncbarrier_* and never by the protocol's
// own names, because a program that follows it drops and creates those at each start.
//
// What must hold against every program is kept by triggers: the fence (fence.sql) and the guards (guards.sql). They are installed and
// replaced inside the barrier's transaction and at no moment absent.
package postgres
