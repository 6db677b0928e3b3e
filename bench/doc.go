// Package bench measures what docs/performance.md states. `make bench` prints one row for each figure: the median of five ratios,
// each taken side by side in one run, and the target. Speed is measured, never asserted: machines are shared and noisy.
package bench
