{{/* What users can do with Services: flags of `frontend` and `local`. */}}
{{- define "fairlead.serviceFlags" -}}
{{- $services := .Values.services -}}
{{- $limits := $services.limits -}}
{{- $ports := list .Values.backend.healthz.port .Values.backend.metrics.port -}}
{{- if and (eq .Values.deployment "split") .Values.backend.drained.port -}}
{{- $ports = append $ports .Values.backend.drained.port -}}
{{- end -}}
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
- --reset-connections={{ $services.resetConnections }}
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
{{- if .Values.backend.connectionMetrics }}
- --connection-metrics
{{- end }}
{{- end }}
{{- with $traffic.detectLocalMode }}
- --detect-local-mode={{ . }}
{{- end }}
{{- /* In other modes only frontends need them. */}}
{{- if has $traffic.detectLocalMode (list "" "ClusterCIDR") }}
{{- with include "fairlead.clusterCIDR" . }}
- --cluster-cidr={{ . }}
{{- end }}
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
# /proc/sys is read-only here: backend.prepareNode sets limits and timeouts of connection tracking.
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

{{/* Flags that `backend` has and `local` does not: for its frontend, and for pods that ask what others have programmed. */}}
{{- define "fairlead.streamFlags" -}}
{{- $pki := printf "%s/kubelet-client-current.pem" .Values.backend.kubeletPKIDir -}}
{{ include "fairlead.frontendFlags" . }}
- --tls-ca=/etc/fairlead/ca/ca.crt
{{- if eq .Values.identity "token" }}
- --token-file=/etc/fairlead/token/token
{{- else }}
- --tls-cert={{ $pki }}
- --tls-key={{ $pki }}
{{- end }}
{{- if not .Values.backend.shadow }}
- --drained-port={{ .Values.backend.drained.port }}
{{- if .Values.backend.drained.atHealthz }}
- --drained-at-healthz
{{- end }}
{{- end }}
{{- end -}}

{{/* The flags of the backend that commands in its container share with it, as variables: `kubectl exec POD -- fairlead test` needs no flags. */}}
{{- define "fairlead.commandEnvironment" -}}
{{- $shared := list "frontend" "frontend-name" "discovery-kubeconfig" "tls-ca" "tls-cert" "tls-key" "token-file" "state-dir" "healthz" "drained-port" "drained-at-healthz" "detect-local-mode" "cluster-cidr" "pod-bridge-interface" "pod-interface-name-prefix" "masquerade-all" "masquerade-bit" "nodeport-addresses" "iptables-variant" "iptables-localhost-nodeports" "ipvs-scheduler" "ipvs-strict-arp" "ipvs-tcp-timeout" "ipvs-tcpfin-timeout" "ipvs-udp-timeout" "ipvs-drain-timeout" "ipvs-exclude-cidrs" -}}
{{- $flags := include "fairlead.nodeFlags" . | fromYamlArray -}}
{{- if eq .Values.deployment "split" -}}
{{- $flags = concat (include "fairlead.streamFlags" . | fromYamlArray) $flags -}}
{{- end -}}
{{- $environment := dict "FAIRLEAD_BACKEND" (include "fairlead.mode" .) -}}
{{- if eq .Values.deployment "local" -}}
{{- $_ := set $environment "FAIRLEAD_DRAINED_PORT" "0" -}}
{{- end -}}
{{- if not .Values.backend.shadow -}}
{{- $_ := set $environment "FAIRLEAD_BACKEND_ADDRESS" (printf "127.0.0.1:%d" (int .Values.backend.metrics.port)) -}}
{{- end -}}
{{- range $flags -}}
{{- $parts := splitn "=" 2 (trimPrefix "--" .) -}}
{{- if has $parts._0 $shared -}}
{{- $name := printf "FAIRLEAD_%s" ($parts._0 | upper | replace "-" "_") -}}
{{- $value := default "true" $parts._1 -}}
{{- $_ := set $environment $name (ternary (printf "%s,%s" (get $environment $name) $value) $value (hasKey $environment $name)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Not empty if the container runs iptables programs: also in mode nftables, to find and remove rules of other modes. */}}
{{- define "fairlead.runsIptables" -}}
{{- if or .Values.backend.tools .Values.backend.shadow .Values.backend.cleanup (ne (include "fairlead.mode" .) "nftables") -}}
true
{{- end -}}
{{- end -}}

{{- define "fairlead.nodeImage" -}}
{{- include "fairlead.image" (list . (ternary "tools" "plain" (eq (include "fairlead.runsIptables" .) "true"))) -}}
{{- end -}}

{{/* Modules and sysctls that prepare-node sets, and whether it sizes the conntrack table, as YAML: {modules: [], sysctls: {}, conntrack: true}. */}}
{{- define "fairlead.preparation" -}}
{{- $prepare := .Values.backend.prepareNode -}}
{{- $modules := list -}}
{{- $sysctls := dict -}}
{{- if eq .Values.mode "ipvs" -}}
{{- $modules = list "ip_vs" "xt_set" "dummy" -}}
{{- $sysctls = dict "net.ipv4.vs.conntrack" "1" "net.ipv4.vs.expire_nodest_conn" "1" "net.ipv4.vs.expire_quiescent_template" "1" -}}
{{- if .Values.ipvs.strictARP -}}
{{- $sysctls = merge $sysctls (dict "net.ipv4.conf.all.arp_ignore" "1" "net.ipv4.conf.all.arp_announce" "2") -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "iptables") .Values.iptables.localhostNodePorts -}}
{{- $sysctls = dict "net.ipv4.conf.all.route_localnet" "1" -}}
{{- end -}}
{{- if and (ne $prepare.when "never") (not .Values.backend.shadow) (not .Values.backend.cleanup) -}}
{{- range $name, $value := $prepare.sysctls -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $sysctls $name $value -}}{{- end -}}
{{- end -}}
{{- dict "modules" (concat $modules $prepare.modules | uniq) "sysctls" $sysctls "conntrack" (gt (int $prepare.conntrack.maxPerCore) 0) | toYaml -}}
{{- else -}}
{{- dict "modules" list "sysctls" dict "conntrack" false | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.prepareContainer" -}}
{{- $todo := include "fairlead.preparation" . | fromYaml -}}
- name: prepare-node
  image: {{ include "fairlead.image" (list . "tools") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  # Failures are only logged: a module may be built in, and some sysctls are read-only in all network namespaces but the
  # first. What the backend cannot do without fails there, with a reason. The image has a shell and modprobe, and neither
  # cat nor grep.
  command:
    - /bin/sh
    - -euc
    - |
      {{- range $todo.modules }}
      modprobe {{ . }} || echo "cannot load the module {{ . }}" >&2
      {{- end }}
      {{- if or $todo.sysctls $todo.conntrack }}
      set_file() {
        value=
        read -r value < "$1" || true
        if [ "$value" != "$2" ] && ! printf '%s' "$2" > "$1"; then
          echo "cannot set $1 to $2, leaving it unchanged" >&2
        fi
      }
      set_sysctl() {
        set_file "/proc/sys/$1" "$2"
      }
      {{- end }}
      {{- range $name, $value := $todo.sysctls }}
      set_sysctl {{ $name | replace "." "/" }} {{ $value | toString | squote }}
      {{- end }}
      {{- if and (has "ip_vs" $todo.modules) (not (hasKey $todo.sysctls "net.ipv4.vs.conn_reuse_mode")) }}
      # Linux before 5.9 delays connections with 1.
      read -r release < /proc/sys/kernel/osrelease
      case "$release" in
        4.* | 5.[0-8] | 5.[0-8].*) set_sysctl net/ipv4/vs/conn_reuse_mode 0 ;;
        *) set_sysctl net/ipv4/vs/conn_reuse_mode 1 ;;
      esac
      {{- end }}
      {{- if $todo.conntrack }}
      processors=0
      while read -r word rest; do
        [ "$word" != processor ] || processors=$((processors + 1))
      done < /proc/cpuinfo
      max=$(({{ int .Values.backend.prepareNode.conntrack.maxPerCore }} * processors))
      [ "$max" -ge {{ int .Values.backend.prepareNode.conntrack.min }} ] || max={{ int .Values.backend.prepareNode.conntrack.min }}
      [ "$max" -le 1048576 ] || max=1048576
      read -r current < /proc/sys/net/netfilter/nf_conntrack_max || current=$max
      [ "$current" -ge "$max" ] || set_sysctl net/netfilter/nf_conntrack_max "$max"
      buckets=$((max / 4))
      hashsize=/sys/module/nf_conntrack/parameters/hashsize
      read -r current < "$hashsize" || current=$buckets
      [ "$current" -ge "$buckets" ] || set_file "$hashsize" "$buckets"
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

{{/* Capabilities of the backend: netlink, raw sockets for resets and iptables programs, and oom_score_adj. */}}
{{- define "fairlead.nodeCapabilities" -}}
{{- $capabilities := list "NET_ADMIN" -}}
{{- if or (include "fairlead.runsIptables" .) (ne .Values.services.resetConnections "never") -}}
{{- $capabilities = append $capabilities "NET_RAW" -}}
{{- end -}}
{{- if not (kindIs "invalid" .Values.backend.oomScoreAdj) -}}
{{- $capabilities = append $capabilities "SYS_RESOURCE" -}}
{{- end -}}
[{{ join ", " $capabilities }}]
{{- end -}}

{{- define "fairlead.nodeSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: {{ include "fairlead.nodeCapabilities" . }}
{{- end -}}
