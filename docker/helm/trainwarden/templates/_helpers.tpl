{{- define "trainwarden.name" -}}
{{- if contains "trainwarden" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-trainwarden" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "trainwarden.selector" -}}
app.kubernetes.io/name: trainwarden
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trainwarden.labels" -}}
{{ include "trainwarden.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "trainwarden.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{/* What every pod template has: a change of settings makes new pods. */}}
{{- define "trainwarden.podMetadata" -}}
labels:
  {{- include "trainwarden.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
annotations:
  checksum/settings: {{ .root.Values.settings | sha256sum }}
{{- end }}

{{/* Environment that every part has. */}}
{{- define "trainwarden.env" -}}
- name: TRAINWARDEN_BUS
  value: {{ required "bus: name Apache Kafka, as kafka://broker-1:9092,broker-2:9092" .Values.bus | quote }}
- name: TRAINWARDEN_METRICS_ADDRESS
  value: {{ .Values.metrics.address | quote }}
{{- end }}

{{- define "trainwarden.mounts" -}}
- name: settings
  mountPath: /etc/trainwarden
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- range .Values.secrets }}
- name: secret-{{ . }}
  mountPath: /secrets/{{ . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "trainwarden.volumes" -}}
- name: settings
  configMap:
    name: {{ include "trainwarden.name" . }}
- name: tmp
  emptyDir: {}
{{- range .Values.secrets }}
- name: secret-{{ . }}
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "trainwarden.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "trainwarden.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
