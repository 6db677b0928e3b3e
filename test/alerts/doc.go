// Package alerts holds the alerts in config/alerts to the metrics that the
// operator really has.
package alerts
