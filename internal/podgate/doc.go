// Package podgate decides the condition of a pod that asks for the serve gate: the table of docs/design.md section 8, as pure functions over
// what a read of the database showed. It knows no client, no clock and no database.
//
// No time is compared. A pod whose condition is True was proven, and stays so: its proof is kept in the condition's own message, and not in
// anybody's memory, so that an operator that starts anew, or cannot reach the database, takes no pod out of its Services. Any other
// pod needs the whole proof.
package podgate
