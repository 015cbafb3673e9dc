//! The table of all fields of KubeProxyConfiguration: kube-proxy's flag, the type of the value, the modes that read it,
//! its effect here.

use Effect::{Becomes, CrossField, Nothing, SameFlag};
use Shape::{Any, Bool, Cidrs, Integer, Map, Number, Text, Time};

use crate::config::BackendName::{self, Iptables, Ipvs, Nftables};

/// One field of the document.
pub(crate) struct Field {
    /// Its path, with dots.
    pub(crate) path: &'static str,
    /// kube-proxy's flag; empty if there is none. One flag may set different fields in different modes.
    pub(crate) flag: &'static str,
    pub(super) shape: Shape,
    /// Whether the zero value of its type (`""`, `0`, `0s`, `false`) sets it, as it does for pointers in kube-proxy, or
    /// leaves it unset.
    pub(super) zero: Zero,
    /// The modes in which kube-proxy reads it; empty: all.
    pub(crate) modes: &'static [BackendName],
    pub(crate) effect: Effect,
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Text,
    Bool,
    /// A number in this range.
    Integer(i64, i64),
    /// With a fraction.
    Number,
    /// A duration of Go, such as `1h30m`, not negative.
    Time,
    /// A list of CIDRs.
    Cidrs,
    /// Names with booleans.
    Map,
    /// Not checked.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    Unset,
    Value,
}

/// The effect of a field in Fairlead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// Our flag has the same name as kube-proxy's, and gets the same value.
    SameFlag,
    /// It sets our field of this name to the same value.
    Becomes(&'static str),
    /// Its meaning depends on other fields, or its value is written differently: `cross_field`.
    CrossField,
    /// None, for this reason.
    Nothing(&'static str),
}

const MAX: i64 = i32::MAX as i64;

const NO_CLIENT: &str = "Fairlead's API client has no such setting: it makes one list and one watch per kind";
const NO_PERIOD: &str = "Fairlead has no periodic sync: it writes changes when they arrive, and detects changes by \
                         other programs";
const NO_HIDDEN: &str = "Fairlead has no hidden metrics";
const NO_PROFILES: &str = "Fairlead serves no profiles: `perf` records them from outside of the process";
const NO_BUFFER: &str = "log lines are written to stderr without buffering";
const NO_RELIST: &str = "Fairlead lists again when it has missed changes, not periodically";
const NO_PORTS: &str = "kube-proxy ignores it too; no ports are opened for Services";
const NO_VMODULE: &str = "use `log` with directives such as info,fairlead_backend=debug";
const WINDOWS: &str = "Fairlead runs only on Linux";

const fn field(path: &'static str, flag: &'static str, shape: Shape, effect: Effect) -> Field {
    Field { path, flag, shape, zero: Zero::Unset, modes: &[], effect }
}

impl Field {
    /// Whether kube-proxy reads it in the mode of this backend.
    pub(super) fn is_read_in(&self, backend: BackendName) -> bool {
        self.modes.is_empty() || self.modes.contains(&backend)
    }

    /// Its zero value sets it.
    const fn pointer(self) -> Self {
        Self { zero: Zero::Value, ..self }
    }

    const fn only(self, modes: &'static [BackendName]) -> Self {
        Self { modes, ..self }
    }
}

/// All fields, in the order of kube-proxy's type.
pub(crate) const FIELDS: &[Field] = &[
    field("featureGates", "feature-gates", Map, CrossField).pointer(),
    field("clientConnection.kubeconfig", "kubeconfig", Text, CrossField),
    field("clientConnection.acceptContentTypes", "", Text, Nothing(NO_CLIENT)),
    field("clientConnection.contentType", "kube-api-content-type", Text, Nothing(NO_CLIENT)),
    field("clientConnection.qps", "kube-api-qps", Number, Nothing(NO_CLIENT)),
    field("clientConnection.burst", "kube-api-burst", Integer(-MAX, MAX), Nothing(NO_CLIENT)),
    field("logging.format", "logging-format", Text, CrossField),
    field("logging.flushFrequency", "log-flush-frequency", Any, Nothing(NO_BUFFER)),
    field("logging.verbosity", "v", Integer(0, MAX), CrossField),
    field("logging.vmodule", "vmodule", Any, Nothing(NO_VMODULE)),
    field("logging.options.text.splitStream", "log-text-split-stream", Bool, Nothing(NO_BUFFER)),
    field("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Any, Nothing(NO_BUFFER)),
    field("logging.options.json.splitStream", "log-json-split-stream", Bool, Nothing(NO_BUFFER)),
    field("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Any, Nothing(NO_BUFFER)),
    field("hostnameOverride", "hostname-override", Text, Becomes("nodeName")),
    field("bindAddress", "bind-address", Text, CrossField),
    field("healthzBindAddress", "healthz-bind-address", Text, CrossField),
    field("metricsBindAddress", "metrics-bind-address", Text, CrossField),
    field("bindAddressHardFail", "bind-address-hard-fail", Bool, SameFlag),
    field("enableProfiling", "profiling", Bool, Nothing(NO_PROFILES)),
    field("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", Text, Nothing(NO_HIDDEN)),
    field("mode", "proxy-mode", Text, CrossField),
    field("iptables.masqueradeBit", "iptables-masquerade-bit", Integer(0, 31), Becomes("masqueradeBit"))
        .pointer()
        .only(&[Iptables, Ipvs]),
    field("iptables.masqueradeAll", "masquerade-all", Bool, SameFlag).only(&[Iptables, Ipvs]),
    field("iptables.localhostNodePorts", "iptables-localhost-nodeports", Bool, CrossField).pointer().only(&[Iptables]),
    field("iptables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    field("iptables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    field("ipvs.syncPeriod", "ipvs-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    field("ipvs.minSyncPeriod", "ipvs-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    field("ipvs.scheduler", "ipvs-scheduler", Text, SameFlag).only(&[Ipvs]),
    field("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", Cidrs, SameFlag).only(&[Ipvs]),
    field("ipvs.strictARP", "ipvs-strict-arp", Bool, SameFlag).only(&[Ipvs]),
    field("ipvs.tcpTimeout", "ipvs-tcp-timeout", Time, SameFlag).only(&[Ipvs]),
    field("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", Time, SameFlag).only(&[Ipvs]),
    field("ipvs.udpTimeout", "ipvs-udp-timeout", Time, SameFlag).only(&[Ipvs]),
    field("nftables.masqueradeBit", "", Integer(0, 31), Becomes("masqueradeBit")).pointer().only(&[Nftables]),
    field("nftables.masqueradeAll", "masquerade-all", Bool, SameFlag).only(&[Nftables]),
    field("nftables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nftables]),
    field("nftables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nftables]),
    field("winkernel.networkName", "network-name", Text, Nothing(WINDOWS)),
    field("winkernel.sourceVip", "source-vip", Text, Nothing(WINDOWS)),
    field("winkernel.enableDSR", "enable-dsr", Bool, Nothing(WINDOWS)),
    field("winkernel.rootHnsEndpointName", "root-hnsendpoint-name", Text, Nothing(WINDOWS)),
    field("winkernel.forwardHealthCheckVip", "forward-healthcheck-vip", Bool, Nothing(WINDOWS)),
    field("detectLocalMode", "detect-local-mode", Text, CrossField),
    field("detectLocal.bridgeInterface", "pod-bridge-interface", Text, CrossField),
    field("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", Text, CrossField),
    field("clusterCIDR", "cluster-cidr", Text, CrossField),
    field("nodePortAddresses", "nodeport-addresses", Cidrs, CrossField),
    field("oomScoreAdj", "oom-score-adj", Integer(-1000, 1000), SameFlag).pointer(),
    field("conntrack.maxPerCore", "conntrack-max-per-core", Integer(0, MAX), SameFlag).pointer(),
    field("conntrack.min", "conntrack-min", Integer(0, MAX), SameFlag).pointer(),
    field("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", Time, SameFlag).pointer(),
    field("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", Time, SameFlag).pointer(),
    field("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", Bool, SameFlag),
    field("conntrack.udpTimeout", "conntrack-udp-timeout", Time, SameFlag),
    field("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", Time, SameFlag),
    field("configSyncPeriod", "config-sync-period", Time, Nothing(NO_RELIST)),
    field("portRange", "proxy-port-range", Text, Nothing(NO_PORTS)),
    field("windowsRunAsService", "windows-service", Bool, Nothing(WINDOWS)),
];
