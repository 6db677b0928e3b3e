package cli

import (
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pathFlags hold paths, whose bytes are the file system's affair; every other flag and argument goes to a database or a cluster as text.
var pathFlags = []string{"database", "database-file", "file", "tls-ca", "tls-cert", "tls-key", "kubeconfig"}

// checkNames refuses names and keys that no database can hold before anything is opened.
func checkNames(cmd *cobra.Command, args []string) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if err == nil && !slices.Contains(pathFlags, flag.Name) && !utf8.ValidString(flag.Value.String()) {
			err = usagef("--%s: %q is no UTF-8 text", flag.Name, flag.Value.String())
		}
	})
	for _, arg := range args {
		if err == nil && !cmd.Hidden && !utf8.ValidString(arg) { // the hidden verb copies this program to a path
			err = usagef("%q is no UTF-8 text", arg)
		}
	}
	return err
}
