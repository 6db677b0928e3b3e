// Package gitops holds tests of what config/gitops gives to Argo CD, Flux and kustomize: each file is executed by the interpreter
// that the tool itself uses, on objects in every state that a tool can find them in.
package gitops
