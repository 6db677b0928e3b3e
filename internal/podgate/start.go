package podgate

// MayStart says whether a pod with the start gate may be scheduled: its condition is to be True, or the database of every SyncSchema that it
// requires was migrated to its version. What the pod waits for then, it waits for where it runs. A requirement that is missing, malformed or
// edited, a standby, another owner's database, and one that could not be read start nothing.
func MayStart(pod Pod, verdict Verdict, facts func(schema string) Facts) bool {
	if verdict.Open {
		return true
	}
	required, reason, _ := pod.Requirements()
	if reason != "" {
		return false
	}
	for _, r := range required {
		known := facts(r.Schema)
		if !known.Found || known.Gate == nil || known.Foreign != "" || known.Gate.Standby || !known.Gate.Catalog || !known.Gate.Marker || known.Gate.StoredVersion < r.Version {
			return false
		}
	}
	return len(required) > 0
}
