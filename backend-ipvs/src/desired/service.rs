//! What one service port adds in one family.
//!
//! ```text
//!   cluster IP   VIPS ─▶ "cluster IP" ─▶ virtual server at its address ─▶ cluster or local pool, by internal policy
//!   other fronts VIPS, NODE-PORTS ─▶ mark ─▶ virtual server for the mark ─▶ cluster pool; local pool under external policy Local
//!                (with session affinity: a virtual server at each address)
//!                VIPS-INSIDE, NODE-PORTS-INSIDE: another mark under policy Local ─▶ cluster pool
//!   without an endpoint: the mark is a verdict, and there is no virtual server
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
use proto::model::{IpFamily, Pool, SchedulerFlags, TrafficPolicy};

use crate::{
    mark::{Mark, Variant},
    object::{Object, Value, Weight, ipvs_family, ipvs_protocol},
    set::{self, SetContent, SetId},
    settings::Settings,
};

/// What one service port adds, in both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// Those that belong to this service port.
    pub(crate) fronts: Vec<(IpFamily, Vip)>,
    pub(crate) objects: Vec<(Object, Value)>,
    /// VIPs that are left alone, as they lie in ranges that were said to be others'.
    pub(crate) excluded: Vec<IpAddr>,
}

/// What holds for all service ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    /// The node's own addresses.
    pub(crate) node: &'a [IpAddr],
    /// The addresses that other devices of the node have.
    pub(crate) elsewhere: &'a HashSet<IpAddr>,
    /// Those where node ports answer.
    pub(crate) node_ports: &'a [IpAddr],
}

/// A service port in a family.
struct Port<'a> {
    service: &'a ServicePortState,
    family: IpFamily,
    context: Context<'a>,
    /// The number that its marks are made of.
    id: u32,
    desired: &'a mut Desired,
}

/// What a service port adds. `owned`: whether a front is this service port's.
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
        for (front, class) in vips(&service.port, family) {
            if !owned(family, &front) {
                continue;
            }
            port.desired.fronts.push((family, front));
            if let Vip::AddressPort { address, .. } = front
                && port.is_excluded(address)
            {
                port.desired.excluded.push(address);
                continue;
            }
            port.address(front, class);
            match class {
                VipKind::ClusterIp => port.cluster_ip(front),
                VipKind::External | VipKind::NodePort => external.push(front),
            }
        }
        if !external.is_empty() {
            port.external(&external);
        }
        if !port.desired.fronts.is_empty() {
            port.hairpin();
        }
    }
    desired
}

// === impl Port ===

impl Port<'_> {
    /// The address on our device, if it has to be there: packets to one that another device has come up as well.
    fn address(&mut self, front: Vip, class: VipKind) {
        let Vip::AddressPort { address, port, protocol } = front else { return };
        if class == VipKind::ClusterIp || !self.context.elsewhere.contains(&address) {
            self.add(Object::Address(address), Value::Plain);
            self.add(self.entry(SetContent::Addresses, set::address(address)), Value::Mark(Mark::REJECT));
        }
        if class == VipKind::External
            && let Some(ranges) = allowed_sources(&self.service.port, address, self.context.node)
        {
            let vip = set::socket(address, protocol, port);
            self.add(self.entry(SetContent::Restricted, vip), Value::Plain);
            for range in ranges {
                let source = set::source(address, protocol, port, &range);
                self.add(self.entry(SetContent::Sources, source), Value::Plain);
            }
        }
    }

    fn cluster_ip(&mut self, front: Vip) {
        let Vip::AddressPort { address, port, protocol } = front else { return };
        let service = self.service;
        let pool = match service.port.internal_policy {
            TrafficPolicy::Cluster => &service.cluster[self.family],
            TrafficPolicy::Local => &service.local[self.family],
        };
        let mark = if pool.is_empty() { self.verdict() } else { Mark::CLUSTER_IP };
        self.lead(SetContent::Vips, front, mark);
        let server = ipvs::VirtualServerKey::Address(ipvs_protocol(protocol), SocketAddr::new(address, port));
        self.server(server, pool, self.scheduling());
    }

    fn external(&mut self, fronts: &[Vip]) {
        let service = self.service;
        let (cluster, local) = (&service.cluster[self.family], &service.local[self.family]);
        let (outside, inside) = match service.port.external_policy {
            TrafficPolicy::Cluster => (self.marked(Variant::External, cluster, fronts), None),
            TrafficPolicy::Local => {
                let outside = self.marked(Variant::Local, local, fronts);
                (outside, Some(self.marked(Variant::Inside, cluster, fronts)))
            }
        };
        for front in fronts {
            let (all, insiders) = match front {
                Vip::NodePort { .. } => (SetContent::NodePorts, SetContent::NodePortsInside),
                Vip::AddressPort { .. } | Vip::Address(_) => (SetContent::Vips, SetContent::VipsInside),
            };
            self.lead(all, *front, outside);
            // Who is inside is told last.
            if let Some(inside) = inside.filter(|inside| *inside != outside) {
                self.lead(insiders, *front, inside);
            }
        }
    }

    /// The mark that leads to this pool, to which virtual servers are made. A verdict, if the pool is empty.
    ///
    /// A virtual server for a mark that remembers its clients does not translate ports (`ip_vs_sched_persist`): with affinity there is
    /// one at each front's address. There can be no second one for who is inside, whose clients are told apart by a hash.
    fn marked(&mut self, variant: Variant, pool: &Pool, fronts: &[Vip]) -> Mark {
        if pool.is_empty() {
            return self.verdict();
        }
        let protocol = ipvs_protocol(self.service.port.key.protocol);
        let has_affinity = self.service.port.affinity_seconds.is_some();
        if has_affinity && variant != Variant::Inside {
            let addresses: Vec<_> = fronts.iter().flat_map(|front| self.sockets(*front)).collect();
            for address in addresses {
                self.server(ipvs::VirtualServerKey::Address(protocol, address), pool, self.scheduling());
            }
            return Mark::by_address(variant);
        }
        let scheduling = match has_affinity {
            true => Scheduling { scheduler: "mh".into(), flags: 0, timeout: 0 },
            false => self.scheduling(),
        };
        let mark = Mark::new(self.id, protocol, variant);
        self.server(ipvs::VirtualServerKey::FwMark(ipvs_family(self.family), mark.raw()), pool, scheduling);
        mark
    }

    /// The addresses where a front answers.
    fn sockets(&self, front: Vip) -> Vec<SocketAddr> {
        match front {
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
        for endpoint in pool.iter() {
            let address = SocketAddr::new(endpoint.address, endpoint.port.get());
            self.add(Object::Destination(server, address), Value::Weight(Weight::Of(1)));
        }
    }

    fn scheduling(&self) -> Scheduling {
        let port = &self.service.port;
        let scheduler = port.ipvs_scheduler.unwrap_or(self.context.settings.scheduler);
        let affinity = port.affinity_seconds;
        let SchedulerFlags { fallback, port } = scheduler.flags();
        let flags = [(fallback, SCHED_FALLBACK), (port, SCHED_PORT), (affinity.is_some(), PERSISTENT)];
        Scheduling {
            scheduler: scheduler.name().into(),
            flags: flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag),
            timeout: affinity.map_or(0, std::num::NonZeroU32::get),
        }
    }

    /// What becomes of packets that no endpoint is there for.
    fn verdict(&self) -> Mark {
        if self.service.port.any_endpoints[self.family] { Mark::DROP } else { Mark::REJECT }
    }

    /// Those on this node may reach themselves.
    fn hairpin(&mut self) {
        let protocol = self.service.port.key.protocol;
        for endpoint in self.service.local[self.family].iter() {
            let entry = set::hairpin(endpoint.address, protocol, endpoint.port.get());
            self.add(self.entry(SetContent::Hairpin, entry), Value::Plain);
        }
    }

    fn lead(&mut self, content: SetContent, front: Vip, mark: Mark) {
        for entry in set::front(&front, self.family) {
            self.add(self.entry(content, entry), Value::Mark(mark));
        }
    }

    fn entry(&self, content: SetContent, entry: netlink::ipset::IpsetEntry) -> Object {
        Object::SetEntry(SetId { content, family: self.family }, entry)
    }

    fn add(&mut self, object: Object, value: Value) {
        self.desired.objects.push((object, value));
    }

    fn is_excluded(&self, address: IpAddr) -> bool {
        self.context.settings.exclude.iter().any(|range| range.contains(&address))
    }
}
