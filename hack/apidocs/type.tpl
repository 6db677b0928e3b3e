{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type -}}

## {{ $type.Name }}

{{ if $type.GVK -}}
`apiVersion: {{ $type.GVK.Group }}/{{ $type.GVK.Version }}`, `kind: {{ $type.GVK.Kind }}`

{{ end -}}
{{ $type.Doc | replace "<" "\\<" }}

{{ if $type.EnumValues -}}
{{ range $type.EnumValues -}}
- `{{ .Name }}`{{ with .Doc }}: {{ regexReplaceAll "^[A-Z][a-z]+[A-Z][A-Za-z]*:? " . "" | replace "\n" " " }}{{ end }}
{{ end }}
{{ end -}}

{{ if $type.References -}}
Used in {{ range $i, $reference := $type.SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $reference }}{{ end }}.

{{ end -}}

{{ range $type.Members -}}
- **`{{ .Name }}`** ({{ markdownRenderType .Type }}{{ template "bounds" . }})
  {{ if eq .Name "metadata" }}{{ .Doc | default "metadata is the standard object metadata." | replace "\n" " " }}{{ else }}{{ .Doc | replace "\n" " " | replace "<" "\\<" }}{{ end }}
{{ end -}}

{{- end -}}
{{- end -}}

{{- define "bounds" -}}
{{- if and .Default (not (hasPrefix "{" .Default)) }}, default `{{ .Default }}`{{ end -}}
{{- range reverse .Validation -}}
{{- $rule := regexReplaceAll " *$" . "" -}}
{{- if hasPrefix "Optional:" $rule }}, optional
{{- else if hasPrefix "Required:" $rule }}, required
{{- else if contains "XValidation" $rule }}
{{- else if hasPrefix "Minimum: " $rule }}, at least {{ trimPrefix "Minimum: " $rule | float64 | int64 }}
{{- else if hasPrefix "Maximum: " $rule }}, at most {{ trimPrefix "Maximum: " $rule | float64 | int64 }}
{{- else if hasPrefix "MaxLength: " $rule }}, at most {{ trimPrefix "MaxLength: " $rule }} characters
{{- else if hasPrefix "MinLength: " $rule }}, at least {{ trimPrefix "MinLength: " $rule }} {{ ternary "character" "characters" (eq $rule "MinLength: 1") }}
{{- else if hasPrefix "MaxItems: " $rule }}, at most {{ trimPrefix "MaxItems: " $rule }} entries
{{- else if hasPrefix "MinItems: " $rule }}, at least {{ trimPrefix "MinItems: " $rule }} {{ ternary "entry" "entries" (eq $rule "MinItems: 1") }}
{{- else if hasPrefix "MaxProperties: " $rule }}, at most {{ trimPrefix "MaxProperties: " $rule }} entries
{{- else if hasPrefix "MinProperties: " $rule }}, at least {{ trimPrefix "MinProperties: " $rule }} {{ ternary "entry" "entries" (eq $rule "MinProperties: 1") }}
{{- else if hasPrefix "Enum: " $rule }}, one of {{ trimPrefix "Enum: [" $rule | trimSuffix "]" | replace " " ", " }}
{{- else if hasPrefix "Pattern: " $rule }}, matching {{ trimPrefix "Pattern: " $rule }}
{{- else if hasPrefix "items:" $rule }}{{ template "itemBounds" $rule }}
{{- else if hasPrefix "Type: " $rule }}
{{- else if hasPrefix "Schemaless: " $rule }}
{{- else }}, {{ $rule }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "itemBounds" -}}
{{- if hasPrefix "items:MaxLength: " . }}, each at most {{ trimPrefix "items:MaxLength: " . }} characters{{ end -}}
{{- end -}}
