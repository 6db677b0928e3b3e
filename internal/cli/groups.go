package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Groups of verbs in the help: what works on a database, and what speaks to the operator of a cluster. status does both.
const (
	onDatabase = "database"
	inCluster  = "cluster"
)

// grouped puts verbs into a group.
func grouped(id string, verbs ...*cobra.Command) []*cobra.Command {
	for _, verb := range verbs {
		verb.GroupID = id
	}
	return verbs
}

// ofCluster says whether a verb knows nothing of a database, which only the operator reaches.
func ofCluster(cmd *cobra.Command) bool { return cmd.GroupID == inCluster }

// databaseFlags are those of all verbs that a verb of the cluster has no use for.
var databaseFlags = map[string]bool{
	"database": true, "database-file": true, "file": true, "schema": true, "pooler": true, "tls-ca": true, "tls-cert": true, "tls-key": true,
}

// hideDatabaseFlags leaves the flags that name a database out of the help of verbs that speak to a cluster.
func hideDatabaseFlags(root *cobra.Command) {
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if ofCluster(cmd) {
			cmd.InheritedFlags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Hidden || databaseFlags[flag.Name] })
		}
		show(cmd, args)
	})
}

// refuseDatabaseFlags refuses a database that was named to a verb of the cluster: it would not be asked.
func refuseDatabaseFlags(cmd *cobra.Command) (err error) {
	if !ofCluster(cmd) {
		return nil
	}
	cmd.InheritedFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && databaseFlags[flag.Name] && err == nil {
			err = usagef("%s speaks to a cluster, where the operator knows the database: --%s has no meaning here", cmd.CommandPath(), flag.Name)
		}
	})
	return err
}
