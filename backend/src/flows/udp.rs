//! Which UDP flows in the conntrack table are stale: they lead to no endpoint of their VIP, or a Service has translated
//! them whose VIP is withdrawn.
//!
//! The kernel chooses an endpoint for the first packet of a flow only, and a UDP flow lasts as long as packets arrive.
//! So a client that keeps its socket still sends to a removed endpoint, or to the address itself if the flow is older
//! than the VIP, until the flow is deleted.
//!
//! ```text
//!   service ports ────▶ UdpVips: VIP ──▶ targets            flow: client ──▶ VIP
//!                               is_stale(flow)  ◀── compare ──    endpoint ──▶ client
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::conntrack::{DELETIONS_PER_SEND, Flow};
use proto::{
    model::{IpFamily, PerFamily, Protocol, ServicePortKey},
    state::ServicePortChange,
};

use super::{
    rest::Rest,
    table::FlowTable,
    vips::{FlowVips, vips_of},
};
use crate::{
    NodeState, ServicePortState,
    dataplane::{Vip, all_vips},
};

/// The number of flows that are listed, which takes some milliseconds, before the thread looks for more urgent work.
pub(super) const FLOWS_PER_SLICE: usize = 4096;

/// The rest after a pass: passes take 4 % of a core, so that the thread needs no more than 5 %. They take more if the
/// table is so large that one takes more than 0.3 s.
pub(super) const REST: Rest = Rest { factor: 24, shortest: Duration::ZERO, longest: Duration::from_secs(7) };

/// Where the flows to a VIP may lead.
#[derive(Clone, Debug)]
pub(super) enum FlowTargets {
    /// To these endpoints, sorted. Shared by all VIPs of a service port.
    Endpoints(Arc<[SocketAddr]>),
    /// To the address itself: no service port has the VIP any more.
    Untranslated,
    /// Anywhere: the kernel may have the service port as it was.
    Unknown,
}

/// The VIPs that service ports have lost, each with the last one that had it.
pub(super) type WithdrawnVips = BTreeMap<(IpFamily, Vip), ServicePortKey>;

/// The VIPs of all UDP service ports in one family, and the withdrawn VIPs.
pub(super) type UdpVips = FlowVips<FlowTargets>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FamilyCleanup {
    pub(super) family: IpFamily,
    pub(super) deleted: usize,
    pub(super) took: Duration,
}

/// The stale flows of a family that are listed and not deleted yet.
struct StaleFlows<'a, T> {
    table: &'a T,
    family: IpFamily,
    /// The addresses of the node that serve node ports.
    addresses: &'a HashSet<IpAddr>,
    /// The VIPs that flows are compared with, in both families.
    vips: PerFamily<UdpVips>,
    flows: Vec<Flow>,
    deleted: usize,
}

impl UdpVips {
    /// The VIPs of the UDP service ports of a state, and the withdrawn VIPs that no other service port has. No flow of
    /// the service ports in `except` is stale. `node_addresses` are the addresses of the Node object that serve node
    /// ports.
    pub(super) fn of(
        state: &NodeState,
        node_addresses: &[IpAddr],
        except: &BTreeSet<ServicePortKey>,
        withdrawn: &WithdrawnVips,
    ) -> PerFamily<Self> {
        let mut both = Self::at(node_addresses);
        for (key, service) in state.service_ports().iter().filter(|(key, _)| key.protocol == Protocol::Udp) {
            for family in IpFamily::ALL {
                let targets = if except.contains(key) {
                    FlowTargets::Unknown
                } else {
                    FlowTargets::Endpoints(allowed(service, family))
                };
                both[family].add(vips_of(service, family), &targets);
            }
        }
        for (family, vip) in withdrawn.keys() {
            both[*family].add([*vip], &FlowTargets::Untranslated);
        }
        both
    }

    /// Whether the flow goes to one of these VIPs and its replies come from none of its endpoints. This includes flows
    /// that are not translated because they are older than the VIP, and all flows of a service port without endpoints.
    ///
    /// Only translated flows to a withdrawn VIP are stale: others belong to the address itself. If that is an address
    /// of the node, a node port with the same number serves it at once.
    pub(super) fn is_stale(&self, flow: &Flow) -> bool {
        let targets = match self.candidates(flow) {
            [Some(FlowTargets::Untranslated), Some(node_port)] => Some(node_port),
            [vip, node_port] => vip.or(node_port),
        };
        targets.is_some_and(|targets| match targets {
            FlowTargets::Endpoints(allowed) => allowed.binary_search(&flow.reply.source).is_err(),
            FlowTargets::Untranslated => flow.reply.source != flow.original.destination,
            FlowTargets::Unknown => false,
        })
    }
}

/// The VIPs that a change takes from a service port.
pub(super) fn lost_vips(change: &ServicePortChange<'_>) -> Vec<(IpFamily, Vip)> {
    let vips = |service: Option<&ServicePortState>| -> BTreeSet<_> {
        service.into_iter().flat_map(|service| all_vips(&service.port)).collect()
    };
    vips(change.before).difference(&vips(change.after)).copied().collect()
}

/// The endpoints of all pools, including terminating ones: a flow that began under another policy may stay.
fn allowed(service: &ServicePortState, family: IpFamily) -> Arc<[SocketAddr]> {
    let endpoints = service.pools().filter(|(_, of, _)| *of == family).flat_map(|(.., pool)| pool.iter());
    let mut all: Vec<_> = endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

/// Deletes the stale flows of both families while the kernel dumps them, so that memory does not grow with their
/// number. `newest` returns the VIPs if they have changed since its last call; it is called again before each deletion,
/// and flows that are not stale any more stay. A family without VIPs is skipped. `between` is called after each
/// [`FLOWS_PER_SLICE`]. Blocks.
pub(super) fn clean_up(
    table: &impl FlowTable,
    mut newest: impl FnMut() -> Option<PerFamily<UdpVips>>,
    mut between: impl FnMut(),
) -> Result<Vec<FamilyCleanup>> {
    let addresses = table.addresses().context("cannot list the node's addresses")?;
    let mut vips = newest().unwrap_or_default();
    let mut cleanups = Vec::new();
    for family in IpFamily::ALL {
        if vips[family].is_empty() {
            continue;
        }
        vips[family].add_addresses(&addresses);

        let begun = Instant::now();
        let mut stale = StaleFlows { table, family, addresses: &addresses, vips, flows: Vec::new(), deleted: 0 };
        let mut listed = 0_usize;
        let visited = table.visit(family, Protocol::Udp, &mut |flow| {
            listed += 1;
            if listed.is_multiple_of(FLOWS_PER_SLICE) {
                between();
            }
            stale.add(flow, &mut newest)
        });
        let deleted = visited.and_then(|()| stale.delete(&mut newest));
        deleted.with_context(|| format!("{family} flows"))?;

        cleanups.push(FamilyCleanup { family, deleted: stale.deleted, took: begun.elapsed() });
        vips = stale.vips;
    }
    Ok(cleanups)
}

impl<T: FlowTable> StaleFlows<'_, T> {
    /// Adds a flow if it is stale. Deletes the flows so far when a request to the kernel is full.
    fn add(&mut self, flow: Flow, newest: impl FnMut() -> Option<PerFamily<UdpVips>>) -> netlink::Result<()> {
        if self.vips[self.family].is_stale(&flow) {
            self.flows.push(flow);
        }
        if self.flows.len() == DELETIONS_PER_SEND { self.delete(newest) } else { Ok(()) }
    }

    /// Deletes the flows that are stale as of now.
    fn delete(&mut self, mut newest: impl FnMut() -> Option<PerFamily<UdpVips>>) -> netlink::Result<()> {
        if let Some(changed) = newest() {
            self.vips = changed;
            let vips = &mut self.vips[self.family];
            vips.add_addresses(self.addresses);
            self.flows.retain(|flow| vips.is_stale(flow));
        }
        self.deleted += self.table.delete(&self.flows)?;
        self.flows.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
