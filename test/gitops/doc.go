// Package gitops judges SyncSchemas and BackfillCheckpoints as Argo CD, Flux and kstatus do, by what config/gitops gives to these tools:
// each file is executed by the interpreter that the tool itself uses. Its tests do so on objects in every state that a tool can find
// them in. Check is what every test of the operator holds each status against that it sees: the controllers' specs after every pass, those of the
// processes with every look.
package gitops
