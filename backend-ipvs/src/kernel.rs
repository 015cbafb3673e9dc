//! The seam to the kernel: prepare it, list what is there of ours, change it. A real one, and for tests a fake that checks what the
//! kernel checks.

mod dry_run;
#[cfg(test)]
pub(crate) mod fake;
mod netlink;
mod rules;

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    net::{IpAddr, SocketAddr},
};

use ::netlink::ipvs::{IpvsTimeouts, VirtualServerKey};
use anyhow::Result;
use ipnet::IpNet;
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::Rules,
    object::{Object, Value},
    plan::{Objects, Operation},
    set::{SetContent, SetId},
    settings::Arp,
};
pub(crate) use dry_run::DryRun;
pub(crate) use netlink::Netlink;

/// The device that VIPs are on.
pub(crate) const DEVICE: &str = "fairlead-ipvs0";

/// What holds virtual servers, sets, addresses and rules.
pub(crate) trait Kernel: Send + 'static {
    /// Makes what has to be there before anything else: settings, sets, the device, rules. Only what is not there; says how much that
    /// was.
    fn prepare(&mut self, base: Base) -> impl Future<Output = Result<usize>> + Send;

    /// Everything that is ours.
    fn list(&mut self, ours: Ours) -> impl Future<Output = Result<Listing>> + Send;

    /// Executes operations, each for itself. Says which were refused, and why.
    fn commit(&mut self, operations: Vec<Operation>) -> impl Future<Output = Result<Vec<Refused>>> + Send;

    /// How many connections the destinations of these virtual servers have.
    fn connections(&mut self, servers: Vec<VirtualServerKey>) -> impl Future<Output = Result<ConnectionCounts>> + Send;

    /// How much there is, looked at quickly.
    fn survey(&mut self) -> impl Future<Output = Result<Survey>> + Send;

    /// Whether the rules are these.
    fn check(&mut self, rules: PerFamily<Rules>) -> impl Future<Output = Result<RulesFound>> + Send;

    /// Removes everything that is ours.
    fn cleanup(&mut self, exclude: Vec<IpNet>) -> impl Future<Output = Result<()>> + Send;
}

/// What has to be there before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) rules: PerFamily<Rules>,
    pub(crate) timeouts: IpvsTimeouts,
    pub(crate) arp: Arp,
}

/// Which virtual servers are ours: those that bear a mark of ours, that are at an address which is on our device, at a VIP or a node port
/// in our sets, or that should be there; but not in these ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours {
    pub(crate) wanted: HashSet<VirtualServerKey>,
    pub(crate) exclude: Vec<IpNet>,
}

/// What our sets hold: VIPs and node ports, with the numbers of their protocols.
#[derive(Debug, Default)]
pub(crate) struct VipEntries {
    vips: HashSet<(u8, SocketAddr)>,
    node_ports: HashSet<(IpFamily, u8, u16)>,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) objects: Objects,
    /// The addresses of other devices.
    pub(crate) elsewhere: HashSet<IpAddr>,
}

/// How many connections a destination has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Established ones.
    pub(crate) active: u32,
    /// Those that are being opened or closed, or have been closed a short time ago.
    pub(crate) inactive: u32,
}

/// How many connections each destination of each virtual server has.
pub(crate) type ConnectionCounts = HashMap<(VirtualServerKey, SocketAddr), Connections>;

/// An operation that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Which one.
    pub(crate) index: usize,
    pub(crate) reason: String,
    /// What the kernel took in its place, if it took anything.
    pub(crate) instead: Option<Value>,
}

/// How much there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Entries.
    pub(crate) sets: HashMap<SetId, usize>,
    /// On our device.
    pub(crate) addresses: usize,
    /// On other devices.
    pub(crate) elsewhere: HashSet<IpAddr>,
    /// All, ours or not.
    pub(crate) servers: HashSet<VirtualServerKey>,
}

/// Whether rules are as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RulesFound {
    /// They are.
    Right,
    /// Some are missing, or others are there.
    Wrong,
}

// === impl Ours ===

impl Ours {
    /// Whether a virtual server is ours, given the addresses that are, and what our sets hold.
    pub(crate) fn has(&self, server: &VirtualServerKey, addresses: &HashSet<IpAddr>, fronts: &VipEntries) -> bool {
        match server {
            VirtualServerKey::FwMark(_, mark) => crate::mark::Mark::from_raw(*mark).is_some(),
            VirtualServerKey::Address(_, address) => {
                let ip = address.ip();
                !self.excludes(&ip) && (addresses.contains(&ip) || self.wanted.contains(server) || fronts.have(server))
            }
        }
    }

    /// Whether an address is left alone.
    pub(crate) fn excludes(&self, address: &IpAddr) -> bool {
        self.exclude.iter().any(|range| range.contains(address))
    }
}

// === impl Fronts ===

impl VipEntries {
    /// Those in the entries among these pieces.
    pub(crate) fn of(objects: &Objects) -> Self {
        let mut fronts = Self::default();
        for object in objects.keys() {
            let Object::SetEntry(SetId { content, family }, entry) = object else { continue };
            let (Some(protocol), Some(port)) = (entry.protocol, entry.port) else { continue };
            match (content, entry.ip) {
                (SetContent::NodePorts, _) => drop(fronts.node_ports.insert((*family, protocol, port))),
                (SetContent::Vips, Some(ip)) => {
                    fronts.vips.insert((protocol, SocketAddr::new(ip, port)));
                }
                _ => {}
            }
        }
        fronts
    }

    fn have(&self, server: &VirtualServerKey) -> bool {
        let VirtualServerKey::Address(protocol, address) = server else { return false };
        let protocol = protocol.number();
        self.vips.contains(&(protocol, *address))
            || self.node_ports.contains(&(IpFamily::of(&address.ip()), protocol, address.port()))
    }
}
