//! What kube-proxy's IPVS mode leaves besides iptables rules: virtual servers, a device with their addresses, and sets
//! that the rules use.
//!
//! ```text
//!   kube-ipvs0 ── its addresses ──▶ virtual servers on them ─┐
//!   KUBE-NODE-PORT* ─── its ports ──▶ those on node ports ───┴──▶ idle: deleted     busy: kept, with weight 0
//! ```
//!
//! What happens to an open connection, when another proxy translates new ones; measured on Linux 6.1 with kube-proxy's
//! settings (`net.ipv4.vs.conntrack` and `expire_nodest_conn` 1; in brackets with the latter 0):
//!
//! | change | TCP | UDP |
//! |---|---|---|
//! | weight of the destination set to 0 | continues | continues |
//! | virtual server deleted | is reset | moves to the other proxy (hangs until its conntrack entry expires) |
//! | device deleted | hangs | hangs |
//!
//! So a virtual server with TCP or SCTP connections is kept with weight 0 until they have ended, with the device that
//! delivers packets to it, or the sets that identify it as kube-proxy's. The conntrack entries of UDP flows are
//! deleted. This works because IPVS adds its connections to conntrack: NAT rules do not apply to them.

mod names;
mod plan;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use backend::dataplane::IPVS_DEVICE;
use netlink::{
    conntrack::ConntrackHandle,
    ipset::{self, DestroyOutcome},
    ipvs::{self, VirtualServerKey},
    rtnl,
};
use proto::model::{IpFamily, Protocol};

use super::LeftoverObject;
use plan::NodePorts;
pub(crate) use plan::{KubeProxyServer, ServerKind};

/// Sets of Fairlead's IPVS backend. While one exists, the device is Fairlead's, which has adopted the virtual servers
/// at its addresses.
const FAIRLEAD_VIPS: [&str; 2] = ["FAIRLEAD-VIPS", "FAIRLEAD-6-VIPS"];
/// The sets in which Fairlead's IPVS backend has node ports.
const FAIRLEAD_NODE_PORTS: [&str; 2] = ["FAIRLEAD-NODE-PORTS", "FAIRLEAD-6-NODE-PORTS"];

/// Names of sets, with their family.
type Sets = Vec<(IpFamily, String)>;

/// kube-proxy's objects in the kernel.
pub(crate) struct ObservedIpvs {
    pub(crate) servers: Vec<KubeProxyServer>,
    /// Whether the device exists, and is not Fairlead's.
    has_device: bool,
    sets: Sets,
}

/// The objects of that mode, and what is done with them.
#[derive(Debug)]
pub(crate) struct IpvsLeftovers {
    idle: Vec<KubeProxyServer>,
    busy: Vec<KubeProxyServer>,
    /// Whether the device exists, and is not needed any more.
    deletes_device: bool,
    /// The sets to destroy.
    sets: Sets,
}

impl IpvsLeftovers {
    pub(crate) fn find() -> Result<Self> {
        let ObservedIpvs { servers, has_device, sets } = observe()?;
        Ok(Self::new(servers, has_device, sets))
    }

    fn new(servers: Vec<KubeProxyServer>, has_device: bool, mut sets: Sets) -> Self {
        let (busy, idle): (Vec<_>, Vec<_>) = servers.into_iter().partition(|server| server.connections() > 0);
        let deletes_device = has_device && busy.iter().all(KubeProxyServer::is_on_node_port);
        let needed: BTreeSet<_> =
            busy.iter().filter(|server| server.is_on_node_port()).map(|server| server.service.family()).collect();
        sets.retain(|(family, name)| !(needed.contains(family) && names::holds_node_ports(name)));
        sets.sort();
        Self { idle, busy, deletes_device, sets }
    }

    /// The objects to be removed; virtual servers are counted.
    pub(crate) fn objects(&self) -> Vec<LeftoverObject> {
        let mut counts = BTreeMap::<_, usize>::new();
        for server in &self.idle {
            *counts.entry((server.service.family(), server.is_on_node_port())).or_default() += 1;
        }

        let mut objects = Vec::new();
        for ((family, is_on_node_port), count) in counts {
            let location = if is_on_node_port { "a node port" } else { IPVS_DEVICE };
            let kind = format!("{family} virtual server on {location}");
            objects.push(LeftoverObject::new("ipvs", Some(family), kind, count));
        }
        if self.deletes_device {
            objects.push(LeftoverObject::new("link", None, format!("device {IPVS_DEVICE}"), 1));
        }
        objects.extend(self.sets.iter().map(|(family, name)| set_object(*family, name)));
        objects
    }

    /// Which virtual servers are kept, because they have connections.
    pub(crate) fn notes(&self) -> Vec<String> {
        let connections: u64 = self.busy.iter().map(KubeProxyServer::connections).sum();
        let Some(first) = self.busy.first() else { return Vec::new() };
        let more = match self.busy.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        vec![format!(
            "IPVS has {connections} connections to {}{more}; deleting the virtual servers would close them. They are \
             kept, with the device and sets that they need, and accept no new connections; repeat this command when \
             the connections have ended",
            first.service
        )]
    }

    /// Removes it; the iptables rules must have been removed. Returns the sets that rules of other programs still use.
    pub(crate) fn remove(&self) -> Result<Vec<LeftoverObject>> {
        if !self.idle.is_empty() || !self.busy.is_empty() {
            let mut ipvs = ipvs::IpvsHandle::open()?.context("the module ip_vs was unloaded")?;
            for server in &self.busy {
                ipvs.quiesce(&server.service, &server.destinations)?;
            }
            for server in &self.idle {
                ipvs.delete_virtual_server(&server.service)?;
            }
            delete_udp_flows(&self.idle)?;
        }
        if self.deletes_device {
            rtnl::delete_link(IPVS_DEVICE)?;
        }

        let mut ipset = ipset::IpsetHandle::open()?;
        let mut in_use = Vec::new();
        for (family, name) in &self.sets {
            if ipset.destroy_released(name)? == DestroyOutcome::InUse {
                in_use.push(set_object(*family, name));
            }
        }
        Ok(in_use)
    }
}

/// Reads kube-proxy's objects, and changes nothing.
pub(crate) fn observe() -> Result<ObservedIpvs> {
    let mut links = rtnl::addresses_by_link().context("list the addresses of the links")?;
    let on_device = links.remove(IPVS_DEVICE);
    let local: HashSet<IpAddr> = links.into_values().flatten().collect();

    let mut ipset = ipset::IpsetHandle::open()?;
    let listed = ipset.sets().context("list the sets of ipset")?;
    let existing: HashSet<String> = listed.into_iter().map(|set| set.name).collect();
    let is_fairleads = FAIRLEAD_VIPS.iter().any(|name| existing.contains(*name));
    let device = if is_fairleads { None } else { on_device };

    let mut sets = Vec::new();
    let mut node_ports = NodePorts::new(local);
    for name in &existing {
        let Some(family) = names::family(name) else { continue };
        if names::holds_node_ports(name) {
            node_ports.extend(family, names::protocol(name), &entries(&mut ipset, name)?);
        }
        sets.push((family, name.clone()));
    }
    // Node ports that Fairlead forwards are Fairlead's, as the device is.
    for name in FAIRLEAD_NODE_PORTS {
        if existing.contains(name) {
            node_ports.remove(&entries(&mut ipset, name)?);
        }
    }

    let mut servers = Vec::new();
    // Opening IPVS would load its module.
    if ipvs::is_loaded()
        && let Some(mut handle) = ipvs::IpvsHandle::open()?
    {
        for service in handle.virtual_servers().context("list the virtual servers of IPVS")? {
            if let Some(kind) = plan::kind(&service, device.as_ref(), &node_ports) {
                let destinations = handle.destinations(&service)?;
                servers.push(KubeProxyServer { service, kind, destinations });
            }
        }
    }
    Ok(ObservedIpvs { servers, has_device: device.is_some(), sets })
}

fn entries(ipset: &mut ipset::IpsetHandle, set: &str) -> Result<Vec<ipset::IpsetEntry>> {
    ipset.entries(set).with_context(|| format!("list the set {set}"))
}

/// Deletes the conntrack entries of UDP flows through these virtual servers.
fn delete_udp_flows(deleted: &[KubeProxyServer]) -> Result<()> {
    let mut udp = HashSet::<SocketAddr>::new();
    for server in deleted {
        if let VirtualServerKey::Address(Protocol::Udp, address) = server.service {
            udp.insert(address);
        }
    }
    if udp.is_empty() {
        return Ok(());
    }
    let deleted = ConntrackHandle::open()?.delete_udp(|destination| udp.contains(&destination));
    deleted.context("delete the conntrack entries of deleted virtual servers")
}

fn set_object(family: IpFamily, name: &str) -> LeftoverObject {
    LeftoverObject::new("ipset", Some(family), format!("set {name}"), 1)
}
