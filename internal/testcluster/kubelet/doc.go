// Package kubelet stands in for scheduler and kubelet in tests: it runs the containers of real pods as real processes.
//
// It takes every pod that no node has yet, writes the pod's volumes into a folder, runs each container's command with the environment of
// the pod and nothing else, and writes into the pod's status what became of it: waiting and why, running, the exit code, the end of the
// log. A pod with readiness gates is Ready once all their conditions are True. A pod that is deleted gets SIGTERM, and SIGKILL after its
// grace period. Mounted Secrets follow their objects, as with a kubelet.
//
// It differs from one where a process differs from a container: there is no image but a table of programs, no root file system, no user
// and no limits, and where a command or a variable names a mount path it gets the folder's real path.
package kubelet
