//! Which half-open TCP connections are deleted after a change of their service port.
//!
//! ```text
//!   changes ──▶ ChangedPorts: endpoints that departed ──programmed──▶ HalfOpenPorts: VIPs, endpoints that departed
//!                                                                         │ connections without an answer
//!                                                      GRACE later: the same ones, still without ──▶ deleted
//! ```
//!
//! The endpoint of a connection may terminate, and be about to answer. So only a connection is deleted that has no
//! answer for [`GRACE`], which takes longer than any answer within a cluster. An answer that comes later is rejected by
//! the client, whose next SYN goes to another endpoint.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use netlink::{AddressFamily, conntrack::Flow};
use proto::{
    model::{Endpoint, IpFamily, PerFamily, Protocol, ServicePortKey},
    state::ServicePortChange,
};

use super::{
    udp::{FlowVips, vips_of},
    worker::FlowTable,
};
use crate::{NodeState, ServicePortState, dataplane::Vip};

/// How long a connection is half-open before it is deleted. A client repeats its SYN after a second.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// The most connections that are deleted together: to Services of a namespace, and in all. Others wait for the next
/// change, or until their clients give up.
const MAX_OF_NAMESPACE: usize = 1024;
const MAX: usize = 4096;

/// The most endpoints that are remembered of a service port.
const MAX_DEPARTED: usize = 1024;

/// The TCP service ports that lost endpoints or changed their VIPs, with the endpoints that departed, until they are
/// programmed. Other changes mislead no connection.
#[derive(Debug, Default)]
pub(super) struct ChangedPorts(BTreeMap<ServicePortKey, BTreeSet<Endpoint>>);

/// The TCP service ports that were programmed since the last pass over the connections.
#[derive(Debug, Default)]
pub(super) struct HalfOpenPorts(BTreeMap<ServicePortKey, HalfOpenPort>);

/// What decides about the half-open connections of one service port.
#[derive(Debug, Default)]
struct HalfOpenPort {
    vips: PerFamily<Vec<Vip>>,
    departed: Arc<BTreeSet<SocketAddr>>,
}

/// What is compared with the connections to a VIP.
#[derive(Clone, Debug)]
struct HalfOpenTarget {
    namespace: Arc<str>,
    departed: Arc<BTreeSet<SocketAddr>>,
}

/// The VIPs in one family.
type HalfOpenVips = FlowVips<HalfOpenTarget>;

// === impl ChangedPorts ===

impl ChangedPorts {
    /// Records a change that is about to be programmed, if it may mislead connections.
    pub(super) fn record(&mut self, change: &ServicePortChange<'_>) {
        let ServicePortChange { key, before, after } = change;
        let departed = change.departed().map(|(_, departed)| departed).unwrap_or_default();
        let vips = |service: Option<&ServicePortState>| {
            service.map(|service| PerFamily::from_fn(|family| vips_of(service, family)))
        };
        if !departed.is_empty() || vips(*before) != vips(*after) {
            self.add(key, departed);
        }
    }

    fn add(&mut self, key: &ServicePortKey, departed: Vec<Endpoint>) {
        if key.protocol != Protocol::Tcp {
            return;
        }
        let known = self.0.entry(key.clone()).or_default();
        let room = MAX_DEPARTED.saturating_sub(known.len());
        known.extend(departed.into_iter().take(room).map(|endpoint| Endpoint { terminating: false, ..endpoint }));
    }

    /// Takes those that are programmed.
    pub(super) fn programmed(&mut self, state: &NodeState, failed: &BTreeSet<ServicePortKey>) -> HalfOpenPorts {
        let programmed = self.0.extract_if(.., |key, _| !failed.contains(key));
        let port = |(key, departed): (ServicePortKey, _)| {
            let service = state.service_port(&key)?;
            Some((key, HalfOpenPort::new(service, &departed, &state.node().addresses)))
        };
        HalfOpenPorts(programmed.filter_map(port).collect())
    }
}

// === impl HalfOpenPorts ===

impl HalfOpenPorts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what was programmed later.
    pub(super) fn update(&mut self, later: Self) {
        for (key, HalfOpenPort { vips, departed }) in later.0 {
            let known = self.0.entry(key).or_default();
            known.vips = vips;
            let room = MAX_DEPARTED.saturating_sub(known.departed.len());
            Arc::make_mut(&mut known.departed).extend(departed.iter().take(room).copied());
        }
    }

    /// Forgets endpoints that have returned since.
    pub(super) fn retain_departed(&mut self, state: &NodeState) {
        for (key, HalfOpenPort { departed, .. }) in &mut self.0 {
            let Some(service) = state.service_port(key) else { continue };
            let has_departed = |address: &SocketAddr| {
                let port = NonZeroU16::new(address.port());
                port.is_none_or(|port| !service.has_endpoint(&Endpoint::new(address.ip(), port)))
            };
            Arc::make_mut(departed).retain(has_departed);
        }
    }

    fn vips(&self, node_addresses: &[IpAddr]) -> PerFamily<HalfOpenVips> {
        let of_port = |(key, HalfOpenPort { vips, departed }): (&ServicePortKey, &HalfOpenPort)| {
            let target = HalfOpenTarget { namespace: key.namespace.clone(), departed: departed.clone() };
            PerFamily::from_fn(|family| (vips[family].clone(), target.clone()))
        };
        let ports: Vec<_> = self.0.iter().map(of_port).collect();
        HalfOpenVips::of_service_ports(ports.iter(), node_addresses)
    }

    /// Deletes the connections of both families that `rest`, which waits for the given time, leaves half-open. Stops if
    /// that returns false. Returns how many there were. Blocks.
    pub(super) fn clean_up(
        &self,
        table: &impl FlowTable,
        node_addresses: &[IpAddr],
        rest: impl FnOnce(Duration) -> bool,
    ) -> Result<usize> {
        let found = self.find(table, node_addresses)?;
        if found.is_empty() || !rest(GRACE) {
            return Ok(0);
        }
        // None that was answered meanwhile.
        Ok(table.delete_unchanged(&found)?)
    }

    fn find(&self, table: &impl FlowTable, node_addresses: &[IpAddr]) -> Result<Vec<Flow>> {
        let mut vips = self.vips(node_addresses);
        let addresses: HashSet<_> = table.addresses().context("cannot list the node's addresses")?;
        let mut found = Vec::new();
        let mut of_namespace = BTreeMap::<_, usize>::new();
        for (family, conntrack_family) in IpFamily::ALL.into_iter().zip(AddressFamily::ALL) {
            let vips = &mut vips[family];
            if vips.is_empty() {
                continue;
            }
            vips.add_addresses(&addresses);
            let visited = table.visit_half_open(conntrack_family, &mut |flow| {
                let Some(HalfOpenTarget { namespace, .. }) = vips.misleading(&flow) else { return Ok(()) };
                let count = of_namespace.entry(namespace.clone()).or_default();
                if found.len() < MAX && *count < MAX_OF_NAMESPACE {
                    *count += 1;
                    found.push(flow);
                }
                Ok(())
            });
            visited.with_context(|| format!("{family} connections"))?;
        }
        Ok(found)
    }
}

// === impl HalfOpenPort ===

impl HalfOpenPort {
    fn new(service: &ServicePortState, departed: &BTreeSet<Endpoint>, node_addresses: &[IpAddr]) -> Self {
        let is_endpoint = |address: IpAddr, port: u16| {
            NonZeroU16::new(port).is_some_and(|port| service.has_endpoint(&Endpoint::new(address, port)))
        };
        // A connection to an endpoint at the VIP itself looks as if it were not translated.
        let is_endpoint_at = |vip: &Vip| match *vip {
            Vip::AddressPort { address, port, .. } => is_endpoint(address, port),
            Vip::NodePort { port, .. } => node_addresses.iter().any(|address| is_endpoint(*address, port)),
            Vip::Address(_) => false,
        };
        let of_family = |family| vips_of(service, family).into_iter();
        let departed = departed.iter().filter(|endpoint| !service.has_endpoint(endpoint));
        Self {
            vips: PerFamily::from_fn(|family| of_family(family).filter(|vip| !is_endpoint_at(vip)).collect()),
            departed: Arc::new(
                departed.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect(),
            ),
        }
    }
}

// === impl HalfOpenVips ===

impl HalfOpenVips {
    /// That of the VIP to which the SYNs of a connection are sent, if they reach an endpoint that departed, or are not
    /// translated because the connection is older than the VIP.
    fn misleading(&self, flow: &Flow) -> Option<&HalfOpenTarget> {
        let source = flow.reply.source;
        let target = self.get(flow).filter(|_| flow.is_half_open)?;
        (source == flow.original.destination || target.departed.contains(&source)).then_some(target)
    }
}

/// Deletes the half-open connections that a change misleads, without waiting for late answers. Returns their number.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn delete_half_open(before: &NodeState, after: &NodeState) -> Result<usize> {
    let mut changed = ChangedPorts::default();
    before.diff(after).for_each(|change| changed.record(&change));
    let ports = changed.programmed(after, &BTreeSet::new());
    let table = super::worker::KernelFlowTable(crate::dataplane::NodePortAddresses::all());
    ports.clean_up(&table, &after.node().addresses, |_| true)
}

#[cfg(test)]
mod tests;
