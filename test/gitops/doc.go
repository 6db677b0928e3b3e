// Package gitops judges SyncSchemas and BackfillCheckpoints as Argo CD, Flux and kstatus do, by what config/gitops gives to these tools:
// each file is executed by the interpreter that the tool itself uses. Its tests do so on objects in every state that a tool can find
// them in; the controllers' specs do so after every pass.
package gitops
