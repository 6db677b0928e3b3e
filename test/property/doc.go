// Package property drives random sequences of operations against a small model of a Store and against both backends. All three must
// answer alike: codes, outcomes, counts, positions.
//
// The model knows no SQL, no time and no second process: it is what docs/design.md says in the fewest words that predict an answer.
package property
