//! The options of the IPVS backend.

use std::time::Duration;

use backend::dataplane::DataplaneOptions;
use ipnet::IpNet;
use iptables::VariantSelection;
use netlink::ipvs::IpvsTimeouts;
use proto::model::IpvsScheduler;

/// The options of the IPVS backend. They do not change while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The options that all backends share.
    pub dataplane: DataplaneOptions,
    /// The scheduler of all virtual servers: kube-proxy's `--ipvs-scheduler`.
    pub scheduler: IpvsScheduler,
    /// The timeouts of idle connections; 0 leaves a timeout unchanged: kube-proxy's `--ipvs-{tcp,tcpfin,udp}-timeout`.
    pub timeouts: IpvsTimeouts,
    /// Which ARP requests for VIPs are answered: kube-proxy's `--ipvs-strict-arp`.
    pub arp: Arp,
    /// Objects with addresses in these ranges are neither created nor deleted: kube-proxy's `--ipvs-exclude-cidrs`.
    pub exclude: Vec<IpNet>,
    /// How long a removed endpoint drains its TCP connections.
    pub drain: Duration,
    /// The variant of iptables.
    pub iptables: VariantSelection,
}

/// Which ARP requests for VIPs are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arp {
    /// As configured by the node's sysctls.
    #[default]
    AsItIs,
    /// None: an interface answers only for its own addresses (`arp_ignore` 1, `arp_announce` 2).
    Strict,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            dataplane: DataplaneOptions::default(),
            scheduler: IpvsScheduler::default(),
            timeouts: IpvsTimeouts::default(),
            arp: Arp::default(),
            exclude: Vec::new(),
            drain: Duration::from_secs(15 * 60),
            iptables: VariantSelection::default(),
        }
    }
}
