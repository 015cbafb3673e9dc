//! The table of all fields: kube-proxy's flag for it, what it may be, in which modes it counts, what becomes of it here.

use Effect::{Becomes, Joint, Nothing};
use Shape::{Any, Bool, Cidrs, Integer, Map, Number, Text, Time};

use crate::cli::BackendName::{self, Iptables, Ipvs, Nft};

/// One field of the document.
pub(crate) struct Field {
    /// With dots between the names.
    pub(crate) path: &'static str,
    /// kube-proxy's flag; empty where there is none. One flag may be several fields, of different modes.
    pub(crate) flag: &'static str,
    pub(super) shape: Shape,
    /// Whether its zero (`""`, `0`, `0s`, `false`, or nothing but such) is a value, as it is of what is a pointer in kube-proxy; else it is
    /// as if the field were not there.
    pub(super) zero: Zero,
    /// The modes in which kube-proxy reads it; empty: in all.
    pub(crate) modes: &'static [BackendName],
    pub(crate) effect: Effect,
}

/// What a field may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Text,
    Bool,
    /// From, to.
    Integer(i64, i64),
    /// With a fraction.
    Number,
    /// Go's `1h30m`, never negative.
    Time,
    /// A list of ranges of addresses.
    Cidrs,
    /// Names that are true or false.
    Map,
    /// Nobody looks at it.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    Unset,
    Value,
}

/// What becomes of a field here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A flag of ours, with the same value.
    Becomes(&'static str),
    /// What it means depends on other fields, or is in other words; see `joint`.
    Joint,
    /// Nothing: why, and what to do instead.
    Nothing(&'static str),
}

const MAX: i64 = i32::MAX as i64;

const NO_CLIENT: &str =
    "Fairlead's client for the API has no such setting: it makes one list and one watch for each kind of object";
const NO_PERIOD: &str = "nothing is written at intervals here: a change is written when it comes, and what others change in the kernel is noticed";
const NO_BUFFER: &str = "log lines are written to stderr one by one";
const WINDOWS: &str = "Fairlead runs on Linux only";

impl Field {
    const fn new(path: &'static str, flag: &'static str, shape: Shape, effect: Effect) -> Self {
        Self { path, flag, shape, zero: Zero::Unset, modes: &[], effect }
    }

    /// Its zero is a value.
    const fn pointer(self) -> Self {
        Self { zero: Zero::Value, ..self }
    }

    const fn only(self, modes: &'static [BackendName]) -> Self {
        Self { modes, ..self }
    }
}

/// All fields, in the order of kube-proxy's type.
pub(crate) const FIELDS: &[Field] = &[
    Field::new("featureGates", "feature-gates", Map, Joint).pointer(),
    Field::new("clientConnection.kubeconfig", "kubeconfig", Text, Joint),
    Field::new("clientConnection.acceptContentTypes", "", Text, Nothing(NO_CLIENT)),
    Field::new("clientConnection.contentType", "kube-api-content-type", Text, Nothing(NO_CLIENT)),
    Field::new("clientConnection.qps", "kube-api-qps", Number, Nothing(NO_CLIENT)),
    Field::new("clientConnection.burst", "kube-api-burst", Integer(-MAX, MAX), Nothing(NO_CLIENT)),
    Field::new("logging.format", "logging-format", Text, Joint),
    Field::new("logging.flushFrequency", "log-flush-frequency", Any, Nothing(NO_BUFFER)),
    Field::new("logging.verbosity", "v", Integer(0, MAX), Joint),
    Field::new("logging.vmodule", "vmodule", Any, Nothing("give `log` directives such as info,fairlead_backend=debug")),
    Field::new("logging.options.text.splitStream", "log-text-split-stream", Bool, Nothing(NO_BUFFER)),
    Field::new("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Any, Nothing(NO_BUFFER)),
    Field::new("logging.options.json.splitStream", "log-json-split-stream", Bool, Nothing(NO_BUFFER)),
    Field::new("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Any, Nothing(NO_BUFFER)),
    Field::new("hostnameOverride", "hostname-override", Text, Becomes("node-name")),
    Field::new("bindAddress", "bind-address", Text, Joint),
    Field::new("healthzBindAddress", "healthz-bind-address", Text, Joint),
    Field::new("metricsBindAddress", "metrics-bind-address", Text, Joint),
    Field::new("bindAddressHardFail", "bind-address-hard-fail", Bool, Becomes("bind-address-hard-fail")),
    Field::new("enableProfiling", "profiling", Bool, Becomes("profiling")),
    Field::new(
        "showHiddenMetricsForVersion",
        "show-hidden-metrics-for-version",
        Text,
        Nothing("no metric of Fairlead's is hidden"),
    ),
    Field::new("mode", "proxy-mode", Text, Joint),
    Field::new("iptables.masqueradeBit", "iptables-masquerade-bit", Integer(0, 31), Becomes("masquerade-bit"))
        .pointer()
        .only(&[Iptables, Ipvs]),
    Field::new("iptables.masqueradeAll", "masquerade-all", Bool, Becomes("masquerade-all")).only(&[Iptables, Ipvs]),
    Field::new("iptables.localhostNodePorts", "iptables-localhost-nodeports", Bool, Joint).pointer().only(&[Iptables]),
    Field::new("iptables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    Field::new("iptables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Iptables]),
    Field::new("ipvs.syncPeriod", "ipvs-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    Field::new("ipvs.minSyncPeriod", "ipvs-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Ipvs]),
    Field::new("ipvs.scheduler", "ipvs-scheduler", Text, Becomes("ipvs-scheduler")).only(&[Ipvs]),
    Field::new("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", Cidrs, Becomes("ipvs-exclude-cidrs")).only(&[Ipvs]),
    Field::new("ipvs.strictARP", "ipvs-strict-arp", Bool, Becomes("ipvs-strict-arp")).only(&[Ipvs]),
    Field::new("ipvs.tcpTimeout", "ipvs-tcp-timeout", Time, Becomes("ipvs-tcp-timeout")).only(&[Ipvs]),
    Field::new("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", Time, Becomes("ipvs-tcpfin-timeout")).only(&[Ipvs]),
    Field::new("ipvs.udpTimeout", "ipvs-udp-timeout", Time, Becomes("ipvs-udp-timeout")).only(&[Ipvs]),
    Field::new("nftables.masqueradeBit", "", Integer(0, 31), Becomes("masquerade-bit")).pointer().only(&[Nft]),
    Field::new("nftables.masqueradeAll", "masquerade-all", Bool, Becomes("masquerade-all")).only(&[Nft]),
    Field::new("nftables.syncPeriod", "iptables-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nft]),
    Field::new("nftables.minSyncPeriod", "iptables-min-sync-period", Time, Nothing(NO_PERIOD)).only(&[Nft]),
    Field::new("winkernel.networkName", "network-name", Text, Nothing(WINDOWS)),
    Field::new("winkernel.sourceVip", "source-vip", Text, Nothing(WINDOWS)),
    Field::new("winkernel.enableDSR", "enable-dsr", Bool, Nothing(WINDOWS)),
    Field::new("winkernel.rootHnsEndpointName", "root-hnsendpoint-name", Text, Nothing(WINDOWS)),
    Field::new("winkernel.forwardHealthCheckVip", "forward-healthcheck-vip", Bool, Nothing(WINDOWS)),
    Field::new("detectLocalMode", "detect-local-mode", Text, Joint),
    Field::new("detectLocal.bridgeInterface", "pod-bridge-interface", Text, Joint),
    Field::new("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", Text, Joint),
    Field::new("clusterCIDR", "cluster-cidr", Text, Joint),
    Field::new("nodePortAddresses", "nodeport-addresses", Cidrs, Joint),
    Field::new("oomScoreAdj", "oom-score-adj", Integer(-1000, 1000), Becomes("oom-score-adj")).pointer(),
    Field::new("conntrack.maxPerCore", "conntrack-max-per-core", Integer(0, MAX), Becomes("conntrack-max-per-core"))
        .pointer(),
    Field::new("conntrack.min", "conntrack-min", Integer(0, MAX), Becomes("conntrack-min")).pointer(),
    Field::new(
        "conntrack.tcpEstablishedTimeout",
        "conntrack-tcp-timeout-established",
        Time,
        Becomes("conntrack-tcp-timeout-established"),
    )
    .pointer(),
    Field::new(
        "conntrack.tcpCloseWaitTimeout",
        "conntrack-tcp-timeout-close-wait",
        Time,
        Becomes("conntrack-tcp-timeout-close-wait"),
    )
    .pointer(),
    Field::new("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", Bool, Becomes("conntrack-tcp-be-liberal")),
    Field::new("conntrack.udpTimeout", "conntrack-udp-timeout", Time, Becomes("conntrack-udp-timeout")),
    Field::new(
        "conntrack.udpStreamTimeout",
        "conntrack-udp-timeout-stream",
        Time,
        Becomes("conntrack-udp-timeout-stream"),
    ),
    Field::new(
        "configSyncPeriod",
        "config-sync-period",
        Time,
        Nothing("objects are never listed again at intervals: a kind of which nothing was confirmed for 150 s is"),
    ),
    Field::new(
        "portRange",
        "proxy-port-range",
        Text,
        Nothing("kube-proxy ignores it too; no port is opened for Services"),
    ),
    Field::new("windowsRunAsService", "windows-service", Bool, Nothing(WINDOWS)),
];
