{{/*
Templates for a chart whose pods wait until no node sends them new connections. Copy this file into its templates:

  spec:
    volumes:
      {{- include "fairlead.drained.volumes" . | nindent 6 }}
    initContainers:
      {{- include "fairlead.drained.initContainers" "fairlead/fairlead:0.1.0" | nindent 6 }}
    containers:
      - name: web
        env:
          {{- include "fairlead.drained.env" . | nindent 10 }}
        volumeMounts:
          {{- include "fairlead.drained.volumeMounts" . | nindent 10 }}
        lifecycle:
          {{- include "fairlead.drained.lifecycle" "20s" | nindent 10 }}
*/}}

{{- define "fairlead.drained.volumes" -}}
- name: fairlead
  emptyDir: {}
{{- end }}

{{/* With the image. */}}
{{- define "fairlead.drained.initContainers" -}}
- name: fairlead
  image: {{ . }}
  args: [drained, --install, /fairlead/drained]
  volumeMounts:
    - name: fairlead
      mountPath: /fairlead
{{- end }}

{{- define "fairlead.drained.env" -}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: POD_IPS
  valueFrom: {fieldRef: {fieldPath: status.podIPs}}
{{- end }}

{{- define "fairlead.drained.volumeMounts" -}}
- name: fairlead
  mountPath: /fairlead
  readOnly: true
{{- end }}

{{/* With the timeout, which is less than terminationGracePeriodSeconds. */}}
{{- define "fairlead.drained.lifecycle" -}}
preStop:
  exec:
    command: [/fairlead/drained, drained, --timeout, {{ . }}]
{{- end }}
