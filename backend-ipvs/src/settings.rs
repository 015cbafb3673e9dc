//! What an operator decides about IPVS, besides what all backends are told.

use std::time::Duration;

use backend::dataplane::DataplaneOptions;
use ipnet::IpNet;
use iptables::Variant;
use netlink::ipvs::IpvsTimeouts;
use proto::model::IpvsScheduler;

/// How the backend works. The same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How traffic of this node is treated.
    pub dataplane: DataplaneOptions,
    /// How virtual servers choose among their destinations, where the Service does not say: kube-proxy's `--ipvs-scheduler`.
    pub scheduler: IpvsScheduler,
    /// How long IPVS remembers idle connections; 0 leaves a timeout as it is: kube-proxy's `--ipvs-tcp-timeout` and its siblings.
    pub timeouts: IpvsTimeouts,
    /// Who is told that the node has the VIPs: kube-proxy's `--ipvs-strict-arp`.
    pub arp: Arp,
    /// What lies in these ranges is left alone: kube-proxy's `--ipvs-exclude-cidrs`.
    pub exclude: Vec<IpNet>,
    /// How long the TCP connections of an endpoint that leaves may go on.
    pub drain: Duration,
    /// Which iptables keeps the rules; `None`: the one in use.
    pub iptables: Option<Variant>,
}

/// Which neighbours get an answer when they ask for a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arp {
    /// As the node is set up.
    #[default]
    AsItIs,
    /// None: an interface answers for its own addresses only (`arp_ignore` 1, `arp_announce` 2).
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
            iptables: None,
        }
    }
}
