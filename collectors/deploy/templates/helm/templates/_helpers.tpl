{{- define "amcast.name" -}}
{{ printf "%s-collectors" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "amcast.selector" -}}
app.kubernetes.io/name: amcast-collectors
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "amcast.labels" -}}
{{ include "amcast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
