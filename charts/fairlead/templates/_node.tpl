{{/* What users can do with Services: flags of `frontend` and `local`. */}}
{{- define "fairlead.serviceFlags" -}}
{{- $services := .Values.services -}}
{{- $limits := $services.limits -}}
{{- $ports := list .Values.backend.healthz.port .Values.backend.metrics.port -}}
- --external-ips={{ join "," $services.externalIPs }}
- --load-balancer-ips={{ join "," $services.loadBalancerIPs }}
- --protected-ports={{ concat $services.protectedPorts $ports | join "," }}
{{- /* With IPVS a VIP is an address of every node. */}}
{{- if and (eq .Values.mode "ipvs") (eq .Values.deployment "split") }}
- --refuse-node-addresses
{{- end }}
- --max-service-vips={{ int $limits.vips }}
- --max-service-port-vips={{ int $limits.portVIPs }}
- --max-service-source-ranges={{ int $limits.sourceRanges }}
- --max-service-port-source-ranges={{ int $limits.portSourceRanges }}
- --max-service-endpoints={{ int $limits.endpoints }}
- --max-service-port-endpoints={{ int $limits.portEndpoints }}
{{- end -}}

{{/* Shared by `backend MODE` and `local`: flags, capabilities, preparation of the node. */}}

{{- define "fairlead.nodeFlags" -}}
{{- $traffic := .Values.traffic -}}
- --state-dir={{ .Values.backend.stateDir }}
- --max-loss={{ .Values.backend.maxLoss }}
{{- if not (kindIs "invalid" .Values.backend.oomScoreAdj) }}
- --oom-score-adj={{ .Values.backend.oomScoreAdj }}
{{- end }}
{{- if .Values.backend.shadow }}
- --shadow
{{- else }}
- --healthz=0.0.0.0:{{ .Values.backend.healthz.port }}
- --metrics={{ ternary "0.0.0.0" "127.0.0.1" .Values.backend.metrics.exposed }}:{{ .Values.backend.metrics.port }}
{{- end }}
{{- with $traffic.detectLocalMode }}
- --detect-local-mode={{ . }}
{{- end }}
{{- with $traffic.clusterCIDRs }}
- --cluster-cidr={{ join "," . }}
{{- end }}
{{- with $traffic.podBridgeInterface }}
- --pod-bridge-interface={{ . }}
{{- end }}
{{- with $traffic.podInterfaceNamePrefix }}
- --pod-interface-name-prefix={{ . }}
{{- end }}
{{- if $traffic.masqueradeAll }}
- --masquerade-all
{{- end }}
- --masquerade-bit={{ $traffic.masqueradeBit }}
- --nodeport-addresses={{ join "," $traffic.nodePortAddresses }}
# /proc/sys is read-only here: limits and timeouts of connection tracking are not changed (see backend.prepareNode.sysctls).
- --conntrack-max-per-core=0
- --conntrack-tcp-timeout-established=0
- --conntrack-tcp-timeout-close-wait=0
{{- if ne (include "fairlead.mode" .) "nftables" }}
- --iptables-variant={{ .Values.iptables.variant }}
{{- end }}
{{- if and (eq .Values.mode "iptables") .Values.iptables.localhostNodePorts }}
- --iptables-localhost-nodeports
{{- end }}
{{- if eq .Values.mode "ipvs" }}
{{- $ipvs := .Values.ipvs }}
{{- if $ipvs.strictARP }}
- --ipvs-strict-arp
{{- end }}
{{- with $ipvs.excludeCIDRs }}
- --ipvs-exclude-cidrs={{ join "," . }}
{{- end }}
{{- range $flag, $value := dict "scheduler" $ipvs.scheduler "tcp-timeout" $ipvs.tcpTimeout "tcpfin-timeout" $ipvs.tcpFinTimeout "udp-timeout" $ipvs.udpTimeout "drain-timeout" $ipvs.drainTimeout }}
{{- with $value }}
- --ipvs-{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.backend.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image: iptables needs its programs. */}}
{{- define "fairlead.nodeImage" -}}
{{- $tools := or .Values.backend.tools .Values.backend.shadow (ne (include "fairlead.mode" .) "nftables") -}}
{{- include "fairlead.image" (list . (ternary "tools" "plain" $tools)) -}}
{{- end -}}

{{/* Modules and sysctls that prepare-node sets, as YAML: {modules: [], sysctls: {}}. */}}
{{- define "fairlead.preparation" -}}
{{- $prepare := .Values.backend.prepareNode -}}
{{- $modules := list -}}
{{- $sysctls := dict -}}
{{- if eq .Values.mode "ipvs" -}}
{{- $modules = list "ip_vs" "xt_set" "dummy" -}}
{{- $sysctls = dict "net.ipv4.vs.conntrack" "1" "net.ipv4.vs.expire_nodest_conn" "1" "net.ipv4.vs.expire_quiescent_template" "1" "net.ipv4.vs.conn_reuse_mode" "0" -}}
{{- if .Values.ipvs.strictARP -}}
{{- $sysctls = merge $sysctls (dict "net.ipv4.conf.all.arp_ignore" "1" "net.ipv4.conf.all.arp_announce" "2") -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.mode "iptables" -}}
{{- $sysctls = dict "net.ipv4.conf.all.route_localnet" (ternary "1" "0" .Values.iptables.localhostNodePorts) -}}
{{- if not .Values.iptables.localhostNodePorts -}}{{- $sysctls = dict -}}{{- end -}}
{{- end -}}
{{- if and (ne $prepare.when "never") (not .Values.backend.shadow) -}}
{{- dict "modules" (concat $modules $prepare.modules | uniq) "sysctls" (merge (dict) $prepare.sysctls $sysctls) | toYaml -}}
{{- else -}}
{{- dict "modules" list "sysctls" dict | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.prepareContainer" -}}
{{- $todo := include "fairlead.preparation" . | fromYaml -}}
- name: prepare-node
  image: {{ include "fairlead.image" (list . "tools") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  # Failures are ignored here: a module may be built in. A missing one fails at its sysctl, or in the backend, with a reason.
  command:
    - /bin/sh
    - -euc
    - |
      {{- range $todo.modules }}
      modprobe {{ . }} || echo "cannot load the module {{ . }}" >&2
      {{- end }}
      {{- range $name, $value := $todo.sysctls }}
      printf '%s' {{ $value | toString | squote }} > /proc/sys/{{ $name | replace "." "/" }}
      {{- end }}
  securityContext:
    privileged: true
    readOnlyRootFilesystem: true
    runAsUser: 0
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - name: modules
      mountPath: /lib/modules
      readOnly: true
{{- end -}}

{{/* Capabilities of the backend: netlink, raw sockets for iptables programs, and oom_score_adj. */}}
{{- define "fairlead.nodeSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [NET_ADMIN{{ if ne (include "fairlead.mode" .) "nftables" }}, NET_RAW{{ end }}{{ if not (kindIs "invalid" .Values.backend.oomScoreAdj) }}, SYS_RESOURCE{{ end }}]
{{- end -}}
