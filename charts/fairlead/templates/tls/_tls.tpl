{{/* The Secret with the frontend's certificate, and the volume with the authority that backends trust. */}}

{{- define "fairlead.tlsSecret" -}}
{{- if eq .Values.tls.mode "existingSecret" -}}
{{- required "tls.existingSecret.name: which Secret has tls.crt and tls.key?" .Values.tls.existingSecret.name -}}
{{- else -}}
{{- printf "%s-tls" (include "fairlead.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Never the frontend's Secret: a node can read every key of a Secret that one of its pods mounts. */}}
{{- define "fairlead.caVolume" -}}
{{- $name := include "fairlead.fullname" . -}}
{{- if eq .Values.tls.mode "certManager" -}}
secret:
  secretName: {{ $name }}-trust
  defaultMode: 256 # 0400
  items: [{key: ca.crt, path: ca.crt}]
{{- else if eq .Values.tls.mode "existingSecret" -}}
configMap:
  name: {{ required "tls.existingSecret.caConfigMap: which ConfigMap has ca.crt, for the nodes?" .Values.tls.existingSecret.caConfigMap }}
  items: [{key: ca.crt, path: ca.crt}]
{{- else -}}
configMap:
  name: {{ $name }}-ca
  items: [{key: ca.crt, path: ca.crt}]
{{- end -}}
{{- end -}}
