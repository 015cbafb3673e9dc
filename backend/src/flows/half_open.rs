//! Which half-open TCP connections are deleted after a change of their service port.
//!
//! A connection whose SYN has not been answered is half-open: the SYN is repeated, to the same endpoint or, if it is
//! older than the VIP, to the address itself. Half-open connections to endpoints that departed, and those that are not
//! translated, are deleted, so that the next SYN is translated anew.
//!
//! ```text
//!   service ports that were programmed, endpoints that departed ──▶ connections without an answer
//!                      GRACE_PERIOD later: the same ones, still without ──▶ deleted
//! ```
//!
//! The endpoint of a connection may terminate, and be about to answer. So only a connection is deleted that has no
//! answer for [`GRACE_PERIOD`], which takes longer than any answer within a cluster. An answer that comes later is
//! rejected by the client, whose next SYN goes to another endpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use netlink::conntrack::Flow;
use proto::model::{Endpoint, IpFamily, PerFamily, ServicePortKey};

use super::{
    rest::Rest,
    table::FlowTable,
    vips::{FlowVips, PassLimit, vips_of},
};
use crate::{NodeState, ServicePortState, dataplane::Vip};

/// How long a connection is half-open before it is deleted. A client repeats its SYN after a second.
pub(super) const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// The rest after a pass: passes take 0.8 % of a core, so that the thread needs no more than 1 %. They take more if the
/// table is so large that one takes more than 56 ms, because a client repeats its SYN after 1, 3 and 7 s.
pub(super) const REST: Rest = Rest { factor: 124, shortest: Duration::ZERO, longest: Duration::from_secs(7) };

/// The most endpoints that departed and are remembered of a service port: it may replace its endpoints without a pause.
pub(super) const MAX_DEPARTED: usize = 1024;

/// TCP service ports that lost endpoints or changed their VIPs, with the endpoints that departed. Other changes mislead
/// no connection.
pub(super) type ChangedPorts = BTreeMap<ServicePortKey, BTreeSet<Endpoint>>;

/// The TCP service ports that were programmed since the last pass over the connections, and the newest state.
#[derive(Debug)]
pub(super) struct HalfOpenPorts {
    pub(super) ports: ChangedPorts,
    pub(super) state: NodeState,
}

/// The endpoints to which half-open connections to a VIP must not lead any more.
#[derive(Clone, Debug)]
struct HalfOpenTarget {
    namespace: Arc<str>,
    departed: Arc<BTreeSet<Endpoint>>,
}

impl HalfOpenPorts {
    /// Deletes the connections of both families that are still half-open after `rest`, which waits for the given time;
    /// none if it returns false. Returns how many connections there were. Blocks.
    pub(super) fn clean_up(
        &self,
        table: &impl FlowTable,
        node_addresses: &[IpAddr],
        rest: impl FnOnce(Duration) -> bool,
    ) -> Result<usize> {
        let found = self.find(table, node_addresses)?;
        if found.is_empty() || !rest(GRACE_PERIOD) {
            return Ok(0);
        }
        // A connection that was answered meanwhile has changed, and stays.
        Ok(table.delete_unchanged(&found)?)
    }

    fn find(&self, table: &impl FlowTable, node_addresses: &[IpAddr]) -> Result<Vec<Flow>> {
        let mut vips = self.vips(node_addresses);
        let addresses = table.addresses().context("cannot list the node's addresses")?;
        let mut found = Vec::new();
        let mut limit = PassLimit::default();
        for family in IpFamily::ALL {
            let vips = &mut vips[family];
            if vips.is_empty() {
                continue;
            }
            vips.add_addresses(&addresses);
            vips.prefer_vips(&self.state);

            let visited = table.visit_half_open(family, &mut |flow| {
                if let Some(target) = vips.get(&flow)
                    && target.is_misleading(&flow)
                    && limit.admits(&target.namespace)
                {
                    found.push(flow);
                }
                Ok(())
            });
            visited.with_context(|| format!("{family} connections"))?;
        }
        Ok(found)
    }

    fn vips(&self, node_addresses: &[IpAddr]) -> PerFamily<FlowVips<HalfOpenTarget>> {
        let Self { ports, state } = self;
        let mut both = FlowVips::<HalfOpenTarget>::at(node_addresses);
        for (key, departed) in ports {
            let Some(service) = state.service_port(key) else { continue };
            // Some endpoints may have returned.
            let departed = departed.iter().filter(|endpoint| !service.has_endpoint(endpoint)).copied();
            let target = HalfOpenTarget { namespace: key.namespace.clone(), departed: Arc::new(departed.collect()) };

            // A connection to an endpoint at the VIP itself looks as if it were not translated.
            let is_without_endpoint = |vip: &Vip| !has_endpoint_at(service, vip, &state.node().addresses);
            for family in IpFamily::ALL {
                both[family].add(vips_of(service, family).into_iter().filter(is_without_endpoint), &target);
            }
        }
        both
    }
}

impl HalfOpenTarget {
    /// Whether the SYNs of a half-open connection to the VIP reach an endpoint that departed, or are not translated
    /// because the connection is older than the VIP.
    fn is_misleading(&self, flow: &Flow) -> bool {
        let source = flow.reply.source;
        let is_untranslated = source == flow.original.destination;
        is_untranslated || endpoint_at(source).is_some_and(|endpoint| self.departed.contains(&endpoint))
    }
}

/// Whether the service port has an endpoint with the address and port of its own VIP.
fn has_endpoint_at(service: &ServicePortState, vip: &Vip, node_addresses: &[IpAddr]) -> bool {
    let has = |address: IpAddr, port: u16| {
        endpoint_at(SocketAddr::new(address, port)).is_some_and(|endpoint| service.has_endpoint(&endpoint))
    };
    match *vip {
        Vip::AddressPort { address, port, .. } => has(address, port),
        Vip::NodePort { port, .. } => node_addresses.iter().any(|address| has(*address, port)),
        Vip::Address(_) => false,
    }
}

/// The endpoint from which replies come.
pub(super) fn endpoint_at(source: SocketAddr) -> Option<Endpoint> {
    Some(Endpoint::new(source.ip(), NonZeroU16::new(source.port())?))
}

#[cfg(test)]
mod tests;
