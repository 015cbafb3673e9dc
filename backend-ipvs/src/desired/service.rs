//! The objects of a service port in one address family.
//!
//! ```text
//!   cluster IP   VIPS ─▶ "cluster IP" ─▶ virtual server at its address ─▶ cluster or local pool, by internal policy
//!   other VIPs   VIPS, NODE-PORTS ─▶ mark ─▶ virtual server for the mark ─▶ cluster pool, or local pool (policy Local)
//!                (with session affinity: a virtual server at each address, up to MAX_PERSISTENT_DESTINATIONS)
//!                VIPS-INSIDE, NODE-PORTS-INSIDE: another mark under policy Local ─▶ cluster pool
//!   without an endpoint: the mark is a verdict, and there is no virtual server
//!   health-check node port, at load-balancer IPs too: the mark accepts
//! ```

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use backend::{
    ServicePortState,
    dataplane::{Vip, VipKind, allowed_sources, vips},
};
use netlink::{
    ipset::IpsetEntry,
    ipvs::{self, PERSISTENT, SCHED_FALLBACK, SCHED_PORT, Scheduling},
};
use proto::model::{Endpoint, IpFamily, IpvsScheduler, Pool, Protocol, ServicePort, TrafficPolicy};

use crate::{
    mark::{Mark, MarkKind},
    object::{Object, Value, Weight},
    set::{self, SetContent, SetId},
    settings::Settings,
};

/// The most destinations of the persistent virtual servers at external VIPs and node ports of one Service. Each virtual
/// server has its own destinations, so their number is the number of VIPs times the number of endpoints. 20 VIPs with
/// 5,000 endpoints each fit.
pub(crate) const MAX_PERSISTENT_DESTINATIONS: usize = 100_000;

/// The most entries for the source ranges of one Service. ipset has no entry of an address that leads to a shared list
/// of ranges, so their number is the number of load-balancer IPs times the number of ranges. The limits of the frontend
/// (50,000 ports times ranges) leave two load-balancer IPs of each Service open.
pub(crate) const MAX_SOURCE_ENTRIES: usize = 100_000;

/// The desired objects of a service port, in both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// The VIPs that this service port owns.
    pub(crate) vips: Vec<(IpFamily, Vip)>,
    pub(crate) objects: Vec<(Object, Value)>,
    /// VIPs that are not programmed because `--ipvs-exclude-cidrs` contains them.
    pub(crate) excluded: Vec<IpAddr>,
    /// Why session affinity is approximated, or load-balancer IPs are closed.
    pub(crate) degraded: Option<String>,
}

/// Facts that apply to all service ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    /// The node's own addresses.
    pub(crate) node: &'a [IpAddr],
    /// The addresses of the node's other devices.
    pub(crate) elsewhere: &'a HashSet<IpAddr>,
    /// The addresses at which node ports are served.
    pub(crate) node_ports: &'a [IpAddr],
    /// How far the Service exceeds limits.
    pub(crate) excess: Excess,
}

/// How far a Service exceeds limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The destinations that it would need at external VIPs, if they are more than [`MAX_PERSISTENT_DESTINATIONS`].
    pub(crate) destinations: Option<usize>,
    pub(crate) sources: Option<SourceExcess>,
}

/// A Service that would need more than [`MAX_SOURCE_ENTRIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceExcess {
    /// The entries that it would need.
    entries: usize,
    /// How many load-balancer IPs of each of its ports and each family have their ranges. All others are closed.
    open_ips: usize,
}

/// Collects the objects of a service port in one family.
struct Port<'a> {
    service: &'a ServicePortState,
    family: IpFamily,
    context: Context<'a>,
    /// The id in its marks.
    id: u32,
    desired: &'a mut Desired,
}

/// The objects of a service port. `owned`: whether this service port owns a VIP.
pub(crate) fn desired(
    service: &ServicePortState,
    context: Context<'_>,
    id: u32,
    owned: impl Fn(IpFamily, &Vip) -> bool,
) -> Desired {
    let mut desired = Desired::default();
    for family in IpFamily::ALL {
        let mut port = Port { service, family, context, id, desired: &mut desired };
        port.collect(&owned);
    }

    if let Some(SourceExcess { entries, open_ips }) = context.excess.sources
        && has_sources(&desired)
    {
        let reason = format!(
            "spec.loadBalancerSourceRanges: all but {open_ips} load-balancer IPs of each IP family are closed, because \
             the addresses times the ranges of the Service, over all its ports, are {entries}, more than \
             {MAX_SOURCE_ENTRIES}: use fewer addresses, ranges or ports"
        );
        desired.degraded = Some(match desired.degraded {
            Some(other) => format!("{other}; {reason}"),
            None => reason,
        });
    }
    desired
}

/// Whether any objects are source ranges.
fn has_sources(desired: &Desired) -> bool {
    let is_source = |object: &Object| matches!(object, Object::SetEntry(set, _) if set.content == SetContent::Sources);
    desired.objects.iter().any(|(object, _)| is_source(object))
}

/// How far a Service with these ports exceeds limits. `node_ports`: the addresses at which node ports are served.
pub(crate) fn excess<'s>(
    ports: impl Iterator<Item = &'s ServicePortState>,
    node: &[IpAddr],
    node_ports: &[IpAddr],
) -> Excess {
    let mut destinations = 0;
    let mut entries = 0;
    let mut entries_per_ip = 0;
    for service in ports {
        destinations += persistent_destinations(service, node_ports);
        let port = &service.port;
        for family in IpFamily::ALL {
            let mut ips = port.load_balancer_ips.iter().filter(|ip| IpFamily::of(ip) == family);
            let Some(first) = ips.next() else { continue };
            let ranges = allowed_sources(port, *first, node).map_or(0, |ranges| ranges.len());
            entries += ranges * (1 + ips.count());
            entries_per_ip += ranges;
        }
    }

    let mut excess = Excess::default();
    if destinations > MAX_PERSISTENT_DESTINATIONS {
        excess.destinations = Some(destinations);
    }
    if entries > MAX_SOURCE_ENTRIES {
        let open_ips = MAX_SOURCE_ENTRIES.checked_div(entries_per_ip).unwrap_or_default();
        excess.sources = Some(SourceExcess { entries, open_ips });
    }
    excess
}

/// The destinations of the persistent virtual servers at the external VIPs and node ports of a service port.
fn persistent_destinations(service: &ServicePortState, node_ports: &[IpAddr]) -> usize {
    let port = &service.port;
    if port.affinity_seconds.is_none() {
        return 0;
    }

    let mut destinations = 0;
    for family in IpFamily::ALL {
        let count = |addresses: &[IpAddr]| addresses.iter().filter(|ip| IpFamily::of(ip) == family).count();
        let node_ports = if port.node_port.is_some() { count(node_ports) } else { 0 };
        let servers = count(&port.external_ips) + count(&port.load_balancer_ips) + node_ports;
        let pool = match port.external_policy {
            TrafficPolicy::Cluster => &service.cluster[family],
            TrafficPolicy::Local => &service.local[family],
        };
        destinations += servers * (pool.len() + service.established[family].len());
    }
    destinations
}

// === impl Context ===

impl Context<'_> {
    /// Whether objects with an address are neither created nor deleted.
    fn excludes(&self, address: IpAddr) -> bool {
        self.settings.exclude.iter().any(|range| range.contains(&address))
    }
}

// === impl Excess ===

impl Excess {
    /// Whether service ports get other objects than with `other`.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let open_ips = |excess: &Self| excess.sources.map(|sources| sources.open_ips);
        self.destinations.is_some() != other.destinations.is_some() || open_ips(self) != open_ips(other)
    }
}

// === impl Port ===

impl Port<'_> {
    /// Adds all objects. `owned`: whether the service port owns a VIP.
    fn collect(&mut self, owned: &impl Fn(IpFamily, &Vip) -> bool) {
        let family = self.family;
        let owned_vips: Vec<_> =
            vips(&self.service.port, family).into_iter().filter(|(vip, _)| owned(family, vip)).collect();
        if owned_vips.is_empty() {
            return;
        }

        let mut external = Vec::new();
        for (vip, kind) in owned_vips {
            self.desired.vips.push((family, vip));
            if let Vip::AddressPort { address, .. } = vip
                && self.context.excludes(address)
            {
                self.desired.excluded.push(address);
                continue;
            }
            self.address(vip, kind);
            match kind {
                VipKind::ClusterIp => self.cluster_ip(vip),
                VipKind::External | VipKind::NodePort => external.push(vip),
            }
        }
        if !external.is_empty() {
            self.external(&external);
        }
        self.hairpin();
        self.health_checks();
    }

    /// The address on our device, unless another device has it, which is sufficient for local delivery.
    fn address(&mut self, vip: Vip, kind: VipKind) {
        let Vip::AddressPort { address, port, protocol } = vip else { return };
        if kind == VipKind::ClusterIp || !self.context.elsewhere.contains(&address) {
            self.add(Object::Address(address), Value::Plain);
            self.add(self.entry(SetContent::Addresses, set::address(address)), Value::Mark(Mark::REJECT));
        }
        if kind == VipKind::External
            && let Some(ranges) = allowed_sources(&self.service.port, address, self.context.node)
        {
            let restricted = set::socket(address, protocol, port);
            self.add(self.entry(SetContent::Restricted, restricted), Value::Plain);
            // Without an entry in the set of sources, the address is closed.
            if self.is_open(address) {
                for range in ranges {
                    let source = set::source(address, protocol, port, &range);
                    self.add(self.entry(SetContent::Sources, source), Value::Plain);
                }
            }
        }
    }

    /// Whether a load-balancer IP gets its source ranges. The first ones in sorted order do, the same on each node.
    fn is_open(&self, address: IpAddr) -> bool {
        let Some(SourceExcess { open_ips, .. }) = self.context.excess.sources else { return true };
        let ips = self.service.port.load_balancer_ips.iter();
        ips.filter(|ip| IpFamily::of(ip) == self.family && **ip < address).count() < open_ips
    }

    fn cluster_ip(&mut self, vip: Vip) {
        let Vip::AddressPort { address, port, protocol } = vip else { return };
        let service = self.service;
        let pool = match service.port.internal_policy {
            TrafficPolicy::Cluster => &service.cluster[self.family],
            TrafficPolicy::Local => &service.local[self.family],
        };

        let mark = if pool.is_empty() { self.verdict() } else { Mark::CLUSTER_IP };
        self.mark_packets(SetContent::Vips, vip, mark);
        let server = ipvs::VirtualServerKey::Address(protocol, SocketAddr::new(address, port));
        self.server(server, pool, self.scheduling());
    }

    /// Lets probes of the health-check node port pass to its listeners.
    fn health_checks(&mut self) {
        let ServicePort { health_check_node_port, load_balancer_ips, cluster_ips, .. } = &self.service.port;
        let (Some(port), Some(_)) = (health_check_node_port, cluster_ips[self.family]) else { return };

        let port = port.get();
        let protocol = Protocol::Tcp;
        self.mark_packets(SetContent::NodePorts, Vip::NodePort { port, protocol }, Mark::HEALTH_CHECK);
        for address in load_balancer_ips.iter().copied() {
            if IpFamily::of(&address) == self.family && !self.context.excludes(address) {
                self.mark_packets(SetContent::Vips, Vip::AddressPort { address, port, protocol }, Mark::HEALTH_CHECK);
            }
        }
    }

    /// The virtual servers of external VIPs and node ports, and the set entries that lead there.
    fn external(&mut self, vips: &[Vip]) {
        let service = self.service;
        let cluster = &service.cluster[self.family];
        let local = &service.local[self.family];
        let (outside, inside) = match service.port.external_policy {
            TrafficPolicy::Cluster => {
                let mark = self.marked(MarkKind::External, cluster, vips);
                (mark, mark)
            }
            TrafficPolicy::Local => {
                let outside = self.marked(MarkKind::Local, local, vips);
                (outside, self.marked(MarkKind::Inside, cluster, vips))
            }
        };

        for vip in vips {
            let (all_sources, inside_sources) = match vip {
                Vip::NodePort { .. } => (SetContent::NodePorts, SetContent::NodePortsInside),
                Vip::AddressPort { .. } | Vip::Address(_) => (SetContent::Vips, SetContent::VipsInside),
            };
            self.mark_packets(all_sources, *vip, outside);
            // The rules look up the set of pods and this node last.
            if inside != outside {
                self.mark_packets(inside_sources, *vip, inside);
            }
        }

        if let Some(excess) = self.context.excess.destinations
            && service.port.affinity_seconds.is_some()
        {
            self.desired.degraded = Some(format!(
                "spec.sessionAffinity: at external IPs and node ports, a hash of the client address selects the \
                 endpoint, because the addresses times the endpoints of the Service are {excess}, more than \
                 {MAX_PERSISTENT_DESTINATIONS}: use fewer addresses, endpoints or ports"
            ));
        }
    }

    /// Adds the virtual servers of this pool and returns the mark that selects them; a verdict if the pool is empty.
    ///
    /// A persistent virtual server for a mark does not translate ports (`ip_vs_sched_persist`), so with session
    /// affinity there is one at the address of each VIP. There cannot be a second one there for pods and this node: for
    /// them a hash of the source address selects the destination. For a Service that would need too many destinations,
    /// the hash does so for all clients.
    fn marked(&mut self, kind: MarkKind, pool: &Pool, vips: &[Vip]) -> Mark {
        if pool.is_empty() {
            return self.verdict();
        }

        let protocol = self.service.port.key.protocol;
        let has_affinity = self.service.port.affinity_seconds.is_some();
        if has_affinity && kind != MarkKind::Inside && self.context.excess.destinations.is_none() {
            let sockets: Vec<_> = vips.iter().flat_map(|vip| self.sockets(*vip)).collect();
            for socket in sockets {
                self.server(ipvs::VirtualServerKey::Address(protocol, socket), pool, self.scheduling());
            }
            return Mark::by_address(kind);
        }

        let scheduling = if has_affinity {
            // Without the flag a client whose hash leads to a draining destination is refused.
            Scheduling { scheduler: "mh".into(), flags: SCHED_FALLBACK, timeout: 0 }
        } else {
            self.scheduling()
        };
        let mark = Mark::new(self.id, protocol, kind);
        self.server(ipvs::VirtualServerKey::FwMark(self.family, mark.raw()), pool, scheduling);
        mark
    }

    /// The addresses and ports at which a VIP is served.
    fn sockets(&self, vip: Vip) -> Vec<SocketAddr> {
        match vip {
            Vip::AddressPort { address, port, .. } => vec![SocketAddr::new(address, port)],
            Vip::NodePort { port, .. } => {
                let of_family = self.context.node_ports.iter().filter(|address| IpFamily::of(address) == self.family);
                of_family.map(|address| SocketAddr::new(*address, port)).collect()
            }
            Vip::Address(_) => Vec::new(),
        }
    }

    /// A virtual server, with destinations for the endpoints of its pool, and for endpoints of established flows.
    fn server(&mut self, server: ipvs::VirtualServerKey, pool: &Pool, scheduling: Scheduling) {
        if pool.is_empty() {
            return;
        }
        self.add(Object::Server(server), Value::Scheduling(scheduling));
        for endpoint in pool.iter() {
            self.destination(server, endpoint, 1);
        }
        let service = self.service;
        for endpoint in service.established[self.family].iter() {
            if !pool.contains(endpoint) {
                self.destination(server, endpoint, 0);
            }
        }
    }

    fn destination(&mut self, server: ipvs::VirtualServerKey, endpoint: &Endpoint, weight: u32) {
        let address = SocketAddr::new(endpoint.address, endpoint.port.get());
        self.add(Object::Destination(server, address), Value::Weight(Weight::Of(weight)));
    }

    fn scheduling(&self) -> Scheduling {
        let scheduler = self.context.settings.scheduler;
        let affinity = self.service.port.affinity_seconds;
        let mut flags = 0;
        // Always: otherwise they refuse clients whose hash leads to a draining destination.
        if matches!(scheduler, IpvsScheduler::Sh(_) | IpvsScheduler::Mh(_)) {
            flags |= SCHED_FALLBACK;
        }
        if scheduler.flags().port {
            flags |= SCHED_PORT;
        }
        if affinity.is_some() {
            flags |= PERSISTENT;
        }
        Scheduling { scheduler: scheduler.name().into(), flags, timeout: affinity.map_or(0, std::num::NonZeroU32::get) }
    }

    /// The verdict for packets to a VIP without endpoint.
    fn verdict(&self) -> Mark {
        if self.service.port.any_endpoints[self.family] { Mark::DROP } else { Mark::REJECT }
    }

    /// Connections of endpoints on this node to themselves.
    fn hairpin(&mut self) {
        let protocol = self.service.port.key.protocol;
        for endpoint in self.service.local[self.family].iter() {
            let entry = set::hairpin(endpoint.address, protocol, endpoint.port.get());
            self.add(self.entry(SetContent::Hairpin, entry), Value::Plain);
        }
    }

    /// Gives packets to a VIP a mark.
    fn mark_packets(&mut self, content: SetContent, vip: Vip, mark: Mark) {
        for entry in set::vip_entries(&vip, self.family) {
            self.add(self.entry(content, entry), Value::Mark(mark));
        }
    }

    fn entry(&self, content: SetContent, entry: IpsetEntry) -> Object {
        Object::SetEntry(SetId { content, family: self.family }, entry)
    }

    fn add(&mut self, object: Object, value: Value) {
        self.desired.objects.push((object, value));
    }
}
