//go:build !unix

package sqlite

// inodeOf: there is no list of file locks on this platform.
func inodeOf(string) (string, bool) { return "", false }
