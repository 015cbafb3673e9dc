//! What the kernel lacks of the state that was handed to the backend. All else that depends on what is programmed
//! follows from it: acks, latencies, exceptions of flows, health-check node ports and metrics.
//!
//! ```text
//!   newest      a7  b7  c7    the state that the follower has committed
//!   handed      a6  b6  c2    the state of the last call
//!   backlog         b5        b had revision 5; the kernel has that, revision 6, or a part of both
//!   programmed  5             the revision before the first one of which anything is lacking
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use proto::{
    model::{Ack, ServicePortKey},
    state::ServicePortChange,
};

use super::{Position, Target};
use crate::{Changes, NodeState, ServiceName, ServicePortState, SyncReport, backend::Work};

/// The part of the handed state that the kernel lacks, except for the service ports that it rejects and the losses that
/// are withheld.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) service_ports: BTreeMap<ServicePortKey, BacklogEntry>,
    /// The newest commit of which no fact is lacking, while some are.
    facts: Option<Position>,
    /// The number of the target of a reconcile that is unfinished: what no service port needs is removed at its end.
    pub(super) reconcile: Option<u64>,
}

/// The service ports that a call has completed.
#[derive(Debug, Default)]
pub(super) struct Completed {
    pub(super) service_ports: BTreeMap<ServicePortKey, BacklogEntry>,
    /// Whether other service ports may be concerned, too: a reconcile or facts were completed, or the kernel was found
    /// to differ.
    pub(super) concerns_all: bool,
}

/// A service port of which the kernel lacks something.
#[derive(Debug, Default)]
pub(super) struct BacklogEntry {
    /// The last state of which nothing was lacking.
    had: Option<Arc<ServicePortState>>,
    /// The newest commit of which nothing is lacking. The default, which is older than every commit, because the kernel
    /// was read or is to be read.
    complete: Position,
}

impl BacklogEntry {
    /// The change that the kernel has completed: from the state that it had to the programmed one.
    pub(super) fn change<'a>(&'a self, key: &'a ServicePortKey, state: &'a NodeState) -> ServicePortChange<'a> {
        ServicePortChange { key, before: self.had.as_deref(), after: state.service_port(key) }
    }
}

impl Backlog {
    /// All of a state that an earlier process may have programmed.
    pub(super) fn unknown(state: &NodeState) -> Self {
        let service_ports = state.service_ports().keys().map(|key| (key.clone(), BacklogEntry::default())).collect();
        Self { service_ports, ..Self::default() }
    }

    /// The backend is about to be called with a state: the one of the last call, with these changes.
    pub(super) fn hand(&mut self, last: &Target, changes: &Changes) {
        let complete = last.complete;
        for key in &changes.service_ports {
            let entry = || BacklogEntry { had: last.state.service_ports().shared(key), complete };
            self.service_ports.entry(key.clone()).or_insert_with(entry);
        }
        if changes.node || changes.cluster {
            self.facts.get_or_insert(complete);
        }
    }

    /// A call has succeeded. Takes the entries of which nothing is lacking any more, in one pass over the backlog,
    /// because a large change has many calls.
    pub(super) fn reported(&mut self, handed: &Target, work: Work, report: &SyncReport) -> Completed {
        let mut concerns_all = work == Work::Reconcile;
        let Some(unfinished) = &report.unfinished else {
            let Self { service_ports, facts, reconcile } = mem::take(self);
            concerns_all |= facts.is_some() || reconcile.is_some();
            return Completed { service_ports, concerns_all };
        };
        if work == Work::Reconcile || report.has_read {
            self.reconcile = Some(handed.number);
        }
        // The first transaction contains the facts.
        if report.writes > 0 {
            concerns_all |= self.facts.take().is_some();
        }

        // A reconcile reports neither what it has to remove nor when it has done that, until it ends.
        let reconcile = self.reconcile.map(|number| number.max(1));
        let lingers = |key: &ServicePortKey, entry: &BacklogEntry| {
            reconcile.is_some_and(|number| entry.complete.number < number) && handed.state.service_port(key).is_none()
        };
        let mut is_unfinished = ascending(unfinished);
        let is_complete = |key: &ServicePortKey, entry: &mut BacklogEntry| !is_unfinished(key) && !lingers(key, entry);
        let service_ports = self.service_ports.extract_if(.., is_complete).collect();

        // Service ports that a call has found to differ when it read the kernel.
        let mut is_known = ascending(self.service_ports.keys());
        let found: Vec<_> = unfinished.iter().filter(move |key| !is_known(key)).collect();
        let had = |key| BacklogEntry { had: handed.state.service_ports().shared(key), ..BacklogEntry::default() };
        concerns_all |= !found.is_empty();
        self.service_ports.extend(found.into_iter().map(|key| (key.clone(), had(key))));
        Completed { service_ports, concerns_all }
    }

    /// The newest commit of which the kernel lacks nothing. `handed`: that of the last call.
    pub(super) fn complete(&self, handed: Position) -> Position {
        let lacking = self.service_ports.values().map(|entry| entry.complete).chain(self.facts);
        lacking.chain([handed]).min_by_key(|complete| complete.number).unwrap_or(handed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.service_ports.is_empty() && self.facts.is_none()
    }

    /// Whether the kernel lacks something of any of these service ports.
    pub(super) fn has_any(&self, service_ports: &BTreeSet<ServicePortKey>) -> bool {
        service_ports.iter().any(|key| self.service_ports.contains_key(key))
    }

    /// Whether the kernel lacks something of a Service, of which this is a service port.
    pub(super) fn has_service_of(&self, key: &ServicePortKey) -> bool {
        let service = ServiceName::of(key);
        self.service_ports.range(service.first_key()..).next().is_some_and(|(key, _)| service.contains(key))
    }

    /// The namespaces of which the kernel lacks something; none if an Ack does not name so many, or if facts are
    /// lacking, which concern all of them.
    pub(super) fn namespaces(&self) -> BTreeSet<Arc<str>> {
        let mut namespaces = BTreeSet::new();
        if self.facts.is_some() {
            return namespaces;
        }
        for namespace in self.service_ports.keys().map(|key| &key.namespace) {
            // They ascend.
            if namespaces.last() != Some(namespace) {
                if namespaces.len() == Ack::MAX_UNFINISHED_NAMESPACES {
                    return BTreeSet::new();
                }
                namespaces.insert(namespace.clone());
            }
        }
        namespaces
    }
}

/// Whether a key is in `keys`. Both these and the keys that are asked for ascend, so that two sorted sequences are
/// compared in one pass, where a lookup for each key would multiply the cost.
fn ascending<'a, K: Ord + 'a>(keys: impl IntoIterator<Item = &'a K>) -> impl FnMut(&K) -> bool {
    let mut keys = keys.into_iter().peekable();
    move |key| {
        while keys.next_if(|next| *next < key).is_some() {}
        keys.peek().is_some_and(|next| *next == key)
    }
}

#[cfg(test)]
mod tests {
    use proto::model::{ClusterInfo, Revision};

    use super::*;
    use crate::{
        replica::Origin,
        testing::{StateBuilder, mk_key, mk_state},
    };

    /// A backlog, and the target of the last call.
    struct Fixture {
        backlog: Backlog,
        handed: Target,
        /// Whether the last call has completed something that concerns all service ports.
        concerns_all: bool,
    }

    /// The state of a commit: `a5` is the service port `default/a` as of revision 5.
    fn mk_target(revision: u64, service_ports: &str) -> Target {
        let with_port = |state: StateBuilder, version: &str| {
            let (name, port) = version.split_at(1);
            state.service(&format!("default/{name}"), |service| service.port(port.parse().unwrap()))
        };
        let state = service_ports.split_whitespace().fold(mk_state(), with_port).build();
        let complete = Position { number: revision, revision: Revision(revision), ..Position::default() };
        Target { number: revision, complete, ..Target::stored(state, None, Origin::Stored) }
    }

    impl Fixture {
        fn start(stored: &str) -> Self {
            let handed = mk_target(0, stored);
            Self { backlog: Backlog::unknown(&handed.state), handed, concerns_all: false }
        }

        /// A call with a target. Returns the service ports that it completes.
        fn call(&mut self, target: Target, work: Work, writes: usize, unfinished: Option<&str>) -> Vec<String> {
            let changes = Changes::between(&self.handed.state, &target.state);
            self.backlog.hand(&self.handed, &changes);
            self.handed = target;
            assert!(changes.is_empty() || self.programmed() < self.handed.number, "before it has succeeded");

            let keys = |names: &str| names.split_whitespace().map(|name| mk_key(&format!("default/{name}"))).collect();
            let report = SyncReport { writes, unfinished: unfinished.map(keys), ..SyncReport::default() };
            let completed = self.backlog.reported(&self.handed, work, &report);
            self.concerns_all = completed.concerns_all;
            completed.service_ports.into_keys().map(|key| key.name.to_string()).collect()
        }

        fn programmed(&self) -> u64 {
            self.backlog.complete(self.handed.complete).revision.0
        }
    }

    #[test]
    fn programmed_revision_precedes_the_first_that_lacks_anything() {
        let mut fixture = Fixture::start("a1 z1");
        // A revision and its service ports, the call, what that leaves unfinished, and the revision that is programmed.
        for (revision, service_ports, work, unfinished, programmed) in [
            // An earlier process may have programmed anything.
            (1, "a1 b1", Work::Reconcile, Some("b"), 0),
            (1, "a1 b1", Work::Apply, None, 1),
            (5, "a5 b1", Work::Apply, None, 5),
            // `a` changes three times and is programmed, `b` lacks 6 all the time.
            (6, "a6 b6", Work::Apply, Some("a b"), 5),
            (7, "a7 b6", Work::Apply, Some("b"), 5),
            (8, "a7 b8", Work::Apply, Some("b"), 5),
            (8, "a7 b8", Work::Apply, None, 8),
            // The state before returns, while the kernel has half of another one.
            (9, "a9 b8", Work::Apply, Some("a"), 8),
            (10, "a7 b8", Work::Apply, Some("a"), 8),
            (10, "a7 b8", Work::Apply, Some(""), 10),
            // `b` is removed later than `c` is added.
            (11, "a7", Work::Apply, Some("b"), 10),
            (12, "a7 c12", Work::Apply, Some("b"), 10),
            (12, "a7 c12", Work::Apply, Some(""), 12),
            // The kernel is read again. What is removed before that ends may stay until then.
            (12, "a7 c12", Work::Reconcile, Some("a c"), 0),
            (13, "c12", Work::Apply, Some("c"), 0),
            (13, "c12", Work::Apply, Some(""), 0),
            (13, "c12", Work::Apply, None, 13),
            (14, "c12", Work::Apply, None, 14),
        ] {
            fixture.call(mk_target(revision, service_ports), work, 1, unfinished);
            assert_eq!(fixture.programmed(), programmed, "{service_ports}, unfinished: {unfinished:?}");
        }
    }

    /// A backend may reject the transactions of a whole call.
    #[test]
    fn facts_are_programmed_when_anything_is_written() {
        let mut fixture = Fixture::start("");
        fixture.call(mk_target(1, ""), Work::Reconcile, 0, None);
        let mut target = mk_target(2, "");
        target.state.put_cluster(ClusterInfo { service_cidrs: vec!["10.96.0.0/16".parse().unwrap()] });
        for (writes, programmed) in [(0, 1), (1, 2)] {
            fixture.call(target.clone(), Work::Apply, writes, Some(""));
            assert_eq!((fixture.programmed(), fixture.backlog.is_empty()), (programmed, programmed == 2));
            assert_eq!(fixture.concerns_all, programmed == 2, "flows to node ports are compared after that");
        }
    }

    /// Flows are compared again then.
    #[test]
    fn end_of_reconcile_concerns_all_service_ports() {
        let mut fixture = Fixture::start("a1 b1");
        for (revision, service_ports, work, unfinished, concerns_all) in [
            (1, "a1 b1", Work::Reconcile, Some("b"), true),
            (1, "a1 b1", Work::Apply, Some(""), false),
            (2, "a2 b1", Work::Apply, Some("a"), false),
            (2, "a2 b1", Work::Apply, None, true),
            (3, "a3 b1", Work::Apply, None, false),
            // A service port that has not changed may depend on one that has.
            (4, "a4 b1", Work::Apply, Some("b"), true),
            (4, "a4 b1", Work::Apply, None, false),
        ] {
            fixture.call(mk_target(revision, service_ports), work, 1, unfinished);
            assert_eq!(fixture.concerns_all, concerns_all, "{service_ports}, unfinished: {unfinished:?}");
        }
    }

    /// Otherwise the frontend would wait for all of the reconcile, which changes of others may prolong for ever.
    #[test]
    fn a_removal_is_complete_before_the_reconcile_that_preceded_it() {
        let mut fixture = Fixture::start("z1");
        let mut step = |revision, service_ports, work, unfinished| {
            fixture.call(mk_target(revision, service_ports), work, 1, Some(unfinished))
        };
        let first = step(1, "a1 b1", Work::Reconcile, "b");
        assert_eq!(first, ["a"], "the kernel may still have what was removed before");
        assert_eq!(step(2, "b1", Work::Apply, "b"), ["a"]);
        assert_eq!(step(3, "b1", Work::Apply, ""), ["b"]);

        // What the kernel has of a service port is unknown after a reconcile that did not reach it.
        step(3, "b1 c1", Work::Apply, "");
        step(3, "b1 c1", Work::Reconcile, "b c");
        assert_eq!(step(4, "b1", Work::Apply, "b"), [""; 0]);
    }

    #[test]
    fn many_namespaces_are_not_named() {
        let backlog = |count: usize| {
            let entry = |n| (mk_key(&format!("ns-{n:02}/web")), BacklogEntry::default());
            Backlog { service_ports: (0..count).map(entry).collect(), ..Backlog::default() }
        };
        assert_eq!(backlog(16).namespaces().len(), 16);
        assert_eq!(backlog(17).namespaces(), BTreeSet::new());
    }

    #[test]
    fn keys_are_found_in_one_pass() {
        let mut is_even = ascending(&[0, 2, 4, 6, 8]);
        let found: Vec<u8> = [1, 2, 2, 3, 6, 8, 9].into_iter().filter(|key| is_even(key)).collect();
        assert_eq!(found, [2, 2, 6, 8]);
    }
}
