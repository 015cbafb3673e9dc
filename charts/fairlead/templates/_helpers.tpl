{{/* Names, labels and addresses that several templates use. */}}

{{- define "fairlead.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The selector of pods, which must never change. Called with (list $ component). */}}
{{- define "fairlead.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "fairlead.labels" -}}
{{- $top := index . 0 -}}
{{ include "fairlead.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- with $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object: (list $ component name), or with additional annotations and labels (list $ component name dict dict). */}}
{{- define "fairlead.metadata" -}}
{{- $top := index . 0 -}}
name: {{ index . 2 }}
namespace: {{ $top.Release.Namespace }}
labels:
  {{- include "fairlead.labels" (list $top (index . 1)) | nindent 2 }}
{{- if gt (len .) 4 -}}
{{- with index . 4 }}
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
{{- $more := dict -}}
{{- if gt (len .) 3 -}}{{- $more = index . 3 -}}{{- end -}}
{{- with merge (dict) $more $top.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same for cluster-scoped objects; the name contains the release namespace, so that two releases do not collide. */}}
{{- define "fairlead.clusterMetadata" -}}
{{- $top := index . 0 -}}
name: {{ index . 2 }}
labels:
  {{- include "fairlead.labels" (list $top (index . 1)) | nindent 2 }}
{{- with $top.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The backend: `nft` is an alias of `nftables`. */}}
{{- define "fairlead.mode" -}}
{{- ternary "nftables" .Values.mode (eq .Values.mode "nft") -}}
{{- end -}}

{{- define "fairlead.frontendAccount" -}}
{{- default (printf "%s-frontend" (include "fairlead.fullname" .)) .Values.frontend.serviceAccount.name -}}
{{- end -}}

{{- define "fairlead.backendAccount" -}}
{{- default (printf "%s-backend" (include "fairlead.fullname" .)) .Values.backend.serviceAccount.name -}}
{{- end -}}

{{/* The ServiceAccount of operators; empty if frontends review no tokens. */}}
{{- define "fairlead.operatorAccount" -}}
{{- if and .Values.operators.serviceAccount (eq .Values.deployment "split") (eq .Values.identity "token") -}}
{{- printf "%s-operator" (include "fairlead.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* A node selector without keys whose value is null. */}}
{{- define "fairlead.nodeSelector" -}}
{{- $given := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $given $key $value -}}{{- end -}}
{{- end -}}
{{- if $given -}}{{- toYaml $given -}}{{- end -}}
{{- end -}}

{{/* Replicas of the frontend. On the host network of one node there is only one, because each needs the port. */}}
{{- define "fairlead.replicas" -}}
{{- $frontend := .Values.frontend -}}
{{- if not (kindIs "invalid" $frontend.replicas) -}}
{{- int $frontend.replicas -}}
{{- else -}}
{{- $count := 0 -}}
{{- range get (lookup "v1" "Node" "" "") "items" | default list -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $matches := true -}}
{{- range $key, $value := $frontend.nodeSelector -}}
{{- if or (not (hasKey $labels $key)) (ne (toString (get $labels $key)) (toString $value)) -}}{{- $matches = false -}}{{- end -}}
{{- end -}}
{{- if $matches -}}{{- $count = add1 $count -}}{{- end -}}
{{- end -}}
{{- ternary 1 2 (and $frontend.hostNetwork (eq (int $count) 1)) -}}
{{- end -}}
{{- end -}}

{{/* The name in the frontend's certificate, which backends verify at every address. */}}
{{- define "fairlead.serverName" -}}
{{- printf "%s.%s.svc" (include "fairlead.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* (list $ "plain" | "tools") */}}
{{- define "fairlead.image" -}}
{{- $top := index . 0 -}}
{{- $image := $top.Values.image -}}
{{- $tools := eq (index . 1) "tools" -}}
{{- $digest := ternary $image.toolsDigest $image.digest $tools -}}
{{- if $digest -}}
{{- printf "%s@%s" $image.repository $digest -}}
{{- else -}}
{{- printf "%s:%s%s" $image.repository (default $top.Chart.AppVersion $image.tag) (ternary "-tools" "" $tools) -}}
{{- end -}}
{{- end -}}

{{/* An address as in a URL (IPv6 in brackets). */}}
{{- define "fairlead.urlHost" -}}
{{- if contains ":" . -}}[{{ . }}]{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Addresses of the API servers, comma-separated: apiServer.host, or looked up in the cluster. Empty without a cluster. */}}
{{- define "fairlead.apiServers" -}}
{{- $hosts := list -}}
{{- if .Values.apiServer.host -}}
{{- $hosts = list .Values.apiServer.host -}}
{{- else -}}
{{- $slice := lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes" -}}
{{- range default (list) (get $slice "endpoints") -}}
{{- $hosts = concat $hosts .addresses -}}
{{- end -}}
{{- end -}}
{{- join "," ($hosts | sortAlpha) -}}
{{- end -}}

{{/* One of these addresses, or an error; called with (list $ purpose). */}}
{{- define "fairlead.apiServer" -}}
{{- $hosts := include "fairlead.apiServers" (index . 0) -}}
{{- if not $hosts -}}
{{- fail (printf "apiServer.host: %s needs the API server's own address, as in a kubeconfig: kubectl get endpointslices -n default kubernetes" (index . 1)) -}}
{{- end -}}
{{- first (splitList "," $hosts) -}}
{{- end -}}

{{/* Flags --frontend for the backends, as YAML. */}}
{{- define "fairlead.frontendFlags" -}}
{{- if eq .Values.backend.discovery "api" -}}
- --frontend=kubernetes:{{ .Release.Namespace }}/{{ include "fairlead.fullname" . }}:grpc
- --discovery-kubeconfig=/etc/fairlead/api/kubeconfig
{{- else -}}
{{- $hosts := .Values.frontend.addresses -}}
{{- if not $hosts -}}
{{- if not .Values.frontend.hostNetwork -}}
{{- fail "frontend.addresses: a frontend in the pod network has no addresses that are known beforehand; give some, or set backend.discovery: api" -}}
{{- end -}}
{{- $hosts = compact (splitList "," (include "fairlead.apiServers" .)) -}}
{{- end -}}
{{- if not $hosts -}}
{{- fail "frontend.addresses: where do nodes find the frontend? Give the addresses of the nodes that it runs on, or apiServer.host if that leads to them: kubectl get endpointslices -n default kubernetes" -}}
{{- end -}}
{{- range $index, $host := $hosts }}
{{- if $index }}
{{ end -}}
- --frontend=https://{{ include "fairlead.urlHost" $host }}:{{ $.Values.frontend.port }}
{{- end }}
- --frontend-name={{ include "fairlead.serverName" . }}
{{- end -}}
{{- end -}}

{{- /* The CIDRs of pods, and of cluster IPs, also of values with the former names. */}}
{{- define "fairlead.clusterCIDR" -}}
{{ join "," (concat (default list .Values.traffic.clusterCIDR) (default list .Values.traffic.clusterCIDRs)) }}
{{- end }}

{{- define "fairlead.serviceCIDR" -}}
{{ join "," (concat (default list .Values.serviceCIDR) (default list .Values.serviceCIDRs)) }}
{{- end }}
