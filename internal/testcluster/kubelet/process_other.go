//go:build !linux

package kubelet

import "syscall"

// diesWithParent: only Linux can do that.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
