//! The table of all fields of KubeProxyConfiguration: kube-proxy's flag, the type of the value, the modes that read it,
//! its effect here.

use Effect::{Becomes, CrossField, Nothing};
use Shape::{Any, Bool, Cidrs, Integer, Map, Number, Text, Time};

use crate::cli::BackendName::{self, Iptables, Ipvs, Nftables};

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
const NO_BUFFER: &str = "log lines are written to stderr without buffering";
const WINDOWS: &str = "Fairlead runs only on Linux";

impl Field {
    const fn new(path: &'static str, flag: &'static str, shape: Shape, effect: Effect) -> Self {
        Self { path, flag, shape, zero: Zero::Unset, modes: &[], effect }
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
    Field::new("featureGates", "feature-gates", Map, CrossField).pointer(),
    Field::new("clientConnection.kubeconfig", "kubeconfig", Text, CrossField),
    Field::new("clientConnection.acceptContentTypes", "", Text, Nothing(NO_CLIENT)),
    Field::new("clientConnection.contentType", "kube-api-content-type", Text, Nothing(NO_CLIENT)),
    Field::new("clientConnection.qps", "kube-api-qps", Number, Nothing(NO_CLIENT)),
    Field::new("clientConnection.burst", "kube-api-burst", Integer(-MAX, MAX), Nothing(NO_CLIENT)),
    Field::new("logging.format", "logging-format", Text, CrossField),
    Field::new("logging.flushFrequency", "log-flush-frequency", Any, Nothing(NO_BUFFER)),
    Field::new("logging.verbosity", "v", Integer(0, MAX), CrossField),
    Field::new(
        "logging.vmodule",
        "vmodule",
        Any,
        Nothing("use `log` with directives such as info,fairlead_backend=debug"),
    ),
    Field::new("logging.options.text.splitStream", "log-text-split-stream", Bool, Nothing(NO_BUFFER)),
    Field::new("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Any, Nothing(NO_BUFFER)),
    Field::new("logging.options.json.splitStream", "log-json-split-stream", Bool, Nothing(NO_BUFFER)),
    Field::new("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Any, Nothing(NO_BUFFER)),
    Field::new("hostnameOverride", "hostname-override", Text, Becomes("nodeName")),
    Field::new("bindAddress", "bind-address", Text, CrossField),
    Field::new("healthzBindAddress", "healthz-bind-address", Text, CrossField),
    Field::new("metricsBindAddress", "metrics-bind-address", Text, CrossField),
    Field::new("bindAddressHardFail", "bind-address-hard-fail", Bool, Becomes("bindAddressHardFail")),
    Field::new("enableProfiling", "profiling", Bool, Becomes("profiling")),
    Field::new(
        "showHiddenMetricsForVersion",
        "show-hidden-metrics-for-version",
        Text,
        Nothing("Fairlead has no hidden metrics"),
    ),
    Field::new("mode", "proxy-mode", Text, CrossField),
    Field::new("iptables.masqueradeBit", "iptables-masquerade-bit", Integer(0, 31), Becomes("masqueradeBit"))
        .pointer()
        .only(&[Iptables, Ipvs]),
    Field::new("iptables.masqueradeAll", "masquerade-all", Bool, Becomes("masqueradeAll")).only(&[Iptables, Ipvs]),
    Field::new("iptables.localhostNodePorts", "iptables-localhost-nodeports", Bool, CrossField)
        .pointer()
        .only(&[Iptables]),
    Field::new("iptables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    Field::new("iptables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    Field::new("ipvs.syncPeriod", "ipvs-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    Field::new("ipvs.minSyncPeriod", "ipvs-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    Field::new("ipvs.scheduler", "ipvs-scheduler", Text, Becomes("ipvsScheduler")).only(&[Ipvs]),
    Field::new("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", Cidrs, Becomes("ipvsExcludeCidrs")).only(&[Ipvs]),
    Field::new("ipvs.strictARP", "ipvs-strict-arp", Bool, Becomes("ipvsStrictArp")).only(&[Ipvs]),
    Field::new("ipvs.tcpTimeout", "ipvs-tcp-timeout", Time, Becomes("ipvsTcpTimeout")).only(&[Ipvs]),
    Field::new("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", Time, Becomes("ipvsTcpfinTimeout")).only(&[Ipvs]),
    Field::new("ipvs.udpTimeout", "ipvs-udp-timeout", Time, Becomes("ipvsUdpTimeout")).only(&[Ipvs]),
    Field::new("nftables.masqueradeBit", "", Integer(0, 31), Becomes("masqueradeBit")).pointer().only(&[Nftables]),
    Field::new("nftables.masqueradeAll", "masquerade-all", Bool, Becomes("masqueradeAll")).only(&[Nftables]),
    Field::new("nftables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nftables]),
    Field::new("nftables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nftables]),
    Field::new("winkernel.networkName", "network-name", Text, Nothing(WINDOWS)),
    Field::new("winkernel.sourceVip", "source-vip", Text, Nothing(WINDOWS)),
    Field::new("winkernel.enableDSR", "enable-dsr", Bool, Nothing(WINDOWS)),
    Field::new("winkernel.rootHnsEndpointName", "root-hnsendpoint-name", Text, Nothing(WINDOWS)),
    Field::new("winkernel.forwardHealthCheckVip", "forward-healthcheck-vip", Bool, Nothing(WINDOWS)),
    Field::new("detectLocalMode", "detect-local-mode", Text, CrossField),
    Field::new("detectLocal.bridgeInterface", "pod-bridge-interface", Text, CrossField),
    Field::new("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", Text, CrossField),
    Field::new("clusterCIDR", "cluster-cidr", Text, CrossField),
    Field::new("nodePortAddresses", "nodeport-addresses", Cidrs, CrossField),
    Field::new("oomScoreAdj", "oom-score-adj", Integer(-1000, 1000), Becomes("oomScoreAdj")).pointer(),
    Field::new("conntrack.maxPerCore", "conntrack-max-per-core", Integer(0, MAX), Becomes("conntrackMaxPerCore"))
        .pointer(),
    Field::new("conntrack.min", "conntrack-min", Integer(0, MAX), Becomes("conntrackMin")).pointer(),
    Field::new(
        "conntrack.tcpEstablishedTimeout",
        "conntrack-tcp-timeout-established",
        Time,
        Becomes("conntrackTcpTimeoutEstablished"),
    )
    .pointer(),
    Field::new(
        "conntrack.tcpCloseWaitTimeout",
        "conntrack-tcp-timeout-close-wait",
        Time,
        Becomes("conntrackTcpTimeoutCloseWait"),
    )
    .pointer(),
    Field::new("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", Bool, Becomes("conntrackTcpBeLiberal")),
    Field::new("conntrack.udpTimeout", "conntrack-udp-timeout", Time, Becomes("conntrackUdpTimeout")),
    Field::new(
        "conntrack.udpStreamTimeout",
        "conntrack-udp-timeout-stream",
        Time,
        Becomes("conntrackUdpTimeoutStream"),
    ),
    Field::new(
        "configSyncPeriod",
        "config-sync-period",
        Time,
        Nothing("Fairlead does not relist periodically, but after 150 s without an event or bookmark"),
    ),
    Field::new(
        "portRange",
        "proxy-port-range",
        Text,
        Nothing("kube-proxy ignores it too; no ports are opened for Services"),
    ),
    Field::new("windowsRunAsService", "windows-service", Bool, Nothing(WINDOWS)),
];
