//! The table of all fields of KubeProxyConfiguration: kube-proxy's flag, the modes that read it, its effect here.

use Effect::{Becomes, CrossField, Nothing, SameFlag, Switch};

use crate::config::BackendName::{self, Iptables, Ipvs, Nftables};

/// One field of the document, or several without effect.
pub(crate) struct Field {
    /// Its path, with dots. One that ends with a dot stands for all fields below it that are not listed themselves; an
    /// empty one for flags without a field.
    pub(crate) path: &'static str,
    /// kube-proxy's flag; empty if there is none. One flag may set different fields in different modes. Fields without
    /// effect may have several, separated by spaces.
    pub(crate) flags: &'static str,
    pub(crate) effect: Effect,
    /// A pointer in kube-proxy: the zero value of its type (`0`, `0s`, `false`) sets it.
    pub(super) is_pointer: bool,
}

/// The effect of a field in Fairlead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// Our flag has the same name as kube-proxy's, and gets the same value.
    SameFlag,
    /// The same, and it is a switch: `false` leaves it unset.
    Switch,
    /// It sets our field of this name to the same value.
    Becomes(&'static str),
    /// Its meaning depends on other fields, or its value is written differently: `cross_field`.
    CrossField,
    /// None, for this reason.
    Nothing(&'static str),
}

const fn field(path: &'static str, flags: &'static str, effect: Effect) -> Field {
    Field { path, flags, effect, is_pointer: false }
}

impl Field {
    const fn pointer(self) -> Self {
        Self { is_pointer: true, ..self }
    }

    /// The field at a path.
    pub(super) fn at(path: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.path == path || field.is_section() && path.starts_with(field.path))
    }

    /// Whether there are fields below this path, which ends with a dot.
    pub(super) fn has_section(path: &str) -> bool {
        FIELDS.iter().any(|field| field.path.starts_with(path) || field.is_section() && path.starts_with(field.path))
    }

    fn is_section(&self) -> bool {
        self.path.ends_with('.')
    }
}

/// The modes in which kube-proxy reads a field.
pub(super) fn modes(path: &str) -> &'static [BackendName] {
    match path.split_once('.') {
        Some(("iptables", "masqueradeBit" | "masqueradeAll")) => &[Iptables, Ipvs],
        Some(("iptables", _)) => &[Iptables],
        Some(("ipvs", _)) => &[Ipvs],
        Some(("nftables", _)) => &[Nftables],
        _ => &[Iptables, Ipvs, Nftables],
    }
}

const NO_CLIENT: &str = "Fairlead's API client has no such setting: it makes one list and one watch per kind";
const NO_PERIOD: &str = "Fairlead has no periodic sync: it writes changes when they arrive, and detects changes by \
                         other programs";
const NO_PROFILES: &str = "Fairlead serves no profiles: `perf` records them from outside of the process";
const NO_BUFFER: &str = "log lines are written to stderr without buffering";
const NO_RELIST: &str = "Fairlead lists again when it has missed changes, not periodically";
const WINDOWS: &str = "Fairlead runs only on Linux";
const WINDOWS_FLAGS: &str = "network-name source-vip enable-dsr root-hnsendpoint-name forward-healthcheck-vip";

/// All fields, then flags without a field.
pub(crate) const FIELDS: &[Field] = &[
    field("featureGates", "feature-gates", CrossField).pointer(),
    field("clientConnection.kubeconfig", "kubeconfig", CrossField),
    field("clientConnection.", "kube-api-content-type kube-api-qps kube-api-burst", Nothing(NO_CLIENT)),
    field("logging.format", "logging-format", Becomes("logFormat")),
    field("logging.verbosity", "v", CrossField),
    field("logging.vmodule", "vmodule", Nothing("use `log` with directives such as info,fairlead_backend=debug")),
    field("logging.flushFrequency", "log-flush-frequency", Nothing(NO_BUFFER)),
    field("logging.options.text.", "log-text-split-stream log-text-info-buffer-size", Nothing(NO_BUFFER)),
    field("logging.options.json.", "log-json-split-stream log-json-info-buffer-size", Nothing(NO_BUFFER)),
    field("hostnameOverride", "hostname-override", Becomes("nodeName")),
    field("bindAddress", "bind-address", CrossField),
    field("healthzBindAddress", "healthz-bind-address", Becomes("healthz")),
    field("metricsBindAddress", "metrics-bind-address", Becomes("metrics")),
    field("bindAddressHardFail", "bind-address-hard-fail", Switch),
    field("enableProfiling", "profiling", Nothing(NO_PROFILES)),
    field("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", Nothing("Fairlead has no hidden metrics")),
    field("mode", "proxy-mode", CrossField),
    field("iptables.masqueradeBit", "iptables-masquerade-bit", Becomes("masqueradeBit")).pointer(),
    field("iptables.masqueradeAll", "masquerade-all", Switch),
    field("iptables.localhostNodePorts", "iptables-localhost-nodeports", CrossField).pointer(),
    field("iptables.syncPeriod", "iptables-sync-period", Nothing(NO_PERIOD)),
    field("iptables.minSyncPeriod", "iptables-min-sync-period", Nothing(NO_PERIOD)),
    field("ipvs.syncPeriod", "ipvs-sync-period", Nothing(NO_PERIOD)),
    field("ipvs.minSyncPeriod", "ipvs-min-sync-period", Nothing(NO_PERIOD)),
    field("ipvs.scheduler", "ipvs-scheduler", SameFlag),
    field("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", SameFlag),
    field("ipvs.strictARP", "ipvs-strict-arp", Switch),
    field("ipvs.tcpTimeout", "ipvs-tcp-timeout", SameFlag),
    field("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", SameFlag),
    field("ipvs.udpTimeout", "ipvs-udp-timeout", SameFlag),
    field("nftables.masqueradeBit", "", Becomes("masqueradeBit")).pointer(),
    field("nftables.masqueradeAll", "masquerade-all", Switch),
    field("nftables.syncPeriod", "iptables-sync-period", Nothing(NO_PERIOD)),
    field("nftables.minSyncPeriod", "iptables-min-sync-period", Nothing(NO_PERIOD)),
    field("winkernel.", WINDOWS_FLAGS, Nothing(WINDOWS)),
    field("detectLocalMode", "detect-local-mode", CrossField),
    field("detectLocal.bridgeInterface", "pod-bridge-interface", CrossField),
    field("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", CrossField),
    field("clusterCIDR", "cluster-cidr", CrossField),
    field("nodePortAddresses", "nodeport-addresses", CrossField),
    field("oomScoreAdj", "oom-score-adj", SameFlag).pointer(),
    field("conntrack.maxPerCore", "conntrack-max-per-core", SameFlag).pointer(),
    field("conntrack.min", "conntrack-min", SameFlag).pointer(),
    field("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", SameFlag).pointer(),
    field("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", SameFlag).pointer(),
    field("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", Switch),
    field("conntrack.udpTimeout", "conntrack-udp-timeout", SameFlag),
    field("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", SameFlag),
    field("configSyncPeriod", "config-sync-period", Nothing(NO_RELIST)),
    field("portRange", "proxy-port-range", Nothing("kube-proxy ignores it too; no ports are opened for Services")),
    field("windowsRunAsService", "windows-service", Nothing(WINDOWS)),
    field(
        "",
        "config",
        Nothing("convert that file with `fairlead config convert`; kube-proxy ignores other flags then"),
    ),
    field("", "master", Nothing("set the API server in a kubeconfig, and use --kubeconfig")),
    field("", "healthz-port metrics-port", Nothing("kube-proxy takes ports from the flags of the addresses")),
    field("", "cleanup", Nothing("use `fairlead cleanup --of kube-proxy`")),
    field("", "init-only version write-config-to", Nothing("kube-proxy serves no Services with it")),
    field("", "boot-id-file machine-id-file", Nothing("these files are not read")),
];
