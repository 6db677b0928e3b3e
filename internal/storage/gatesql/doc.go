// Package gatesql is the statement that reads a serve gate (docs/design.md
// sections 2 and 8), for each database, and how its one row is read.
//
// It knows no driver: the backends send the statement over theirs, and package
// servegate over whatever an application has.
package gatesql
