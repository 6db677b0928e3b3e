package storage

import (
	"cmp"
	"slices"
)

// sorted returns a sorted copy; nil stays nil.
func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}

// sortedBy returns a copy sorted by name.
func sortedBy[T any](items []T, name func(T) string) []T {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
	return items
}
