//! Removes our objects while another backend serves the node, without closing connections.
//!
//! IPVS handles every packet of its connections, so a virtual server with TCP or SCTP connections is kept at weight 0
//! until they have ended, with the device that delivers its packets, the sets that identify it, and the chain that
//! masquerades by these sets. UDP has no end of a connection: the conntrack entries of its flows are deleted, so that
//! their next packets are translated by the other backend.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result};
use netlink::{
    conntrack::ConntrackHandle,
    ipvs::{Destination, VirtualServerKey},
    rtnl,
};
use proto::model::{IpFamily, Protocol};

use super::{Worker, rules};
use crate::{
    kernel::Ours,
    object::{Object, Value, protocol},
    plan::Objects,
    set::{SetContent, SetId},
};

/// VIPs and node ports of virtual servers for UDP that are deleted.
#[derive(Debug, Default)]
struct UdpVips {
    sockets: HashSet<SocketAddr>,
    node_ports: HashSet<(IpFamily, u16)>,
}

// === impl Worker ===

impl Worker {
    /// See [`crate::retire`].
    pub(crate) fn retire(&mut self, ours: &Ours) -> Result<u64> {
        let objects = self.list(ours)?.objects;
        // New packets of this node get marks before the other backend translates them.
        rules::remove_marks().context("remove our rules")?;

        let mut busy = BTreeSet::new();
        let mut idle = Vec::new();
        let mut connections = 0;
        for server in objects.keys().filter_map(Object::server) {
            let destinations = self.ipvs()?.destinations(&server)?;
            match count(&server, &destinations) {
                0 => idle.push(server),
                count => {
                    connections += count;
                    self.ipvs()?.quiesce(&server, &destinations)?;
                    busy.insert(server);
                }
            }
        }

        // Flows first, because without a virtual server the node itself would reject their next packets.
        UdpVips::of(&objects, &idle).delete_flows()?;
        for server in &idle {
            self.ipvs()?.delete_virtual_server(server)?;
        }

        if busy.is_empty() {
            rules::remove().context("remove our rules")?;
        }
        self.remove_addresses(ours, &needed_addresses(&objects, &busy), busy.is_empty())?;
        // Last, because they tell whose the device is.
        if busy.is_empty() {
            for set in SetId::all() {
                self.ipset.destroy_released(set.name())?;
            }
        }
        Ok(connections)
    }

    /// Removes the addresses that no virtual server needs, and the device if none needs any.
    fn remove_addresses(&mut self, ours: &Ours, needed: &HashSet<IpAddr>, is_idle: bool) -> Result<()> {
        let (excluded, own): (Vec<_>, Vec<_>) =
            self.addresses()?.into_iter().partition(|address| ours.excludes(address));
        let Some(device) = self.own_device()? else { return Ok(()) };
        if is_idle && excluded.is_empty() {
            return Ok(rtnl::delete_link(&device.name)?);
        }
        let unneeded: Vec<_> = own.into_iter().filter(|address| !needed.contains(address)).collect();
        rtnl::delete_addresses(&device, &unneeded).context("remove VIPs from our device")?;
        Ok(())
    }
}

/// The connections that the deletion of a virtual server would close. A connection that one side has closed counts as
/// inactive, but may still carry data.
fn count(server: &VirtualServerKey, destinations: &[Destination]) -> u64 {
    if protocol(server) == Some(Protocol::Udp) {
        return 0;
    }
    destinations.iter().map(|of| u64::from(of.active) + u64::from(of.inactive)).sum()
}

/// The VIPs that lead to these virtual servers.
fn needed_addresses(objects: &Objects, servers: &BTreeSet<VirtualServerKey>) -> HashSet<IpAddr> {
    let mut addresses = HashSet::new();
    for server in servers {
        if let VirtualServerKey::Address(_, address) = server {
            addresses.insert(address.ip());
        }
    }
    for (set, entry) in entries(objects, |server| servers.contains(server)) {
        if !set.has_node_ports() {
            addresses.extend(entry.ip);
        }
    }
    addresses
}

/// The set entries that lead to virtual servers with marks.
fn entries<'a>(
    objects: &'a Objects,
    is_wanted: impl Fn(&VirtualServerKey) -> bool + 'a,
) -> impl Iterator<Item = (SetId, netlink::ipset::IpsetEntry)> + 'a {
    objects.iter().filter_map(move |(object, value)| match (object, value) {
        (Object::SetEntry(set, entry), Value::Mark(mark)) => {
            let server = VirtualServerKey::FwMark(set.family, mark.raw());
            is_wanted(&server).then_some((*set, *entry))
        }
        _ => None,
    })
}

// === impl UdpVips ===

impl UdpVips {
    /// The VIPs and node ports of virtual servers that are deleted next.
    fn of(objects: &Objects, deleted: &[VirtualServerKey]) -> Self {
        let mut vips = Self::default();
        for server in deleted {
            if let VirtualServerKey::Address(Protocol::Udp, address) = server {
                vips.sockets.insert(*address);
            }
        }

        for (set, entry) in entries(objects, |server| deleted.contains(server)) {
            let Some(port) = entry.port else { continue };
            if entry.protocol != Some(Protocol::Udp.number()) {
                continue;
            }
            if set.has_node_ports() {
                vips.node_ports.insert((set.family, port));
            } else if let Some(ip) = entry.ip {
                vips.sockets.insert(SocketAddr::new(ip, port));
            }
        }
        vips
    }

    /// Deletes the conntrack entries of flows to them.
    fn delete_flows(&self) -> Result<()> {
        if self.sockets.is_empty() && self.node_ports.is_empty() {
            return Ok(());
        }
        let deleted = ConntrackHandle::open()?.delete_udp(|to| {
            self.sockets.contains(&to) || self.node_ports.contains(&(IpFamily::of(&to.ip()), to.port()))
        });
        deleted.context("delete the conntrack entries of deleted virtual servers")
    }
}

// === impl SetId ===

impl SetId {
    fn has_node_ports(self) -> bool {
        matches!(self.content, SetContent::NodePorts | SetContent::NodePortsInside)
    }
}
