//! The table of all fields of KubeProxyConfiguration: the modes that read them, and their effect here.

use Effect::{Becomes, CrossField, Nothing};

use crate::modes::Mode;

/// One field of the document, or several without effect.
pub(crate) struct Field {
    /// Its path, with dots. One that ends with a dot stands for all fields below it that are not listed themselves.
    pub(crate) path: &'static str,
    pub(crate) effect: Effect,
    /// A pointer in kube-proxy: the zero value of its type (`0`, `0s`, `false`) sets it.
    pub(super) is_pointer: bool,
}

/// The effect of a field in Fairlead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// It sets our field of this name to the same value.
    Becomes(&'static str),
    /// Its meaning depends on other fields, or its value is written differently.
    CrossField,
    /// None, for this reason.
    Nothing(&'static str),
}

const fn field(path: &'static str, effect: Effect) -> Field {
    Field { path, effect, is_pointer: false }
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
pub(super) fn modes(path: &str) -> &'static [Mode] {
    match path.split_once('.') {
        Some(("iptables", "masqueradeBit" | "masqueradeAll")) => &[Mode::Iptables, Mode::Ipvs],
        Some(("iptables", _)) => &[Mode::Iptables],
        Some(("ipvs", _)) => &[Mode::Ipvs],
        Some(("nftables", _)) => &[Mode::Nftables],
        _ => &[Mode::Iptables, Mode::Ipvs, Mode::Nftables],
    }
}

const NO_CLIENT: &str = "Fairlead's API client has no such setting: it makes one list and one watch per kind";
const NO_PERIOD: &str = "Fairlead has no periodic sync: it writes changes when they arrive, and detects changes by \
                         other programs";
const NO_PROFILES: &str = "Fairlead serves no profiles: `perf` records them from outside of the process";
const NO_BUFFER: &str = "log lines are written to stderr without buffering";
const NO_RELIST: &str = "Fairlead lists again when it has missed changes, not periodically";
const WINDOWS: &str = "Fairlead runs only on Linux";

/// All fields.
pub(crate) const FIELDS: &[Field] = &[
    field("featureGates", CrossField).pointer(),
    field("clientConnection.kubeconfig", CrossField),
    field("clientConnection.", Nothing(NO_CLIENT)),
    field("logging.format", Becomes("logFormat")),
    field("logging.verbosity", CrossField),
    field("logging.vmodule", Nothing("use `log` with directives such as info,fairlead_backend=debug")),
    field("logging.flushFrequency", Nothing(NO_BUFFER)),
    field("logging.options.text.", Nothing(NO_BUFFER)),
    field("logging.options.json.", Nothing(NO_BUFFER)),
    field("hostnameOverride", Becomes("nodeName")),
    field("bindAddress", CrossField),
    field("healthzBindAddress", Becomes("healthz")),
    field("metricsBindAddress", Becomes("metrics")),
    field("bindAddressHardFail", Becomes("bindAddressHardFail")),
    field("enableProfiling", Nothing(NO_PROFILES)),
    field("showHiddenMetricsForVersion", Nothing("Fairlead has no hidden metrics")),
    field("mode", CrossField),
    field("iptables.masqueradeBit", Becomes("masqueradeBit")).pointer(),
    field("iptables.masqueradeAll", Becomes("masqueradeAll")),
    field("iptables.localhostNodePorts", CrossField).pointer(),
    field("iptables.syncPeriod", Nothing(NO_PERIOD)),
    field("iptables.minSyncPeriod", Nothing(NO_PERIOD)),
    field("ipvs.syncPeriod", Nothing(NO_PERIOD)),
    field("ipvs.minSyncPeriod", Nothing(NO_PERIOD)),
    field("ipvs.scheduler", Becomes("ipvsScheduler")),
    field("ipvs.excludeCIDRs", Becomes("ipvsExcludeCIDRs")),
    field("ipvs.strictARP", Becomes("ipvsStrictARP")),
    field("ipvs.tcpTimeout", Becomes("ipvsTcpTimeout")),
    field("ipvs.tcpFinTimeout", Becomes("ipvsTcpfinTimeout")),
    field("ipvs.udpTimeout", Becomes("ipvsUdpTimeout")),
    field("nftables.masqueradeBit", Becomes("masqueradeBit")).pointer(),
    field("nftables.masqueradeAll", Becomes("masqueradeAll")),
    field("nftables.syncPeriod", Nothing(NO_PERIOD)),
    field("nftables.minSyncPeriod", Nothing(NO_PERIOD)),
    field("winkernel.", Nothing(WINDOWS)),
    field("detectLocalMode", CrossField),
    field("detectLocal.bridgeInterface", CrossField),
    field("detectLocal.interfaceNamePrefix", CrossField),
    field("clusterCIDR", CrossField),
    field("nodePortAddresses", CrossField),
    field("oomScoreAdj", Becomes("oomScoreAdj")).pointer(),
    field("conntrack.maxPerCore", Becomes("conntrackMaxPerCore")).pointer(),
    field("conntrack.min", Becomes("conntrackMin")).pointer(),
    field("conntrack.tcpEstablishedTimeout", Becomes("conntrackTcpTimeoutEstablished")).pointer(),
    field("conntrack.tcpCloseWaitTimeout", Becomes("conntrackTcpTimeoutCloseWait")).pointer(),
    field("conntrack.tcpBeLiberal", Becomes("conntrackTcpBeLiberal")),
    field("conntrack.udpTimeout", Becomes("conntrackUdpTimeout")),
    field("conntrack.udpStreamTimeout", Becomes("conntrackUdpTimeoutStream")),
    field("configSyncPeriod", Nothing(NO_RELIST)),
    field("portRange", Nothing("kube-proxy ignores it too; no ports are opened for Services")),
    field("windowsRunAsService", Nothing(WINDOWS)),
];
