package testdb

import "maps"

// baseSettings are the settings of every server started here: wide enough for
// many tests at once, and for two-phase commit, replication and logical slots.
func baseSettings() map[string]string {
	return map[string]string{
		"max_connections":           "300",
		"max_prepared_transactions": "50",
		"wal_level":                 "logical",
		"max_wal_senders":           "20",
		"max_replication_slots":     "20",
		// A standby is set up by copying files: the log written meanwhile must
		// still be there when it connects.
		"wal_keep_size":   "128MB",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"lc_messages":     "C",
		"log_line_prefix": "%m [%p] %q%u@%d ",
	}
}

// settingsFor returns the settings of a server: durable ones as a production
// server has them, else ones that lose data if the machine (not the server)
// crashes and are several times faster.
func settingsFor(durable bool, extra map[string]string) map[string]string {
	settings := baseSettings()
	if !durable {
		settings["fsync"] = "off"
		settings["synchronous_commit"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, extra)
	return settings
}
