//! The endpoints of a Service that are used: all of them, or a subset if there are more than the operator allows.
//!
//! The limits apply to each IP family: the endpoints of a dual-stack Service have an address of each, in slices of that
//! family. The subset depends on the objects only, so that it is the same on every node. An endpoint is ranked by
//! whether it can serve, then by its number among those of its node, then by a hash of its address: the subset covers
//! as many nodes as possible, and a change replaces at most one other endpoint. Ranks and the slices of each port are
//! computed once for all ports of the Service, and each port takes the first ones: the work is the sum of what the
//! slices list, not its product with the ports.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use proto::model::{IpFamily, NodeInfo, PerFamily, Protocol, ServicePortKey};

use crate::object::{ServiceLimits, ServiceObject, SliceEndpoint, SliceObject, SlicePort};

use super::merge::{MergedEndpoint, Usability};

/// The most nodes of a Service that have local pools without a Node object. It may be missing by mistake, but
/// EndpointSlices can name any number of such nodes, and each costs much more memory than its name.
const MAX_MISSING_NODES: usize = 256;

/// The endpoints of a Service that its ports use.
#[derive(Debug)]
pub(crate) struct ServiceEndpoints<'a> {
    slices: Vec<&'a SliceObject>,
    /// By name and protocol, the ports of slices, with the index of each slice.
    ports: HashMap<(&'a str, Protocol), Vec<(usize, &'a SlicePort)>>,
    subset: Option<RankedSubset>,
    topology: Option<KnownTopology<'a>>,
    /// Whether there are more than [`MAX_MISSING_NODES`] nodes, with or without a Node object.
    is_on_many_nodes: bool,
    /// In sorted order, the last missing node that has local pools; `None`: all have.
    last_missing: Option<&'a str>,
}

/// The Nodes and zones that exist: hints that name others are ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownTopology<'a> {
    pub(crate) nodes: &'a HashMap<Arc<str>, Arc<NodeInfo>>,
    /// With the nodes in each.
    pub(crate) zones: &'a BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The only node that gets pools of its own; `None`: all nodes.
    pub(crate) only_node: Option<&'a str>,
}

/// The endpoints of a Service by rank, and how many of them a port uses.
#[derive(Debug)]
struct RankedSubset {
    /// For each slice, its endpoints as (rank, index), by rank.
    slices: Vec<Vec<(u32, usize)>>,
    /// The most entries of one port.
    per_port: PerFamily<usize>,
    /// The numbers of the family that exceeds the limits most.
    entries: EntryCounts,
}

/// Entries of one IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EntryCounts {
    all_ports: usize,
    largest_port: usize,
    /// How many of each port are used.
    per_port: usize,
}

impl KnownTopology<'_> {
    /// Whether there may be a Node of this name. Without any Node object nothing is known about nodes: a directory of
    /// manifests may have none, and an API server may serve a list that is older than they are.
    pub(crate) fn has_node(self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.contains_key(node)
    }

    /// Whether a node may get pools of its own.
    fn is_served(self, node: &str) -> bool {
        self.only_node.is_none_or(|only_node| only_node == node)
    }

    /// Whether there may be a Node in this zone.
    fn has_zone(self, zone: &str) -> bool {
        self.nodes.is_empty() || self.zones.contains_key(zone)
    }
}

impl<'a> ServiceEndpoints<'a> {
    /// All endpoints of all slices.
    pub(crate) fn all(slices: impl IntoIterator<Item = &'a SliceObject>) -> Self {
        let slices: Vec<_> = slices.into_iter().collect();
        let mut ports = HashMap::<_, Vec<_>>::new();
        for (at, slice) in slices.iter().enumerate() {
            for port in &slice.ports {
                ports.entry((&*port.name, port.protocol)).or_default().push((at, port));
            }
        }
        Self { slices, ports, subset: None, topology: None, is_on_many_nodes: false, last_missing: None }
    }

    /// The same endpoints, where these Nodes and zones exist.
    pub(crate) fn located_in(self, topology: KnownTopology<'a>) -> Self {
        let mut nodes = HashSet::new();
        let mut missing = BTreeSet::new();
        let mut last_missing: Option<&str> = None;
        for node in self.serving_nodes() {
            if nodes.len() <= MAX_MISSING_NODES {
                nodes.insert(node);
            }

            let is_first = last_missing.is_none_or(|last| node < last);
            if is_first && !topology.has_node(node) && missing.insert(node) && missing.len() > MAX_MISSING_NODES {
                missing.pop_last();
                last_missing = missing.last().copied();
            }
        }

        let is_on_many_nodes = nodes.len() > MAX_MISSING_NODES;
        Self { topology: Some(topology), is_on_many_nodes, last_missing, ..self }
    }

    /// The nodes of endpoints that serve, some more than once. A slice without ports has none.
    fn serving_nodes(&self) -> impl Iterator<Item = &'a str> {
        let slices = self.slices().filter(|slice| !slice.ports.is_empty());
        let serving = slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready || endpoint.serving);
        serving.filter_map(|endpoint| endpoint.node.as_deref())
    }

    /// The node in whose local pools an endpoint is.
    pub(super) fn local_node<'e>(&self, endpoint: &'e SliceEndpoint) -> Option<&'e Arc<str>> {
        let node = endpoint.node.as_ref()?;
        let has_pools = self.last_missing.is_none_or(|last| **node <= *last || self.has_node(node));
        if has_pools && self.is_served(node) { Some(node) } else { None }
    }

    /// Whether there may be a Node of this name.
    pub(super) fn has_node(&self, node: &str) -> bool {
        self.topology.is_none_or(|topology| topology.has_node(node))
    }

    /// Whether a node may get pools of its own.
    pub(super) fn is_served(&self, node: &str) -> bool {
        self.topology.is_none_or(|topology| topology.is_served(node))
    }

    /// Whether there may be a Node in this zone.
    pub(super) fn has_zone(&self, zone: &str) -> bool {
        self.topology.is_none_or(|topology| topology.has_zone(zone))
    }

    /// As many endpoints of all slices as the limits allow.
    pub(crate) fn limited(
        service: &ServiceObject,
        slices: impl IntoIterator<Item = &'a SliceObject>,
        limits: &ServiceLimits,
    ) -> Self {
        let mut endpoints = Self::all(slices);

        let mut counts = PerFamily::from_fn(|_| vec![0; service.ports.len()]);
        for (at, port) in service.ports.iter().enumerate() {
            for (index, _) in endpoints.of_port(&port.name, port.protocol) {
                let slice = endpoints.slices[*index];
                counts[slice.family][at] += slice.endpoints.len();
            }
        }
        let counts = PerFamily::from_fn(|family| EntryCounts::of(&counts[family], limits));

        let exceeding = counts.iter().filter(|(_, counts)| counts.largest_port > counts.per_port);
        if let Some(entries) = exceeding.map(|(_, counts)| *counts).max() {
            let slices = ranked(&endpoints.slices);
            let per_port = PerFamily::from_fn(|family| counts[family].per_port);
            endpoints.subset = Some(RankedSubset { slices, per_port, entries });
        }
        endpoints
    }

    pub(super) fn slices(&self) -> impl Iterator<Item = &'a SliceObject> {
        self.slices.iter().copied()
    }

    /// Whether every port depends on every slice, and perhaps on whether Nodes exist that they name.
    pub(crate) fn ports_depend_on_each_other(&self) -> bool {
        self.is_subset() || self.is_on_many_nodes
    }

    /// Whether endpoints are left out.
    pub(crate) fn is_subset(&self) -> bool {
        self.subset.is_some()
    }

    /// What is left out. For problems.
    pub(crate) fn describe_subset(&self) -> Option<String> {
        let EntryCounts { all_ports, largest_port, per_port } = self.subset.as_ref()?.entries;
        Some(format!(
            "{all_ports} endpoints of all ports, {largest_port} of one port: at most {per_port} of each port are used, \
             the same on every node (--max-service-endpoints, --max-service-port-endpoints)"
        ))
    }

    /// The ports of slices with this name and protocol, with the index of each slice.
    fn of_port<'s>(&'s self, name: &'s str, protocol: Protocol) -> &'s [(usize, &'a SlicePort)] {
        self.ports.get(&(name, protocol)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Which nodes have no local pools. For problems.
    pub(crate) fn describe_missing_nodes(&self) -> Option<String> {
        self.last_missing?;
        Some(format!(
            "its endpoints name more than {MAX_MISSING_NODES} nodes that have no Node object: of these, the first \
             {MAX_MISSING_NODES} in sorted order are used for traffic policy Local"
        ))
    }

    /// The entries for a service port. Those of one slice with the same address are in its order.
    pub(super) fn entries(&self, key: &ServicePortKey) -> Vec<MergedEndpoint<'a>> {
        let ports = self.of_port(&key.port_name, key.protocol);
        if let Some(subset) = &self.subset {
            return subset.entries(&self.slices, ports);
        }

        let entries = ports.iter().flat_map(|(at, port)| {
            let slice = self.slices[*at];
            slice.endpoints.iter().map(move |endpoint| MergedEndpoint { endpoint, slice, port: port.port })
        });
        entries.collect()
    }
}

/// The endpoints of a slice by rank, for one of its ports.
struct RankedSlice<'s, 'a> {
    slice: &'a SliceObject,
    port: &'a SlicePort,
    /// As (rank, index).
    endpoints: &'s [(u32, usize)],
}

/// The next endpoint of a [`RankedSlice`], ordered by rank.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NextEndpoint {
    rank: u32,
    /// Which slice.
    list: usize,
    /// Where it is in the order of ranks.
    position: usize,
    /// Where it is in the slice.
    index: usize,
}

impl RankedSubset {
    /// The first entries for a port of these slices, as many as are used in each IP family.
    fn entries<'a>(&self, slices: &[&'a SliceObject], ports: &[(usize, &'a SlicePort)]) -> Vec<MergedEndpoint<'a>> {
        let mut entries = Vec::new();
        for (family, per_port) in self.per_port.iter() {
            let of_family = ports.iter().filter(|(at, _)| slices[*at].family == family);
            let lists =
                of_family.map(|(at, port)| RankedSlice { slice: slices[*at], port, endpoints: &self.slices[*at] });
            merge_first(&lists.collect::<Vec<_>>(), *per_port, &mut entries);
        }
        entries
    }
}

impl RankedSlice<'_, '_> {
    fn next(&self, list: usize, position: usize) -> Option<Reverse<NextEndpoint>> {
        let (rank, index) = *self.endpoints.get(position)?;
        Some(Reverse(NextEndpoint { rank, list, position, index }))
    }
}

/// Merges lists that are sorted by rank, up to a number of entries.
fn merge_first<'a>(lists: &[RankedSlice<'_, 'a>], count: usize, entries: &mut Vec<MergedEndpoint<'a>>) {
    let firsts = lists.iter().enumerate().filter_map(|(at, list)| list.next(at, 0));
    let mut heap: BinaryHeap<_> = firsts.collect();
    for _ in 0..count {
        let Some(Reverse(NextEndpoint { list: at, position, index, .. })) = heap.pop() else { return };
        let list = &lists[at];
        let RankedSlice { slice, port, .. } = *list;
        entries.push(MergedEndpoint { endpoint: &slice.endpoints[index], slice, port: port.port });
        heap.extend(list.next(at, position + 1));
    }
}

/// The largest number of entries for each port with which all ports together have at most `total`.
fn fair_share(mut counts: Vec<usize>, total: usize) -> usize {
    counts.sort_unstable();
    let mut left = total;
    let mut ports = counts.len();
    for count in counts {
        if count > left / ports {
            return left / ports;
        }
        left -= count;
        ports -= 1;
    }
    usize::MAX
}

/// For each slice, its endpoints as (rank, index), by rank. An address has one rank in all slices.
fn ranked(slices: &[&SliceObject]) -> Vec<Vec<(u32, usize)>> {
    // The best entry of each address decides.
    let mut best = HashMap::<IpAddr, (Usability, Option<&str>)>::new();
    for endpoint in slices.iter().flat_map(|slice| &slice.endpoints) {
        let entry = (Usability::of(endpoint), endpoint.node.as_deref());
        best.entry(endpoint.address).and_modify(|best| *best = entry.min(*best)).or_insert(entry);
    }

    let addresses = best.into_iter().map(|(address, (usability, node))| RankedAddress {
        usability,
        family: IpFamily::of(&address),
        node,
        hash: hash(address),
        address,
    });
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_unstable();

    // The number of each address among those of its node.
    let mut by_round = Vec::with_capacity(addresses.len());
    for of_node in addresses.chunk_by(RankedAddress::has_same_node) {
        let numbered = of_node.iter().enumerate();
        by_round.extend(numbered.map(|(round, ranked)| (ranked.usability, round, ranked.hash, ranked.address)));
    }
    by_round.sort_unstable();

    let ranks: HashMap<IpAddr, u32> = by_round.into_iter().map(|(.., address)| address).zip(0..).collect();
    slices.iter().map(|slice| ranked_endpoints(slice, &ranks)).collect()
}

/// The endpoints of a slice as (rank, index), by rank.
fn ranked_endpoints(slice: &SliceObject, ranks: &HashMap<IpAddr, u32>) -> Vec<(u32, usize)> {
    let endpoints = slice.endpoints.iter().enumerate();
    let mut ranked: Vec<_> = endpoints.map(|(index, endpoint)| (ranks[&endpoint.address], index)).collect();
    ranked.sort_unstable();
    ranked
}

/// An address with what its rank depends on, sorted so that the addresses of a node are neighbors.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedAddress<'a> {
    usability: Usability,
    family: IpFamily,
    node: Option<&'a str>,
    hash: u64,
    address: IpAddr,
}

impl RankedAddress<'_> {
    /// Whether two addresses are numbered together.
    fn has_same_node(&self, other: &Self) -> bool {
        (self.usability, self.family, self.node) == (other.usability, other.family, other.node)
    }
}

impl EntryCounts {
    /// Of one IP family, by the number of entries of each port.
    fn of(counts: &[usize], limits: &ServiceLimits) -> Self {
        Self {
            all_ports: counts.iter().sum(),
            largest_port: counts.iter().max().copied().unwrap_or_default(),
            per_port: limits.endpoints.min(fair_share(counts.to_vec(), limits.port_endpoints)).max(1),
        }
    }
}

/// The same on every replica. Users choose addresses, but only within their own Service.
fn hash(address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    mix(mix((bits >> 64) as u64).wrapping_add(bits as u64).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
