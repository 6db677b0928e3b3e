// Package architecture holds the direction of imports that docs/design.md,
// section 10, draws: its only content is a test.
package architecture
