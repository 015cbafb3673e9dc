//! The interface to the kernel: prepare it, list our objects, change them. Implemented over netlink, and for
//! tests as a fake that makes the checks of the kernel.

#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use all of it"))]
pub(crate) mod fake;
pub(crate) mod netlink;
pub(crate) mod rules;

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    net::{IpAddr, SocketAddr},
};

use ::netlink::{ipset::IpsetEntry, ipvs::VirtualServerKey};
use anyhow::Result;
use backend::{InstalledObject, dataplane::Vip};
use ipnet::IpNet;
use iptables::ChainSpec;
use proto::model::{IpFamily, PerFamily};

use crate::{
    mark::Mark,
    object::{Object, Value},
    plan::{Objects, Operation},
    set::{self, SetContent, SetId},
};
pub(crate) use netlink::Netlink;

/// The device that has the VIPs. It is ours while a set of ours exists.
pub(crate) const DEVICE: &str = backend::dataplane::IPVS_DEVICE;

/// Virtual servers, sets, addresses and rules.
pub(crate) trait Kernel: Send + 'static {
    /// Creates the base objects that are missing: settings, sets, the device, rules. The base objects of a family
    /// without rules are left as they are.
    fn prepare(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> impl Future<Output = Result<Prepared>> + Send;

    /// All our objects.
    fn list(&mut self, ours: Ours) -> impl Future<Output = Result<Listing>> + Send;

    /// Executes operations, each on its own. Returns the rejected ones by their indices.
    fn commit(&mut self, operations: Vec<Operation>) -> impl Future<Output = Result<HashMap<usize, Rejected>>> + Send;

    /// The connection counts of the destinations of these virtual servers.
    fn connections(&mut self, servers: Vec<VirtualServerKey>) -> impl Future<Output = Result<ConnectionCounts>> + Send;

    /// Our objects in the kernel without details, which is fast.
    fn summary(&mut self) -> impl Future<Output = Result<Summary>> + Send;

    /// Whether the kernel has these rules.
    fn has_rules(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> impl Future<Output = Result<bool>> + Send;

    /// Whether a set of ours exists. Loads no module.
    fn is_programmed(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// The numbers of our objects.
    fn installed_objects(&mut self, ours: Ours) -> impl Future<Output = Result<Vec<InstalledObject>>> + Send;

    /// Removes all our objects.
    fn cleanup(&mut self, ours: Ours) -> impl Future<Output = Result<()>> + Send;
}

/// The result of [`Kernel::prepare`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// How many base objects were missing.
    pub(crate) writes: usize,
    /// The families that cannot be prepared.
    pub(crate) unusable: Vec<UnusableFamily>,
}

/// A family whose base objects cannot be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnusableFamily {
    pub(crate) family: IpFamily,
    pub(crate) reason: String,
    /// Whether another attempt fails as well unless the node changes.
    pub(crate) is_permanent: bool,
}

/// Which virtual servers are ours: with a mark of ours, at an address of our device, at a VIP or node port in our sets,
/// or desired; but none in the excluded ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours {
    /// The virtual servers at cluster IPs that should exist.
    pub(crate) desired: HashSet<VirtualServerKey>,
    pub(crate) exclude: Vec<IpNet>,
}

/// Our objects in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) objects: Objects,
    /// The addresses of other devices.
    pub(crate) elsewhere: HashSet<IpAddr>,
}

/// The connection counts of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Established connections.
    pub(crate) active: u32,
    /// Connections that are being opened or closed, or were closed a short time ago.
    pub(crate) inactive: u32,
}

/// The connection counts of each destination of each virtual server.
pub(crate) type ConnectionCounts = HashMap<(VirtualServerKey, SocketAddr), Connections>;

/// An operation that the kernel rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub(crate) reason: String,
    /// The value that was programmed instead, if any.
    pub(crate) instead: Option<Value>,
}

/// The objects in the kernel, without details.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The number of entries of each set.
    pub(crate) sets: HashMap<SetId, usize>,
    /// The number of addresses of our device.
    pub(crate) addresses: usize,
    /// The addresses of other devices.
    pub(crate) elsewhere: HashSet<IpAddr>,
    pub(crate) servers: HashSet<VirtualServerKey>,
}

// === impl Ours ===

impl Ours {
    /// Whether a virtual server is ours, given our addresses and set entries. If another process removes all addresses
    /// and entries of an unneeded virtual server while it drains, it cannot be told from those of other programs, and
    /// stays.
    pub(crate) fn has(&self, server: &VirtualServerKey, objects: &Objects) -> bool {
        let (protocol, ip, port) = match server {
            VirtualServerKey::FwMark(_, mark) => return Mark::from_raw(*mark).is_some(),
            VirtualServerKey::Address(protocol, address) => (*protocol, address.ip(), address.port()),
        };
        if self.excludes(&ip) {
            return false;
        }

        let family = IpFamily::of(&ip);
        let node_port = Vip::NodePort { port, protocol };
        let has_any = |content, entries: &[IpsetEntry]| {
            entries.iter().any(|entry| objects.contains_key(&Object::SetEntry(SetId { content, family }, *entry)))
        };
        self.desired.contains(server)
            || objects.contains_key(&Object::Address(ip))
            || has_any(SetContent::Addresses, &[set::address(ip)])
            || has_any(SetContent::Vips, &[set::socket(ip, protocol, port)])
            || has_any(SetContent::NodePorts, &set::vip_entries(&node_port, family))
    }

    /// Whether an address is in an excluded range.
    pub(crate) fn excludes(&self, address: &IpAddr) -> bool {
        self.exclude.iter().any(|range| range.contains(address))
    }
}
