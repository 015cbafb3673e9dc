//! Decides for one waiter from the last messages of all frontends. Pure.
//!
//! ```text
//!   the node's own frontend     others (asked only then)               together
//!   in use, behind: wait        in use, behind, older version: wait    sum = cluster: drained
//!   drained ──────────────────▶ drained ─────────────────────────────▶ nodes on their way: wait, 10 s at most
//!   unknown for 5 s: unknown    silent for 10 s ─────────────────────▶ else drained, except for so many nodes
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use proto::{
    convert::pack_address,
    node_set::NodeSet,
    v1::{DrainLevel, DrainLevels, DrainState},
};
use tokio::time::Instant;

use super::{Drained, NotDrained};
use crate::FrontendAddress;

/// How long an address may be in no EndpointSlice: the slice that names it may not have arrived yet.
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a drain waits for nodes and frontends of which nothing is known.
const INCOMPLETE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a drain waits for silent frontends if the others speak for all nodes: their lists of nodes may be old.
const SILENT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a drain waits for backends without a Node object: a frontend may have an old list of Nodes.
const UNLISTED_TIMEOUT: Duration = Duration::from_secs(60);

/// Addresses of frontends that are older are resolved again before they decide.
const MAX_LIST_AGE: Duration = Duration::from_secs(1);

/// The last messages and failures of frontends.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The frontend that is asked first.
    pub(super) own: Option<FrontendAddress>,
    pub(super) frontends: BTreeMap<FrontendAddress, Latest>,
    /// When the list of frontends was last resolved.
    pub(super) resolved: Option<Instant>,
    /// Since when it cannot be resolved, and why.
    pub(super) resolve_failure: Option<(Instant, String)>,
    /// When a frontend last left the list. Its nodes may be on their way to another one, which knows nothing of them.
    pub(super) last_removed: Option<Instant>,
}

/// The last message of one frontend.
#[derive(Clone, Debug)]
pub(super) enum Latest {
    /// `since`: the first message of the stream.
    Levels { message: Arc<DrainLevels>, since: Instant },
    /// It has not answered yet, or the stream has ended.
    Failing { error: String, since: Instant },
    /// Another address is that of the same frontend.
    Alias,
}

/// A request that waits for the drain of an address.
#[derive(Debug)]
pub(super) struct Waiter {
    address: IpAddr,
    deadline: Instant,
    /// The pods that were at the address when it was first known. The request is not about later pods.
    pods: BTreeSet<String>,
    unknown_since: Option<Instant>,
    /// Since when the own frontend says "drained".
    drained_since: Option<Instant>,
    /// Since when no frontend has to be waited for, but perhaps nodes.
    spoken_since: Option<Instant>,
    /// Why the pod was not drained by the last message of the own frontend.
    last_known: Option<NotDrained>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Wait(Wait),
    Done(Drained),
}

/// When to decide again, unless the view changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) until: Instant,
    /// When the list of frontends must have been resolved; `None`: only the own frontend is asked.
    pub(super) list_since: Option<Instant>,
}

/// How far an address is known, the first one gives way first to others that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressClass {
    Unknown,
    InUse,
    Ending,
}

/// The last messages of all frontends about a pod that is drained as far as the own frontend knows.
#[derive(Debug, Default)]
struct Together {
    /// The nodes that send no new connections to the pod, each counted by the frontend that it is connected to.
    programmed: NodeSet,
    /// The nodes of the cluster, as each frontend knows them.
    clusters: Vec<NodeSet>,
    /// Whether a node has left a frontend, or a frontend has learnt of a node, within the last seconds.
    nodes_left: bool,
    /// The backends without a Node object that may still send new connections.
    unlisted: u64,
    /// Why the pod is not drained, for reasons that have to be waited for without limit.
    unfinished: Vec<NotDrained>,
    /// Frontends that say nothing of the pod, since when, and why.
    silent: Vec<(Instant, String)>,
}

/// A step of the decision that has to wait.
struct Pending {
    reason: NotDrained,
    until: Option<Instant>,
    list_since: Option<Instant>,
}

// === impl Waiter ===

impl Waiter {
    pub(super) fn new(address: IpAddr, deadline: Instant) -> Self {
        Self {
            address,
            deadline,
            pods: BTreeSet::new(),
            unknown_since: None,
            drained_since: None,
            spoken_since: None,
            last_known: None,
        }
    }

    pub(super) fn decide(&mut self, view: &View, now: Instant) -> Decision {
        let Pending { reason, until, list_since } = match self.look(view, now) {
            Ok(drained) => return Decision::Done(drained),
            Err(pending) => pending,
        };

        if now < self.deadline {
            let until = until.map_or(self.deadline, |until| until.min(self.deadline));
            return Decision::Wait(Wait { until, list_since });
        }

        Decision::Done(match self.last_known.take() {
            Some(known) if view.own().is_none() => Drained::No(known.and_then(&reason)),
            None if view.own().is_none() => Drained::NoAnswer(reason),
            _ => Drained::No(reason),
        })
    }

    fn look(&mut self, view: &View, now: Instant) -> Result<Drained, Pending> {
        let Some((own, message)) = view.own() else {
            self.unknown_since = None;
            self.spoken_since = None;
            return Err(Pending::of_own(view.silence()));
        };

        let levels = at_address(message, self.address);
        if self.pods.is_empty() {
            let present = levels.iter().filter(|level| !level.gone);
            self.pods = present.map(|level| level.pod_uid.clone()).collect();
        }
        if !self.knows(levels) {
            self.drained_since = None;
            self.spoken_since = None;
            let reason = NotDrained::new("no EndpointSlice has the address of this pod", &[]);
            self.last_known = Some(reason.clone());
            if !self.pods.is_empty() {
                // Another frontend than before: it has old slices, or has started after the pod has left them.
                return Err(Pending::of_own(reason));
            }

            let until = *self.unknown_since.get_or_insert(now) + UNKNOWN_TIMEOUT;
            return if now < until {
                Err(Pending { reason, until: Some(until), list_since: None })
            } else {
                Ok(Drained::Unknown)
            };
        }

        self.unknown_since = None;
        if let Some(reason) = unfinished(levels) {
            self.drained_since = None;
            self.spoken_since = None;
            self.last_known = Some(reason.clone());
            return Err(Pending::of_own(reason));
        }

        let drained_since = *self.drained_since.get_or_insert(now);
        let version = levels.iter().map(|level| level.slices_version).max().unwrap_or_default();
        let mut together = Together::default();
        for (address, latest) in &view.frontends {
            together.add(self, (address, latest), (address != own).then_some(version), drained_since);
        }
        self.sum_up(view, together, drained_since, now)
    }

    /// Decides from the messages of all frontends about a pod that is drained as far as the own frontend knows.
    fn sum_up(
        &mut self,
        view: &View,
        mut together: Together,
        drained_since: Instant,
        now: Instant,
    ) -> Result<Drained, Pending> {
        let list_since = before(self.spoken_since.unwrap_or(drained_since));
        let is_list_fresh = together.check_list(view, list_since, drained_since);

        if let Some(reason) = together.unfinished.pop() {
            self.spoken_since = None;
            self.last_known = Some(reason.clone());
            return Err(Pending { reason, until: None, list_since: Some(list_since) });
        }

        let reason = together.at_deadline();
        self.last_known = Some(reason.clone());
        let wait = |until, list_since| Err(Pending { reason, until, list_since: Some(list_since) });
        if !is_list_fresh {
            return wait(None, list_since);
        }
        if let Some(until) = together.silent_until()
            && now < until
        {
            self.spoken_since = None;
            return wait(Some(until), list_since);
        }

        // From here on no frontend has to be waited for, but there may be more of them than before.
        let spoken_since = *self.spoken_since.get_or_insert(now);
        let is_list_older = view.resolved.is_none_or(|resolved| resolved < before(spoken_since));
        if is_list_older && view.resolve_failure.is_none() {
            return wait(None, before(spoken_since));
        }
        if together.may_get_nodes(view, spoken_since, now) {
            // Another frontend may have them by now.
            let seconds = Duration::from_secs((now - spoken_since).as_secs());
            let next_second = spoken_since + seconds + MAX_LIST_AGE;
            return wait(Some(next_second), before(spoken_since + seconds));
        }
        Ok(Drained::Yes { absent: together.absent(), silent: together.silent() })
    }

    /// Whether one of these levels is about a pod that was at the address from the beginning.
    fn knows(&self, levels: &[DrainLevel]) -> bool {
        levels.iter().any(|level| self.pods.contains(&level.pod_uid))
    }
}

// === impl Together ===

impl Together {
    /// Adds the last message of a frontend. A frontend other than the own one must have seen this `version` of the
    /// EndpointSlices.
    fn add(
        &mut self,
        waiter: &Waiter,
        (address, latest): (&FrontendAddress, &Latest),
        version: Option<u64>,
        drained_since: Instant,
    ) {
        let (message, since) = match latest {
            Latest::Levels { message, since } => (message, *since),
            Latest::Failing { error, since } => return self.add_silent(address, error, (*since).max(drained_since)),
            Latest::Alias => return,
        };
        if version.is_some_and(|version| message.slices_version < version) {
            let text = format!("{}: has seen an older version of the EndpointSlices", address.uri);
            return self.unfinished.push(NotDrained::new("a frontend lags behind", &[text]));
        }
        let levels = at_address(message, waiter.address);
        if let Some(reason) = unfinished(levels) {
            return self.unfinished.push(reason);
        }
        if !waiter.knows(levels) {
            return self.add_silent(address, "does not know the pod", since.max(drained_since));
        }
        let cluster = message.cluster.unwrap_or_default();
        // The node that asks exists: the API server of this frontend serves an old list.
        if cluster.count == 0 {
            return self.add_silent(address, "knows no node", since.max(drained_since));
        }

        let given_up = levels.iter().filter_map(|level| level.not_programmed).max_by_key(|set| set.count);
        self.programmed.add(message.programmed.unwrap_or_default());
        self.programmed.subtract(given_up.unwrap_or_default());
        self.clusters.push(cluster);
        self.nodes_left |= message.nodes_left;
        self.unlisted += levels.iter().map(|level| level.unlisted).max().unwrap_or_default();
    }

    fn add_silent(&mut self, address: &FrontendAddress, reason: &str, since: Instant) {
        self.silent.push((since, format!("{}: {reason}", address.uri)));
    }

    /// Whether the list of frontends is new enough, or cannot be resolved, as if a frontend was silent.
    fn check_list(&mut self, view: &View, list_since: Instant, drained_since: Instant) -> bool {
        let is_fresh = view.resolved.is_some_and(|resolved| resolved >= list_since);
        if let Some((since, error)) = &view.resolve_failure
            && !is_fresh
        {
            self.silent.push(((*since).max(drained_since), error.clone()));
            return true;
        }
        is_fresh
    }

    /// Whether the frontends speak for all nodes, each once.
    fn is_complete(&self) -> bool {
        self.programmed.count > 0 && self.clusters.iter().all(|cluster| *cluster == self.programmed)
    }

    /// Until when frontends that say nothing are waited for.
    fn silent_until(&self) -> Option<Instant> {
        let patience = if self.is_complete() { SILENT_TIMEOUT } else { INCOMPLETE_TIMEOUT };
        self.silent.iter().map(|(since, _)| *since + patience).max()
    }

    /// Whether nodes that no frontend speaks for may still connect to one. No frontend has to be waited for since
    /// `spoken_since`.
    fn may_get_nodes(&self, view: &View, spoken_since: Instant, now: Instant) -> bool {
        let has_lost_frontend = view.last_removed.is_some_and(|removed| now < removed + INCOMPLETE_TIMEOUT);
        let has_lost_node = self.nodes_left && now < spoken_since + INCOMPLETE_TIMEOUT;
        let has_unlisted = self.unlisted > 0 && now < spoken_since + UNLISTED_TIMEOUT;
        has_unlisted || (!self.is_complete() && (has_lost_frontend || has_lost_node))
    }

    /// How many nodes no frontend speaks for. At least one if the sum is another set of the same size, because a node
    /// counts twice while its old stream is half open, and hides another node.
    fn absent(&self) -> u64 {
        match self.clusters.iter().max_by_key(|cluster| cluster.count) {
            Some(cluster) if cluster.count == self.programmed.count => u64::from(*cluster != self.programmed),
            Some(cluster) => cluster.count.saturating_sub(self.programmed.count),
            None => 0,
        }
    }

    fn silent(&self) -> Vec<String> {
        self.silent.iter().map(|(_, text)| text.clone()).collect()
    }

    /// The answer when the time is over, although the next messages might say more.
    fn at_deadline(&self) -> NotDrained {
        let summary = match (self.absent(), self.unlisted) {
            (0, 0) => "frontends do not answer, or nodes change their frontend".to_owned(),
            (0, unlisted) => format!("{unlisted} nodes without a Node object are behind"),
            (absent, _) => format!("{absent} nodes are connected to no frontend that answers"),
        };
        NotDrained::new(summary, &self.silent())
    }
}

// === impl View ===

impl View {
    /// How far an address is known.
    pub(super) fn class_of(&self, address: IpAddr) -> AddressClass {
        let Some((_, message)) = self.own() else { return AddressClass::Unknown };
        let levels = at_address(message, address);
        // A level without Services is that of a pod that does not end.
        if levels.iter().any(|level| !level.services.is_empty()) {
            AddressClass::Ending
        } else if levels.is_empty() {
            AddressClass::Unknown
        } else {
            AddressClass::InUse
        }
    }

    fn own(&self) -> Option<(&FrontendAddress, &DrainLevels)> {
        let own = self.own.as_ref()?;
        match self.frontends.get(own)? {
            Latest::Levels { message, .. } => Some((own, message)),
            Latest::Failing { .. } | Latest::Alias => None,
        }
    }

    /// Why the own frontend says nothing.
    fn silence(&self) -> NotDrained {
        let error = |(address, latest): (&FrontendAddress, &Latest)| match latest {
            Latest::Failing { error, .. } => Some(format!("{}: {error}", address.uri)),
            Latest::Levels { .. } | Latest::Alias => None,
        };
        let mut errors: Vec<_> = self.frontends.iter().filter_map(error).collect();
        errors.extend(self.resolve_failure.as_ref().map(|(_, error)| error.clone()));
        let summary = if self.own.is_none() { "no address of a frontend is known" } else { "no frontend answers" };
        NotDrained::new(summary, &errors)
    }
}

impl Pending {
    /// Only the own frontend has to say more.
    fn of_own(reason: NotDrained) -> Self {
        Self { reason, until: None, list_since: None }
    }
}

fn before(time: Instant) -> Instant {
    time.checked_sub(MAX_LIST_AGE).unwrap_or(time)
}

/// The levels at an address: one for each pod.
fn at_address(message: &DrainLevels, address: IpAddr) -> &[DrainLevel] {
    let address = pack_address(&address);
    let begin = message.levels.partition_point(|level| level.address < address);
    let levels = &message.levels[begin..];
    let end = levels.partition_point(|level| level.address == address);
    &levels[..end]
}

/// Why the pods of these levels are not drained; `None` if all are, including later pods.
fn unfinished(levels: &[DrainLevel]) -> Option<NotDrained> {
    let mut used = levels.iter().filter(|level| !matches!(level.state(), DrainState::Behind | DrainState::Drained));
    if let Some(level) = used.next() {
        return Some(NotDrained::new("may get new connections of Services", &level.services));
    }
    let level = levels.iter().find(|level| level.state() == DrainState::Behind)?;
    let more = if level.waits_for_more { " or more" } else { "" };
    Some(NotDrained::new(format!("nodes that are behind ({}{more})", level.behind.len()), &level.behind))
}
