{{- define "gvList" -}}
# Fields of the custom resources

This page is generated from the comments in `api/` by `make generate`. `kubectl explain syncschema.spec` shows the same.

Both kinds are namespaced and of the category `syncbarrier`, so `kubectl get syncbarrier` lists both. `kubectl get ssch` and
`kubectl get bfc` list each. What their conditions mean stands in [runbook.md](runbook.md).

{{ range . -}}
{{- $gv := . -}}
{{- range $gv.SortedKinds }}
{{ template "type" ($gv.TypeForKind .) }}
{{- end }}
# Parts of them
{{ range $gv.SortedTypes }}
{{- if not .GVK }}
{{ template "type" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
