//! How far pods are drained at the moment: what commits say of them, compared with what nodes have programmed.
//!
//! A node follows the levels of its own pods. Every pod in an EndpointSlice has one, whether it ends or not, so that an
//! address that is in none can be told from one that is still in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use proto::{
    convert::{micros, pack_address},
    model::{Revision, SourceVersion},
    node_set::NodeSet,
    v1::{self, DrainState},
};
use runtime::Excess;

use super::{EndingPod, EndingPods, PodKey, counting};
use crate::{
    index::PodEntry,
    object::ObjectName,
    streams::{Fleet, MAX_LISTED, StreamStatus},
};

/// How many addresses of a node have a level. A node has at most a few hundred pods, but any tenant can write its name
/// into slices; the namespaces with the most addresses give way.
const MAX_LEVELS: usize = 1024;
/// How long a node without a stream may be about to connect to another frontend.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For how long a pod waits for a node that acknowledges, but does not program, or that cannot program its Services.
const MAX_LAG: Duration = Duration::from_secs(60);
/// How many Services a level names: a message has up to 1,024 levels of pods that end.
const MAX_SERVICES: usize = 8;

/// An address in an EndpointSlice whose entries do not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPod {
    address: IpAddr,
    key: PodKey,
}

/// How far a pod that ends is drained.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    pub(crate) state: DrainState,
    /// The first nodes that it waits for, those that are furthest behind first.
    pub(crate) behind: Vec<&'a Arc<str>>,
    /// Whether it waits for others, too.
    pub(crate) waits_for_more: bool,
    /// Nodes that have not programmed that it ends, and that it does not wait for any longer.
    given_up: BTreeSet<&'a Arc<str>>,
}

impl EndingPods {
    /// The levels of the pods of a node, and the first revision that one of these pods waits for because some node has
    /// not programmed it. `listed`: the pods in slices that did not end a moment ago; if one is among the ending pods,
    /// that is newer. Of several levels at an address, a client uses the one that is furthest from drained.
    pub(crate) fn message(
        &self,
        fleet: &Fleet,
        node: &str,
        listed: &[ListedPod],
        slices_version: SourceVersion,
    ) -> (v1::DrainLevels, Option<Revision>) {
        let ending = self.of_node(node);
        let programmed = fleet.programmed_on_all_nodes();
        let is_waited_for = |since: &Revision| programmed.is_some_and(|programmed| *since > programmed);
        let waits_for = ending.iter().filter_map(|(_, pod)| pod.unused_since).filter(is_waited_for).min();

        let in_use = listed.iter().filter(|pod| !self.pods.contains_key(&pod.key));
        let mut levels: Vec<_> = in_use.map(|pod| level(pod.key, pod.address, DrainState::InUse)).collect();
        levels.extend(ending.into_iter().flat_map(|(key, pod)| pod.levels(key, fleet)));
        levels.sort_by(|one, other| (&one.address, &one.pod_uid).cmp(&(&other.address, &other.pod_uid)));

        let message = v1::DrainLevels {
            levels,
            slices_version: slices_version.0,
            programmed: Some(fleet.connected),
            cluster: Some(fleet.cluster),
            nodes_left: fleet.has_left(RECONNECT_TIMEOUT),
            epoch: 0,
        };
        (message, waits_for)
    }

    /// The pods that end on a node, at most [`MAX_LEVELS`].
    fn of_node(&self, node: &str) -> Vec<(PodKey, &EndingPod)> {
        let Some(by_namespace) = self.by_node.get(node) else { return Vec::new() };
        let excess = Excess::beyond(MAX_LEVELS, by_namespace.iter().map(|(namespace, keys)| (namespace, keys.len())));
        let kept = by_namespace.iter().flat_map(|(namespace, keys)| keys.iter().skip(excess.of(&namespace)));
        let keys: BTreeSet<PodKey> = kept.copied().collect();
        keys.into_iter().filter_map(|key| Some((key, self.pods.get(&key)?))).collect()
    }

    /// How many pods end and are not drained.
    pub(crate) fn undrained_count(&self, fleet: &Fleet) -> usize {
        self.pods.values().filter(|pod| !pod.is_drained(fleet)).count()
    }

    /// The pods that end and are not drained, for the longest time first.
    pub(crate) fn undrained(&self, fleet: &Fleet, limit: usize) -> Vec<EndingPod> {
        let mut pods: Vec<_> = self.pods.values().filter(|pod| !pod.is_drained(fleet)).collect();
        pods.sort_by_key(|pod| pod.since);
        pods.into_iter().take(limit).cloned().collect()
    }
}

impl EndingPod {
    /// How far it is drained.
    pub(crate) fn drain<'a>(&self, fleet: &'a Fleet) -> Drain<'a> {
        let mut drain =
            Drain { state: DrainState::InUse, behind: Vec::new(), waits_for_more: false, given_up: BTreeSet::new() };
        let Some(since) = self.unused_since else { return drain };

        for (status, is_waited_for) in self.lacking(fleet, since) {
            if !is_waited_for {
                drain.given_up.insert(&status.node);
            } else if drain.behind.contains(&&status.node) {
                // It is behind, and reports failures.
            } else if drain.behind.len() < MAX_LISTED {
                drain.behind.push(&status.node);
            } else {
                drain.waits_for_more = true;
                break;
            }
        }

        drain.behind.sort_unstable();
        drain.state = if drain.behind.is_empty() { DrainState::Drained } else { DrainState::Behind };
        drain
    }

    /// The same as the state of [`Self::drain`], and ends at the first node that it waits for.
    fn is_drained(&self, fleet: &Fleet) -> bool {
        let waits = |since| self.lacking(fleet, since).any(|(_, is_waited_for)| is_waited_for);
        self.unused_since.is_some_and(|since| !waits(since))
    }

    /// The backends of the cluster that may still send it new connections, and whether it waits for them.
    fn lacking<'a>(&self, fleet: &'a Fleet, since: Revision) -> impl Iterator<Item = (&'a StreamStatus, bool)> {
        let namespaces = self.namespaces();
        let behind = fleet.behind(since).filter(move |status| !status.has_programmed_for(&namespaces, since));

        let services = self.services.clone();
        let failing = fleet.failing_backends().filter_map(move |status| failing_backend(status, &services));
        behind.map(|status| (status, makes_progress(status))).chain(failing)
    }

    /// Its level at each of its addresses.
    fn levels(&self, key: PodKey, fleet: &Fleet) -> Vec<v1::DrainLevel> {
        let drain = self.drain(fleet);
        let mut not_programmed = NodeSet::default();
        for node in drain.given_up.iter().filter(|node| fleet.nodes.contains_key(**node)) {
            not_programmed.insert(node);
        }
        let unlisted = self.unused_since.map_or(0, |since| fleet.unlisted_behind(since, MAX_LAG));

        let mut levels = Vec::with_capacity(self.addresses.len());
        for address in &self.addresses {
            levels.push(v1::DrainLevel {
                slices_version: self.slices_version.0,
                services: first_services(&self.services),
                behind: drain.behind.iter().map(ToString::to_string).collect(),
                waits_for_more: drain.waits_for_more,
                not_programmed: Some(not_programmed),
                unlisted: unlisted as u64,
                gone: self.gone_since.is_some(),
                ..level(key, *address, drain.state)
            });
        }
        levels
    }
}

impl ListedPod {
    /// The pods of these entries that do not end, at most [`MAX_LEVELS`].
    pub(crate) fn of(entries: Vec<PodEntry>) -> Vec<Self> {
        let mut by_namespace = BTreeMap::<Arc<str>, BTreeMap<IpAddr, PodKey>>::new();
        for entry in counting(entries).values().flatten().filter(|entry| !entry.terminating) {
            let addresses = by_namespace.entry(entry.service.namespace.clone()).or_default();
            addresses.insert(entry.address, PodKey::of(entry));
        }

        let excess = Excess::beyond(MAX_LEVELS, by_namespace.iter().map(|(namespace, pods)| (namespace, pods.len())));
        let kept = by_namespace.iter().flat_map(|(namespace, pods)| pods.iter().skip(excess.of(&namespace)));
        kept.map(|(address, key)| Self { address: *address, key: *key }).collect()
    }
}

/// What the call `Status` says of the pods that end.
pub(crate) fn ending_pod(pod: &EndingPod, fleet: &Fleet) -> v1::EndingPod {
    let drain = pod.drain(fleet);
    v1::EndingPod {
        addresses: pod.addresses.iter().map(pack_address).collect(),
        state: drain.state.into(),
        services: first_services(&pod.services),
        behind: drain.behind.iter().map(ToString::to_string).collect(),
        waits_for_more: drain.waits_for_more,
        ending_micros: micros(pod.since.elapsed()),
    }
}

/// A backend that cannot program one of these Services, and whether a pod waits for it.
fn failing_backend<'a>(status: &'a StreamStatus, services: &BTreeSet<ObjectName>) -> Option<(&'a StreamStatus, bool)> {
    let failing_for = status.failing_for(services)?;
    Some((status, failing_for < MAX_LAG && makes_progress(status)))
}

fn makes_progress(status: &StreamStatus) -> bool {
    !status.is_stalled() && status.lag() < MAX_LAG
}

fn level(key: PodKey, address: IpAddr, state: DrainState) -> v1::DrainLevel {
    let pod_uid = match key {
        PodKey::Pod(id) => id.to_string(),
        PodKey::Address(_) => String::new(),
    };
    v1::DrainLevel { address: pack_address(&address), pod_uid, state: state.into(), ..v1::DrainLevel::default() }
}

fn first_services(services: &BTreeSet<ObjectName>) -> Vec<String> {
    services.iter().take(MAX_SERVICES).map(ToString::to_string).collect()
}
