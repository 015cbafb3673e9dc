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
use netlink::ipvs::{self, PERSISTENT, SCHED_FALLBACK, SCHED_PORT, Scheduling};
use proto::model::{IpFamily, IpvsScheduler, Pool, Protocol, ServicePort, TrafficPolicy};

use crate::{
    mark::{Mark, MarkKind},
    object::{Object, Value, Weight},
    set::{self, SetContent, SetId},
    settings::Settings,
};

/// The most destinations of the persistent virtual servers at external VIPs and node ports of one Service. A virtual
/// server has destinations of its own, so their number is that of the VIPs times that of the endpoints. 20 VIPs with
/// 5,000 endpoints each fit.
pub(crate) const MAX_PERSISTENT_DESTINATIONS: usize = 100_000;

/// The most entries for the source ranges of one Service. ipset has no entry of an address that leads to a shared list
/// of ranges, so their number is that of the load-balancer IPs times that of the ranges. The limits of the frontend
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
    /// How many load-balancer IPs of each of its ports and each family have their ranges. The others are closed.
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
        let mut external = Vec::new();
        for (vip, kind) in vips(&service.port, family) {
            if !owned(family, &vip) {
                continue;
            }
            port.desired.vips.push((family, vip));
            if let Vip::AddressPort { address, .. } = vip
                && context.settings.exclude.iter().any(|range| range.contains(&address))
            {
                port.desired.excluded.push(address);
                continue;
            }
            port.address(vip, kind);
            match kind {
                VipKind::ClusterIp => port.cluster_ip(vip),
                VipKind::External | VipKind::NodePort => external.push(vip),
            }
        }
        if !external.is_empty() {
            port.external(&external);
            if let Some(excess) = context.excess.destinations.filter(|_| service.port.affinity_seconds.is_some()) {
                port.desired.degraded = Some(format!(
                    "spec.sessionAffinity: at external IPs and node ports, a hash of the client address selects the \
                     endpoint, because the addresses times the endpoints of the Service are {excess}, more than \
                     {MAX_PERSISTENT_DESTINATIONS}: use fewer addresses, endpoints or ports"
                ));
            }
        }
        if port.desired.vips.iter().any(|(of, _)| *of == family) {
            port.hairpin();
            port.health_checks();
        }
    }
    if let Some(SourceExcess { entries, open_ips }) = context.excess.sources.filter(|_| has_sources(&desired)) {
        let reason = format!(
            "spec.loadBalancerSourceRanges: all but {open_ips} load-balancer IPs of each IP family are closed, because \
             the addresses times the ranges of the Service, over all its ports, are {entries}, more than \
             {MAX_SOURCE_ENTRIES}: use fewer addresses, ranges or ports"
        );
        desired.degraded = Some(desired.degraded.map_or_else(|| reason.clone(), |other| format!("{other}; {reason}")));
    }
    desired
}

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
    let (mut destinations, mut entries, mut per_ip) = (0, 0, 0);
    for service in ports {
        destinations += persistent_destinations(service, node_ports);
        let port = &service.port;
        for family in IpFamily::ALL {
            let mut ips = port.load_balancer_ips.iter().filter(|ip| IpFamily::of(ip) == family);
            let Some(first) = ips.next() else { continue };
            let ranges = allowed_sources(port, *first, node).map_or(0, |ranges| ranges.len());
            entries += ranges * (1 + ips.count());
            per_ip += ranges;
        }
    }
    let sources = SourceExcess { entries, open_ips: MAX_SOURCE_ENTRIES.checked_div(per_ip).unwrap_or_default() };
    Excess {
        destinations: Some(destinations).filter(|count| *count > MAX_PERSISTENT_DESTINATIONS),
        sources: Some(sources).filter(|sources| sources.entries > MAX_SOURCE_ENTRIES),
    }
}

/// The destinations of the persistent virtual servers at the external VIPs and node ports of a service port.
fn persistent_destinations(service: &ServicePortState, node_ports: &[IpAddr]) -> usize {
    let port = &service.port;
    if port.affinity_seconds.is_none() {
        return 0;
    }
    let destinations = |family| {
        let of_family = |addresses: &[IpAddr]| addresses.iter().filter(|ip| IpFamily::of(ip) == family).count();
        let node_ports = if port.node_port.is_some() { of_family(node_ports) } else { 0 };
        let pool = match port.external_policy {
            TrafficPolicy::Cluster => &service.cluster[family],
            TrafficPolicy::Local => &service.local[family],
        };
        (of_family(&port.external_ips) + of_family(&port.load_balancer_ips) + node_ports)
            * (pool.len() + service.established[family].len())
    };
    IpFamily::ALL.into_iter().map(destinations).sum()
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
            let ranges = if self.is_open(address) { ranges } else { Vec::new() };
            for range in ranges {
                let source = set::source(address, protocol, port, &range);
                self.add(self.entry(SetContent::Sources, source), Value::Plain);
            }
        }
    }

    /// Whether a load-balancer IP gets its source ranges, in sorted order: the same ones on each node.
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
        let (port, protocol) = (port.get(), Protocol::Tcp);
        self.mark_packets(SetContent::NodePorts, Vip::NodePort { port, protocol }, Mark::HEALTH_CHECK);
        for address in load_balancer_ips.iter().copied() {
            let is_excluded = self.context.settings.exclude.iter().any(|range| range.contains(&address));
            if IpFamily::of(&address) == self.family && !is_excluded {
                self.mark_packets(SetContent::Vips, Vip::AddressPort { address, port, protocol }, Mark::HEALTH_CHECK);
            }
        }
    }

    fn external(&mut self, vips: &[Vip]) {
        let service = self.service;
        let (cluster, local) = (&service.cluster[self.family], &service.local[self.family]);
        let (outside, inside) = match service.port.external_policy {
            TrafficPolicy::Cluster => (self.marked(MarkKind::External, cluster, vips), None),
            TrafficPolicy::Local => {
                let outside = self.marked(MarkKind::Local, local, vips);
                (outside, Some(self.marked(MarkKind::Inside, cluster, vips)))
            }
        };
        for vip in vips {
            let (all, inside_set) = match vip {
                Vip::NodePort { .. } => (SetContent::NodePorts, SetContent::NodePortsInside),
                Vip::AddressPort { .. } | Vip::Address(_) => (SetContent::Vips, SetContent::VipsInside),
            };
            self.mark_packets(all, *vip, outside);
            // The rules look up the set of pods and this node last.
            if let Some(inside) = inside.filter(|inside| *inside != outside) {
                self.mark_packets(inside_set, *vip, inside);
            }
        }
    }

    /// Adds the virtual servers of this pool and returns the mark that selects them; a verdict if the pool is empty.
    ///
    /// A persistent virtual server for a mark does not translate ports (`ip_vs_sched_persist`), so with session
    /// affinity there is one at the address of each VIP. There cannot be a second one there for pods and this node: for
    /// them a hash of the source address selects the destination. It does for all clients of a Service that would need
    /// too many destinations.
    fn marked(&mut self, kind: MarkKind, pool: &Pool, vips: &[Vip]) -> Mark {
        if pool.is_empty() {
            return self.verdict();
        }
        let protocol = self.service.port.key.protocol;
        let has_affinity = self.service.port.affinity_seconds.is_some();
        if has_affinity && kind != MarkKind::Inside && self.context.excess.destinations.is_none() {
            let addresses: Vec<_> = vips.iter().flat_map(|vip| self.sockets(*vip)).collect();
            for address in addresses {
                self.server(ipvs::VirtualServerKey::Address(protocol, address), pool, self.scheduling());
            }
            return Mark::by_address(kind);
        }
        let scheduling = match has_affinity {
            // Without the flag a client whose hash leads to a draining destination is refused.
            true => Scheduling { scheduler: "mh".into(), flags: SCHED_FALLBACK, timeout: 0 },
            false => self.scheduling(),
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
                let addresses = self.context.node_ports.iter().copied();
                let addresses = addresses.filter(|address| IpFamily::of(address) == self.family);
                addresses.map(|address| SocketAddr::new(address, port)).collect()
            }
            Vip::Address(_) => Vec::new(),
        }
    }

    fn server(&mut self, server: ipvs::VirtualServerKey, pool: &Pool, scheduling: Scheduling) {
        if pool.is_empty() {
            return;
        }
        self.add(Object::Server(server), Value::Scheduling(scheduling));
        let established = &self.service.established[self.family];
        let established = established.iter().filter(|endpoint| !pool.contains(endpoint));
        let weights = pool.iter().map(|endpoint| (endpoint, 1)).chain(established.map(|endpoint| (endpoint, 0)));
        for (endpoint, weight) in weights {
            let address = SocketAddr::new(endpoint.address, endpoint.port.get());
            self.add(Object::Destination(server, address), Value::Weight(Weight::Of(weight)));
        }
    }

    fn scheduling(&self) -> Scheduling {
        let port = &self.service.port;
        let scheduler = self.context.settings.scheduler;
        let affinity = port.affinity_seconds;
        // Always: otherwise they refuse clients whose hash leads to a draining destination.
        let fallback = matches!(scheduler, IpvsScheduler::Sh(_) | IpvsScheduler::Mh(_));
        let flags =
            [(fallback, SCHED_FALLBACK), (scheduler.flags().port, SCHED_PORT), (affinity.is_some(), PERSISTENT)];
        Scheduling {
            scheduler: scheduler.name().into(),
            flags: flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag),
            timeout: affinity.map_or(0, std::num::NonZeroU32::get),
        }
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

    fn mark_packets(&mut self, content: SetContent, vip: Vip, mark: Mark) {
        for entry in set::vip_entries(&vip, self.family) {
            self.add(self.entry(content, entry), Value::Mark(mark));
        }
    }

    fn entry(&self, content: SetContent, entry: netlink::ipset::IpsetEntry) -> Object {
        Object::SetEntry(SetId { content, family: self.family }, entry)
    }

    fn add(&mut self, object: Object, value: Value) {
        self.desired.objects.push((object, value));
    }
}
