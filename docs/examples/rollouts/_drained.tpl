{{/*
A template for a chart whose pods wait until no node sends them new connections. Copy this file into its templates:

  spec:
    containers:
      - name: web
        lifecycle:
          {{- include "fairlead.drained.lifecycle" "20s" | nindent 10 }}
*/}}

{{/* With the timeout, which is less than terminationGracePeriodSeconds. */}}
{{- define "fairlead.drained.lifecycle" -}}
preStop:
  httpGet:
    path: /drained?timeout={{ . }}
    port: 24256
{{- end }}
