//! What kube-proxy's IPVS mode leaves besides iptables rules: virtual servers, a device that holds their addresses, and sets that the
//! rules refer to.
//!
//! ```text
//!   kube-ipvs0 ── its addresses ──▶ virtual servers on them ─┐
//!   KUBE-NODE-PORT* ─── its ports ──▶ those on node ports ───┴──▶ idle: deleted     busy: stay, take no new connections
//! ```
//!
//! What becomes of an open connection, with a successor that translates new ones, seen on Linux 6.1 with kube-proxy's
//! settings (`net.ipv4.vs.conntrack` and `expire_nodest_conn` 1; in brackets with the latter 0):
//!
//! | what is done | TCP | UDP |
//! |---|---|---|
//! | destination at weight 0 | goes on | goes on |
//! | virtual server deleted | is reset | moves to the successor (hangs until conntrack forgets the flow) |
//! | device deleted | hangs | hangs |
//!
//! So a virtual server that has TCP or SCTP connections stays at weight 0 until they have ended, with the device that brings it
//! packets, or the sets that tell that it is kube-proxy's. UDP flows are forgotten. All of it holds because IPVS's connections are
//! known to conntrack: rules of NAT take them for old ones.

mod names;
mod plan;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use netlink::{
    addresses, conntrack, device,
    ipset::{self, DestroyOutcome},
    ipvs::{self, IpvsProtocol, VirtualServerKey},
};

use crate::{Family, Item};
use plan::{NodePorts, Server};

/// Holds the addresses of Services, so that packets for them come to IPVS.
const DEVICE: &str = "kube-ipvs0";
/// That of Fairlead's IPVS backend, for which kube-proxy's virtual servers at cluster IPs are as good as its own.
const FAIRLEADS: &str = "fairlead-ipvs0";
/// The sets in which that has node ports.
const FAIRLEADS_NODE_PORTS: [&str; 2] = ["FAIRLEAD-NODE-PORTS", "FAIRLEAD-6-NODE-PORTS"];
/// The kernel lets go of the sets of a rule some moments after the rule is gone (nf_tables frees rules later): how often it is asked
/// again, and how long the pause before is.
const ATTEMPTS: usize = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// What there is of that mode, and what becomes of it.
#[derive(Debug)]
pub(crate) struct Leftovers {
    idle: Vec<Server>,
    busy: Vec<Server>,
    device: Fate,
    /// Each with its family, those that go.
    sets: Vec<(Family, String)>,
}

/// What becomes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is not there, or needed.
    Stays,
    Goes,
}

// === impl Leftovers ===

impl Leftovers {
    pub(crate) fn find() -> Result<Self> {
        let Found { servers, has_device, sets } = found()?;
        Ok(Self::new(servers, has_device, sets))
    }

    fn new(servers: Vec<Server>, has_device: bool, mut sets: Vec<(Family, String)>) -> Self {
        let (busy, idle): (Vec<_>, Vec<_>) = servers.into_iter().partition(Server::is_busy);
        let device = if has_device && busy.iter().all(Server::is_on_node_port) { Fate::Goes } else { Fate::Stays };
        let needed: BTreeSet<_> = busy.iter().filter(|server| server.is_on_node_port()).map(Server::family).collect();
        sets.retain(|(family, name)| !(needed.contains(family) && names::holds_node_ports(name)));
        sets.sort();
        Self { idle, busy, device, sets }
    }

    /// What goes; virtual servers are counted.
    pub(crate) fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for family in Family::BOTH {
            for (what, on_node_port) in
                [("virtual server on kube-ipvs0", false), ("virtual server on a node port", true)]
            {
                let is_one = |server: &&Server| server.family() == family && server.is_on_node_port() == on_node_port;
                let count = self.idle.iter().filter(is_one).count();
                if count > 0 {
                    let (place, what) = ("ipvs".to_owned(), format!("{family} {what}"));
                    items.push(Item { place, family: Some(family), what, count });
                }
            }
        }
        if self.device == Fate::Goes {
            items.push(Item { place: "link".into(), family: None, what: format!("device {DEVICE}"), count: 1 });
        }
        items.extend(self.sets.iter().map(|(family, name)| set_item(*family, name)));
        items
    }

    /// What stays for its connections.
    pub(crate) fn notes(&self) -> Vec<String> {
        let connections: u64 = self.busy.iter().map(Server::connections).sum();
        let Some(first) = self.busy.first() else { return Vec::new() };
        let more = match self.busy.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        vec![format!(
            "IPVS carries {connections} connections of {}{more}, and deleting a virtual server would cut them: they stay, with the \
             device and the sets they need, and take no new connections; say this again when the connections have ended",
            first.service
        )]
    }

    /// Removes it; the iptables rules must be gone. Returns what stays after all, for somebody else's rules use it.
    pub(crate) fn remove(&self) -> Result<Vec<Item>> {
        if !self.idle.is_empty() || !self.busy.is_empty() {
            let mut ipvs = ipvs::IpvsHandle::open()?.context("IPVS has left the kernel meanwhile")?;
            for server in &self.busy {
                server.quiesce(&mut ipvs)?;
            }
            for server in &self.idle {
                ipvs.delete_virtual_server(&server.service)?;
            }
            forget_flows(&self.idle)?;
        }
        if self.device == Fate::Goes {
            device::Handle::open()?.delete_device(DEVICE)?;
        }
        let mut ipset = ipset::IpsetHandle::open()?;
        let mut used = Vec::new();
        for (family, name) in &self.sets {
            if destroy(&mut ipset, name)? == DestroyOutcome::InUse {
                used.push(set_item(*family, name));
            }
        }
        Ok(used)
    }
}

/// What there is, whatever becomes of it.
#[derive(Debug)]
struct Found {
    servers: Vec<Server>,
    has_device: bool,
    sets: Vec<(Family, String)>,
}

/// kube-proxy's virtual servers: where connections to each go now, and whether it is at a node port.
pub(crate) fn destinations() -> Result<Vec<(VirtualServerKey, OnNodePort, Vec<SocketAddr>)>> {
    let servers = found()?.servers.into_iter().map(|server| {
        let on_node_port = if server.is_on_node_port() { OnNodePort::Yes } else { OnNodePort::No };
        let taking = server.destinations.iter().filter(|destination| destination.weight > 0);
        (server.service, on_node_port, taking.map(|destination| destination.address).collect())
    });
    Ok(servers.collect())
}

/// Whether a virtual server is at a node port, on an address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnNodePort {
    Yes,
    No,
}

fn found() -> Result<Found> {
    let mut interfaces = addresses::by_interface().context("list the addresses of the interfaces")?;
    // What is on Fairlead's device too is Fairlead's by now, with the virtual servers there.
    let adopted = interfaces.get(FAIRLEADS).cloned().unwrap_or_default();
    let mut device = interfaces.remove(DEVICE);
    if let Some(addresses) = &mut device {
        addresses.retain(|address| !adopted.contains(address));
    }
    let local: HashSet<IpAddr> = interfaces.into_values().flatten().collect();
    let mut ipset = ipset::IpsetHandle::open()?;
    let sets = ipset.sets().context("list the sets of ipset")?;
    let present: HashSet<String> = sets.into_iter().map(|set| set.name).collect();
    let sets: Vec<_> = present.iter().filter_map(|name| Some((names::family(name)?, name.clone()))).collect();
    let mut node_ports = NodePorts::new(local);
    for (family, name) in sets.iter().filter(|(_, name)| names::holds_node_ports(name)) {
        let entries = ipset.entries(name).with_context(|| format!("list the set {name}"))?;
        node_ports.extend(*family, names::protocol(name), &entries);
    }
    // Nor is a node port that Fairlead forwards kube-proxy's any more.
    for name in FAIRLEADS_NODE_PORTS.into_iter().filter(|name| present.contains(*name)) {
        let entries = ipset.entries(name).with_context(|| format!("list the set {name}"))?;
        node_ports.retain_others(&entries);
    }
    let servers = servers(device.as_ref(), &node_ports)?;
    Ok(Found { servers, has_device: device.is_some(), sets })
}

/// kube-proxy's virtual servers, with their destinations.
fn servers(device: Option<&HashSet<IpAddr>>, node_ports: &NodePorts) -> Result<Vec<Server>> {
    // Asking for IPVS would load it.
    if !ipvs::is_loaded() {
        return Ok(Vec::new());
    }
    let Some(mut handle) = ipvs::IpvsHandle::open()? else { return Ok(Vec::new()) };
    let mut servers = Vec::new();
    for service in handle.virtual_servers().context("list the virtual servers of IPVS")? {
        if let Some(place) = plan::place(&service, device, node_ports) {
            let destinations = handle.destinations(&service)?;
            servers.push(Server { service, place, destinations });
        }
    }
    Ok(servers)
}

/// UDP knows no end of a connection, and a client that keeps on sending would never be done. So its flows begin anew: what conntrack
/// remembers of them is deleted, and their next packets are translated like first ones.
fn forget_flows(gone: &[Server]) -> Result<()> {
    let udp = gone.iter().filter_map(|server| match server.service {
        VirtualServerKey::Address(IpvsProtocol::Udp, address) => Some(address),
        _ => None,
    });
    let udp: HashSet<SocketAddr> = udp.collect();
    for family in netlink::AddressFamily::ALL {
        if !udp.iter().any(|address| address.is_ipv4() == (family == netlink::AddressFamily::V4)) {
            continue;
        }
        let mut flows = Vec::new();
        let mut handle = conntrack::ConntrackHandle::open()?;
        let listed = handle.udp_flows(family, |flow| {
            flows.extend(udp.contains(&flow.original.destination).then_some(flow));
            Ok(())
        });
        listed.and_then(|()| handle.delete(&flows)).context("forget the UDP flows of virtual servers")?;
    }
    Ok(())
}

fn destroy(ipset: &mut ipset::IpsetHandle, name: &str) -> Result<DestroyOutcome> {
    for _ in 1..ATTEMPTS {
        if ipset.destroy(name)? == DestroyOutcome::Destroyed {
            return Ok(DestroyOutcome::Destroyed);
        }
        thread::sleep(PAUSE);
    }
    Ok(ipset.destroy(name)?)
}

fn set_item(family: Family, name: &str) -> Item {
    Item { place: "ipset".to_owned(), family: Some(family), what: format!("set {name}"), count: 1 }
}
