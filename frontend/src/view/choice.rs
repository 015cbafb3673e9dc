//! Which endpoints are used, and by which rule: what pools are made of, and what explanations are read from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::model::Pool;

use crate::object::SliceEndpoint;

use super::{Scoped, merge::Merged};

/// Those of some endpoints that are used.
#[derive(Debug)]
pub(super) struct Used<'a> {
    pub(super) basis: Basis,
    list: Vec<Merged<'a>>,
}

/// What the endpoints in use have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// They are ready.
    Ready,
    /// None is ready; these still serve while they terminate.
    Fallback,
}

/// The endpoints for traffic policy Cluster, of one family.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    pub(super) used: Used<'a>,
    pub(super) nodes: Hints<'a>,
    pub(super) zones: Hints<'a>,
}

/// Where ready endpoints are meant to be used, by hints of one kind.
#[derive(Debug)]
pub(super) enum Hints<'a> {
    /// Not asked: nothing is ready, or nothing has any.
    Absent,
    /// Of no effect, because this one is ready and has none.
    Vetoed(Merged<'a>),
    /// By place.
    InForce(BTreeMap<Arc<str>, Vec<Merged<'a>>>),
}

/// What narrows the choice at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Node hints, which name the node.
    Node,
    /// Zone hints, which name the zone.
    Zone,
    /// Nothing.
    Everywhere,
}

// === impl Used ===

impl<'a> Used<'a> {
    /// The ready ones; when there are none, those that still serve while they terminate.
    fn of(endpoints: &[Merged<'a>]) -> Self {
        let ready: Vec<_> = endpoints.iter().filter(|merged| merged.ready()).copied().collect();
        if !ready.is_empty() {
            return Self { basis: Basis::Ready, list: ready };
        }
        let fallback = endpoints.iter().filter(|merged| merged.fallback());
        Self { basis: Basis::Fallback, list: fallback.copied().collect() }
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Those on each node, where there are some.
pub(super) fn local<'a>(endpoints: &[Merged<'a>]) -> BTreeMap<Arc<str>, Used<'a>> {
    let mut by_node = BTreeMap::<Arc<str>, Vec<_>>::new();
    for merged in endpoints {
        if let Some(node) = &merged.endpoint.node {
            by_node.entry(node.clone()).or_default().push(*merged);
        }
    }
    let used = by_node.into_iter().map(|(node, endpoints)| (node, Used::of(&endpoints)));
    used.filter(|(_, used)| !used.is_empty()).collect()
}

/// The local pool of a node. Whether its endpoints terminate matters there.
pub(super) fn local_pool(used: &Used<'_>) -> Pool {
    let terminating = used.basis == Basis::Fallback;
    used.list.iter().map(|merged| merged.to_endpoint(terminating)).collect()
}

// === impl Choice ===

impl<'a> Choice<'a> {
    /// The ready ones, narrowed by hints; when there are none, those that still serve while they terminate, wherever they are.
    pub(super) fn of(endpoints: &[Merged<'a>]) -> Self {
        let used = Used::of(endpoints);
        let (nodes, zones) = match used.basis {
            Basis::Ready => (
                Hints::of(&used.list, |endpoint| &endpoint.node_hints),
                Hints::of(&used.list, |endpoint| &endpoint.zone_hints),
            ),
            Basis::Fallback => (Hints::Absent, Hints::Absent),
        };
        Self { used, nodes, zones }
    }

    /// What narrows it for a node in a zone. Node hints go first.
    pub(super) fn scope(&self, node: &str, zone: &str) -> Scope {
        if self.nodes.names(node) {
            Scope::Node
        } else if self.zones.names(zone) {
            Scope::Zone
        } else {
            Scope::Everywhere
        }
    }

    /// The cluster pools of all nodes.
    pub(super) fn pools(&self) -> Scoped<Pool> {
        let default = pool(&self.used.list);
        let mut zones = self.zones.pools();
        // What a zone without hints would get anyway needs no entry of its own.
        zones.retain(|_, pool| *pool != default);
        Scoped { zones, nodes: self.nodes.pools(), default }
    }
}

// === impl Hints ===

impl<'a> Hints<'a> {
    /// Hints of a kind count only when every ready endpoint has some.
    fn of(ready: &[Merged<'a>], hints: impl Fn(&'a SliceEndpoint) -> &'a [Arc<str>]) -> Self {
        if let Some(without) = ready.iter().find(|merged| hints(merged.endpoint).is_empty()) {
            let any = ready.iter().any(|merged| !hints(merged.endpoint).is_empty());
            return if any { Self::Vetoed(*without) } else { Self::Absent };
        }
        let mut places = BTreeMap::<Arc<str>, Vec<_>>::new();
        for merged in ready {
            // The empty name is how a node without a zone says so; no hint can mean it.
            let names: BTreeSet<_> = hints(merged.endpoint).iter().filter(|place| !place.is_empty()).collect();
            for place in names {
                places.entry(place.clone()).or_default().push(*merged);
            }
        }
        Self::InForce(places)
    }

    fn names(&self, place: &str) -> bool {
        matches!(self, Self::InForce(places) if places.contains_key(place))
    }

    /// One pool for each place that is named.
    fn pools(&self) -> BTreeMap<Arc<str>, Pool> {
        let Self::InForce(places) = self else { return BTreeMap::new() };
        places.iter().map(|(place, endpoints)| (place.clone(), pool(endpoints))).collect()
    }
}

/// A cluster pool: there it does not matter whether its endpoints terminate.
fn pool(endpoints: &[Merged<'_>]) -> Pool {
    endpoints.iter().map(|merged| merged.to_endpoint(false)).collect()
}
