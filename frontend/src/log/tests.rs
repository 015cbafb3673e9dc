//! After random histories with random interruptions, nodes have the state that the objects alone lead to. Single tests
//! for what is shared, sent, and removed from the history.

pub(crate) mod node_replica;
#[path = "../../tests/integration/replica.rs"]
pub(crate) mod replica;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::UNIX_EPOCH,
};

use proptest::{collection::vec, prelude::*};
use proto::model::{Operation, ServicePortKey};

use crate::{
    index::Index,
    object::{ObjectKind, ObjectName, SliceEndpoint, SourceUpdate as Change},
    testing::{NODES, any_update, endpoint, node, put, service, service_cidr, slice, time},
    view::ServicePortView,
};

use self::node_replica::NodeReplica;
use super::*;

const LARGE: HistoryLimits = HistoryLimits { entries: 1000, bytes: 1 << 20 };

/// An index and a log, and the latest views of the index.
struct Cluster {
    index: Index,
    log: ChangeLog,
    views: BTreeMap<ServicePortKey, ServicePortView>,
    nodes: BTreeMap<Arc<str>, Arc<NodeInfo>>,
    facts: ClusterInfo,
}

impl Cluster {
    fn new(limits: HistoryLimits) -> Self {
        Self {
            index: Index::new(UNIX_EPOCH, Default::default(), Default::default()),
            log: ChangeLog::new(limits),
            views: BTreeMap::new(),
            nodes: BTreeMap::new(),
            facts: Default::default(),
        }
    }

    fn of(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut cluster = Self::new(LARGE);
        cluster.commit(changes);
        cluster
    }

    fn apply(&mut self, change: Change) {
        self.index.apply(change);
    }

    fn commit(&mut self, changes: impl IntoIterator<Item = Change>) -> Option<Revision> {
        for change in changes {
            self.apply(change);
        }
        let changes = self.index.take_changes();
        for (key, view) in changes.ports.iter().cloned() {
            match view {
                Some(view) => self.views.insert(key, view),
                None => self.views.remove(&key),
            };
        }
        for (name, node) in changes.nodes.iter().cloned() {
            match node {
                Some(node) => self.nodes.insert(name, node),
                None => self.nodes.remove(&name),
            };
        }
        if let Some(facts) = &changes.cluster {
            self.facts = facts.clone();
        }
        let zone_of = |node: &str| self.index.node(node).map_or("", |node| &*node.zone);
        let before = self.log.views_of(&changes);
        self.log.commit(PreparedChanges::new(changes, &before, zone_of))
    }

    /// The expected state of a node, computed from the views.
    fn expected(&self, name: &str) -> NodeReplica {
        let node = self.nodes.get(name).map_or_else(|| NodeInfo::unknown(name), |node| NodeInfo::clone(node));
        let mut replica = NodeReplica::new(name);
        for view in self.views.values() {
            replica.put(view, name, &node.zone);
        }
        replica.state.node = Some(node);
        replica.state.cluster = Some(self.facts.clone());
        replica.revision = self.log.revision();
        replica
    }

    /// Brings a node up to date as a session would. Returns whether anything was sent.
    fn sync(&mut self, replica: &mut NodeReplica) -> bool {
        let name = replica.name.clone();
        let update = self.log.difference(&name, replica.revision);
        let update = update.unwrap_or_else(|| {
            let differing = self.log.digests(&name).differing(&replica.state.digests()).collect();
            self.log.rebuild(&name, differing)
        });
        let sent = !update.chunks.is_empty();
        let digest = update.digest;
        replica.apply(update);
        assert_eq!(*replica, self.expected(&name), "wrong state of {name}");
        assert_eq!(replica.state.digests(), self.log.digests(&name), "wrong digests for {name}");
        assert_eq!(replica.state.digests().total(), digest);
        sent
    }

    fn joined(&mut self, name: &str) -> NodeReplica {
        let mut replica = NodeReplica::new(name);
        replica.apply(self.log.snapshot(name));
        replica
    }

    /// The operations from a revision to the current one, as lines.
    fn difference(&self, name: &str, from: Revision) -> Vec<String> {
        let update = self.log.difference(name, from).expect("the history is long enough");
        update.chunks.iter().flat_map(|chunk| chunk.operations()).map(describe).collect()
    }
}

impl ChangeLog {
    fn difference(&self, node: &str, from: Revision) -> Option<NodeUpdate> {
        self.commits_since(node, from)?.difference(node)
    }
}

fn describe(operation: &Operation) -> String {
    let list = |endpoints: &[proto::model::Endpoint]| {
        let endpoints: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
        endpoints.join(",")
    };
    match operation {
        Operation::PutServicePort(port) => format!("put {}", port.key.name),
        Operation::RemoveServicePort(key) => format!("remove {}", key.name),
        Operation::ChangePool { pool, add, remove } => {
            format!("change {} {} +{} -{}", pool.key.name, pool.class, list(add), list(remove))
        }
        Operation::ReplacePool { pool, endpoints } => {
            format!("replace {} {} {}", pool.key.name, pool.class, list(endpoints))
        }
        Operation::PutNode(node) => format!("node {}", node.name),
        Operation::PutCluster(_) => "cluster".to_owned(),
        Operation::ResetBucket(bucket) => format!("reset {bucket}"),
    }
}

#[derive(Clone, Debug)]
enum Event {
    Change(Box<Change>),
    Commit,
    /// The node with this number is brought up to date.
    Sync(usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => any_update().prop_map(|change| Event::Change(Box::new(change))),
        3 => Just(Event::Commit),
        3 => (0..=NODES.len()).prop_map(Event::Sync),
    ]
}

fn check_history(events: Vec<Event>, limits: HistoryLimits) {
    let mut cluster = Cluster::new(limits);
    let nodes = NODES.into_iter().chain(["unknown"]);
    let mut replicas: Vec<_> = nodes.map(|node| cluster.joined(node)).collect();
    for event in events {
        match event {
            Event::Change(change) => cluster.apply(*change),
            Event::Commit => {
                cluster.commit([]);
            }
            Event::Sync(number) => {
                cluster.sync(&mut replicas[number]);
            }
        }
    }
    cluster.commit([]);
    for replica in &mut replicas {
        cluster.sync(replica);
        let fresh = cluster.joined(&replica.name);
        assert_eq!(fresh, *replica, "wrong snapshot for {}", replica.name);
        assert!(!cluster.sync(replica), "sent operations without a change");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nodes_have_the_state_of_the_objects(events in vec(any_event(), 0..80)) {
        check_history(events, LARGE);
    }

    #[test]
    fn nodes_have_the_state_of_the_objects_with_a_short_history(events in vec(any_event(), 0..80)) {
        check_history(events, HistoryLimits { entries: 2, bytes: 1 << 20 });
    }

    #[test]
    fn nodes_have_the_state_of_the_objects_without_history(events in vec(any_event(), 0..40)) {
        check_history(events, HistoryLimits { entries: 1000, bytes: 0 });
    }
}

fn web(endpoints: Vec<SliceEndpoint>) -> Change {
    put(slice("x", "web", endpoints))
}

fn endpoints(last: impl IntoIterator<Item = u8>) -> Vec<SliceEndpoint> {
    last.into_iter().map(|last| endpoint(&format!("10.0.0.{last}"), "node-9")).collect()
}

#[test]
fn commits_are_sent_in_order() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=5))]);
    let from = cluster.log.revision();
    cluster.commit([web(endpoints(1..=6))]);
    cluster.commit([put(service("short", "10.96.0.2"))]);
    cluster.commit([web(endpoints(1..=5)), Change::Delete(ObjectKind::Service, ObjectName::new("ns", "short"))]);
    let changed = ["change web cluster +10.0.0.6 -", "put short", "remove short", "change web cluster + -10.0.0.6"];
    assert_eq!(cluster.difference("node-0", from), changed);
}

#[test]
fn completely_changed_pool_is_replaced() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=3))]);
    let from = cluster.log.revision();
    cluster.commit([web(endpoints(4..=5))]);
    assert_eq!(cluster.difference("node-0", from), ["replace web cluster 10.0.0.4,10.0.0.5"]);
}

#[test]
fn updates_without_effect_make_no_revision() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=2)), put(node("node-9", ""))]);
    let unready = SliceEndpoint { ready: false, serving: false, ..endpoint("10.0.0.9", "node-9") };
    assert_eq!(cluster.commit([web([endpoints(1..=2), vec![unready]].concat())]), None);
    assert_eq!(cluster.commit([put(slice("y", "other", endpoints(1..=1)))]), None);
    assert_eq!(cluster.commit([]), None);
    assert_eq!(cluster.log.revision(), Revision(2));
}

#[test]
fn change_on_another_node_is_not_sent() {
    let mut internal = service("web", "10.96.0.1");
    internal.internal_policy = proto::model::TrafficPolicy::Local;
    let there = |last| vec![endpoint("10.0.0.1", "node-1"), endpoint(&format!("10.0.0.{last}"), "node-0")];
    let mut cluster = Cluster::of([put(internal), web(there(2)), put(node("node-1", ""))]);
    let from = cluster.log.revision();
    cluster.commit([web(there(3))]);
    cluster.commit([put(node("node-0", ""))]);
    assert_eq!(cluster.difference("node-1", from), [""; 0]);
    assert_eq!(cluster.difference("node-0", from), ["replace web local 10.0.0.3", "node node-0"]);
}

#[test]
fn nodes_at_one_revision_share_chunks() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=5))]);
    let from = cluster.log.revision();
    cluster.commit([web(endpoints(1..=4)), put(node("node-0", "zone-a"))]);
    let chunks = |name, from| cluster.log.difference(name, from).unwrap().chunks;
    let (first, second) = (chunks("node-1", from), chunks("node-2", from));
    assert!(Arc::ptr_eq(&first[0], &second[0]));
    assert_eq!(first.len(), 1);
    let own = chunks("node-9", from);
    assert!(Arc::ptr_eq(&first[0], &own[0]), "node-specific operations are appended");
    assert_eq!(own.len(), 2);
    let (first, second) = (cluster.log.snapshot("node-1").chunks, cluster.log.snapshot("node-2").chunks);
    let shared = first.iter().zip(&second).filter(|(first, second)| Arc::ptr_eq(first, second)).count();
    assert_eq!(shared, first.len() - 1, "all but the facts about the node");
    let unchanged = cluster.log.snapshot("node-1").chunks;
    cluster.commit([web(endpoints(1..=5))]);
    let changed = cluster.log.snapshot("node-1").chunks;
    let kept = unchanged.iter().zip(&changed).filter(|(first, second)| Arc::ptr_eq(first, second)).count();
    assert_eq!(kept, changed.len() - 2, "all but the facts about the node and one bucket");
}

/// It is computed without the lock of the log, which other nodes wait for.
#[test]
fn a_difference_is_that_of_its_time_although_the_log_goes_on() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=5))]);
    let from = cluster.log.revision();
    cluster.commit([web(endpoints(1..=4))]);
    let (target, digest) = (cluster.log.revision(), cluster.log.digest("node-1"));
    let since = cluster.log.commits_since("node-1", from).unwrap();
    cluster.commit([web(endpoints(1..=3))]);
    let update = since.difference("node-1").unwrap();
    assert_eq!((update.target, update.digest, update.chunks.len()), (target, digest, 1));
    assert_eq!(cluster.difference("node-1", from).len(), 2);
}

#[test]
fn nodes_of_a_zone_share_chunks_and_receive_its_changes_only() {
    let hinted = |last: u8, zone: &str| SliceEndpoint {
        zone_hints: vec![zone.into()],
        ..endpoint(&format!("10.0.0.{last}"), "node-9")
    };
    let (a, b) = (|last| hinted(last, "zone-a"), |last| hinted(last, "zone-b"));
    let nodes = ["node-0", "node-1", "node-2"].map(|name| put(node(name, "zone-a")));
    let start = [put(service("web", "10.96.0.1")), web(vec![a(1), a(2), b(3), b(4)]), put(node("node-8", "zone-b"))];
    let mut cluster = Cluster::of(nodes.into_iter().chain(start));
    let from = cluster.log.revision();
    cluster.commit([web(vec![a(1), a(2), b(3), b(4), b(5)])]);
    assert_eq!(cluster.difference("node-8", from), ["change web cluster +10.0.0.5 -"]);
    assert!(cluster.difference("node-0", from).is_empty(), "nothing changed in zone-a");
    assert_eq!(cluster.difference("unknown", from), ["change web cluster +10.0.0.5 -"]);
    cluster.commit([web(vec![a(1), a(2), a(6), b(3), b(4), b(5)])]);
    let chunks = |name| cluster.log.difference(name, from).unwrap().chunks;
    assert!(Arc::ptr_eq(&chunks("node-0")[0], &chunks("node-1")[0]));
}

#[test]
fn changed_cluster_facts_are_sent_to_all_nodes() {
    let mut cluster = Cluster::of([put(node("node-0", "zone-a"))]);
    let (first, mut replica) = (cluster.log.revision(), cluster.joined("node-0"));
    cluster.commit([put(service_cidr("one", &["10.96.0.0/16"]))]);
    let second = cluster.log.revision();
    assert_ne!(second, first);
    assert!(cluster.sync(&mut replica));
    for name in ["node-0", "unknown"] {
        assert_eq!(cluster.difference(name, first), ["cluster"]);
        assert!(cluster.difference(name, second).is_empty());
    }
    // Another object with the same facts.
    assert_eq!(cluster.commit([put(service_cidr("two", &["10.96.0.0/16"]))]), None);
}

#[test]
fn history_is_limited_by_number_and_by_memory() {
    for limits in [HistoryLimits { entries: 3, bytes: 1 << 20 }, HistoryLimits { entries: 1000, bytes: 3000 }] {
        let mut cluster = Cluster::new(limits);
        cluster.commit([put(service("web", "10.96.0.1"))]);
        for last in 1..20 {
            cluster.commit([web(endpoints(1..=last))]);
        }
        let revision = cluster.log.revision();
        assert!(cluster.log.difference("node-0", Revision(2)).is_none());
        assert!(cluster.log.difference("node-0", Revision(revision.0 - 1)).is_some());
        assert!(cluster.log.difference("node-0", revision).is_some());
        assert!(cluster.log.difference("node-0", Revision(revision.0 + 1)).is_none());
    }
}

#[test]
fn history_starts_with_the_first_commit() {
    let mut cluster = Cluster::new(LARGE);
    [put(service("web", "10.96.0.1")), web(endpoints(1..=4))].into_iter().for_each(|change| cluster.apply(change));
    let (before, changes) = (cluster.log.revision(), cluster.index.take_changes());
    cluster.log.start(changes);
    let first = cluster.log.revision();
    assert!(cluster.log.difference("node-0", before).is_none() && cluster.log.changes.iter().next().is_none());
    assert!(cluster.log.difference("node-0", first).is_some_and(|update| update.chunks.is_empty()));
    cluster.commit([web(endpoints(1..=3))]);
    assert_eq!(cluster.difference("node-0", first), ["change web cluster + -10.0.0.4"]);
}

#[test]
fn difference_is_not_larger_than_the_state() {
    let mut cluster = Cluster::new(HistoryLimits { bytes: 64 << 20, ..LARGE });
    cluster.commit([put(service("web", "10.96.0.1")), web(endpoints(0..=250))]);
    let mut replica = cluster.joined("node-0");
    for _ in 0..300 {
        cluster.commit([web(endpoints(0..=124))]);
        cluster.commit([web(endpoints(125..=250))]);
    }
    let revisions = (2..cluster.log.revision().0).map(Revision);
    let sizes = revisions.map(|from| {
        let update = cluster.log.difference("node-0", from)?;
        Some(update.chunks.iter().map(|chunk| chunk.size()).sum::<usize>())
    });
    let sizes: Vec<_> = sizes.collect();
    assert!(sizes[0].is_none() && sizes.last().unwrap().is_some());
    assert!(sizes.iter().flatten().all(|size| *size <= MAX_DIFFERENCE));
    cluster.sync(&mut replica);
    // A node that has everything but the last commit is sent that one, whatever its size.
    cluster.commit([web(Vec::new())]);
    cluster.commit([web(endpoints(0..=250))]);
    assert!(cluster.log.difference("node-0", Revision(cluster.log.revision().0 - 1)).is_some());
}

#[test]
fn digests_of_unused_zones_are_removed() {
    let hinted = |zone: &str| {
        let one = |last| SliceEndpoint {
            zone_hints: vec![format!("{zone}-{last}").into()],
            ..endpoint(&format!("10.0.0.{last}"), "node-9")
        };
        web(vec![one(1), one(2)])
    };
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1"))]);
    for zone in ["a", "b", "c"] {
        cluster.commit([hinted(zone)]);
    }
    cluster.commit([web(Vec::new())]);
    assert_eq!(cluster.log.digest_index, Cluster::of([put(service("web", "10.96.0.1"))]).log.digest_index);
}

#[test]
fn removed_nodes_are_forgotten() {
    let mut cluster = Cluster::new(LARGE);
    cluster.commit([put(service("web", "10.96.0.1")), web(endpoints(1..=1)), put(node("node-0", "zone-a"))]);
    cluster.commit([web(Vec::new()), Change::Delete(ObjectKind::Node, ObjectName::new("", "node-0"))]);
    assert!(cluster.log.nodes.is_empty());
}

#[test]
fn update_has_its_oldest_trigger_time() {
    let triggered = |last, seconds| {
        let slice = slice("x", "web", endpoints(1..=last));
        put(crate::object::SliceObject { trigger: Some(time(seconds)), ..slice })
    };
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1"))]);
    let from = cluster.log.revision();
    cluster.commit([triggered(1, 30)]);
    cluster.commit([triggered(2, 20)]);
    let at = cluster.commit([triggered(3, 40)]).unwrap();
    assert_eq!(cluster.log.difference("node-0", from).unwrap().oldest_trigger, Some(time(20)));
    let last = cluster.log.difference("node-0", Revision(at.0 - 1)).unwrap();
    assert_eq!(last.oldest_trigger, Some(time(40)));
}

#[test]
fn service_ports_and_endpoints_are_counted() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=5))]);
    assert_eq!((cluster.log.service_ports, cluster.log.endpoints), (1, 5));
    cluster.commit([web(endpoints(1..=3))]);
    assert_eq!((cluster.log.service_ports, cluster.log.endpoints), (1, 3));
    cluster.commit([Change::Delete(ObjectKind::Service, ObjectName::new("ns", "web"))]);
    assert_eq!((cluster.log.service_ports, cluster.log.endpoints), (0, 0));
}

#[test]
fn repair_has_the_requested_buckets_only() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=2))]);
    let key = cluster.views.keys().next().unwrap().clone();
    let bucket = usize::from(KeyHash::of(&key).bucket());
    let describe_all = |update: NodeUpdate| -> Vec<_> {
        update.chunks.iter().flat_map(|chunk| chunk.operations()).map(describe).collect()
    };
    assert_eq!(describe_all(cluster.log.rebuild("node-9", BTreeSet::new())), [""; 0]);
    let facts = describe_all(cluster.log.rebuild("node-9", [usize::from(INFO_ENTRY)].into()));
    assert_eq!(facts, ["node node-9", "cluster"]);
    assert_eq!(
        describe_all(cluster.log.rebuild("node-9", [bucket].into())),
        [
            format!("reset {bucket}").as_str(),
            "put web",
            "replace web cluster 10.0.0.1,10.0.0.2",
            "replace web local 10.0.0.1,10.0.0.2"
        ]
    );
}

/// 1,000 endpoints. `hints`: the node hints of one.
fn hinted(hints: impl Fn(usize) -> Vec<Arc<str>>) -> Change {
    let hinted = |at: usize| SliceEndpoint {
        node_hints: hints(at),
        ..endpoint(&format!("10.0.{}.{}", at / 250, at % 250), &format!("node-{at}"))
    };
    put(slice("x", "web", (0..1000).map(hinted).collect()))
}

/// 1,000 endpoints, hinted to 100 zones.
fn hinted_to_zones() -> Change {
    let hinted = |at: usize| SliceEndpoint {
        zone_hints: vec![format!("zone-{}", at % 100).into()],
        ..endpoint(&format!("10.0.{}.{}", at / 250, at % 250), &format!("node-{at}"))
    };
    put(slice("x", "web", (0..1000).map(hinted).collect()))
}

/// The memory of this process, in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn hints_cost_their_sum_and_not_its_product_with_the_endpoints() {
    let nodes = (0..1000).map(|number| put(node(&format!("node-{number}"), &format!("zone-{}", number % 100))));
    let plain = || hinted(|_| Vec::new());
    let mut cluster = Cluster::new(HistoryLimits { entries: 1000, bytes: 64 << 20 });
    cluster.commit(nodes.chain([put(service("web", "10.96.0.1")), plain()]));
    let mut replicas = ["node-7", "node-8", "node-1000"].map(|name| cluster.joined(name));
    let floor = cluster.log.history.floor;
    // Of 8,000 names, 1,000 are those of Nodes.
    let changes = [
        hinted(|at| (0..8).map(|n| format!("node-{}", 8 * at + n).into()).collect()),
        hinted(|at| vec![format!("node-{at}").into()]),
        plain(),
        hinted_to_zones(),
        plain(),
    ];
    for change in changes {
        let (resident, history) = (resident_kib(), cluster.log.history.size);
        cluster.commit([change]);
        let (resident, history) = (resident_kib().saturating_sub(resident), cluster.log.history.size - history);
        eprintln!("memory: {resident} KiB, of it history: {} KiB", history >> 10);
        assert!(resident < 16 << 10 && history < 2 << 20, "{resident} KiB, history {history}");
        for replica in &mut replicas {
            cluster.sync(replica);
        }
    }
    assert_eq!(cluster.log.history.floor, floor, "the history is complete");
}

#[test]
fn nodes_that_lose_their_hints_share_the_pool_that_they_get() {
    let hints = |last: u8, node: &str| SliceEndpoint {
        node_hints: vec![node.into()],
        ..endpoint(&format!("10.0.0.{last}"), "node-9")
    };
    let nodes = ["node-0", "node-1", "node-9"].map(|name| put(node(name, "zone-a")));
    let narrow = web((1..=9).map(|last| hints(last, ["node-0", "node-1", "node-9"][usize::from(last % 3)])).collect());
    let mut cluster = Cluster::of(nodes.into_iter().chain([put(service("web", "10.96.0.1")), narrow]));
    let from = cluster.log.revision();
    let mut replica = cluster.joined("node-0");
    cluster.commit([web(endpoints(1..=9)), put(service("other", "10.96.0.2"))]);
    let chunks = |name| cluster.log.difference(name, from).unwrap().chunks;
    let (first, second) = (chunks("node-0"), chunks("node-1"));
    assert_eq!(first.len(), 2);
    assert!(first.iter().zip(&second).all(|(first, second)| Arc::ptr_eq(first, second)));
    cluster.sync(&mut replica);
}

#[test]
fn changes_are_described_before_the_log_is_locked() {
    let mut cluster =
        Cluster::of([put(service("web", "10.96.0.1")), web(endpoints(1..=2)), put(service("same", "10.96.0.2"))]);
    cluster.apply(web(endpoints(1..=3)));
    let mut changes = cluster.index.take_changes();
    let same = cluster.views.iter().find(|(key, _)| &*key.name == "same").unwrap();
    changes.ports.push((same.0.clone(), Some(same.1.clone())));
    let before = cluster.log.views_of(&changes);
    let prepared = PreparedChanges::new(changes, &before, |_| "");
    let [change] = &prepared.ports[..] else { panic!("{prepared:?}") };
    assert_eq!((&*change.key.name, &*change.summary), ("web", "endpoints 2 -> 3: +10.0.0.3:8080"));
    assert!(change.recipients.contains("node-0", ""));
}

#[test]
fn nodes_that_do_not_exist_are_bounded() {
    let slices = (0..10).map(|number| {
        let on_node =
            |at: usize| endpoint(&format!("10.{number}.{}.{}", at / 250, at % 250), &format!("made-up-{number}-{at}"));
        put(slice(&format!("x{number}"), "web", (0..1000).map(on_node).collect()))
    });
    let others = [put(node("node-0", "")), put(service("web", "10.96.0.1"))];
    let mut cluster = Cluster::of(slices.chain(others));
    assert_eq!(cluster.log.nodes.len(), 1 + 256);
    let mut replicas = ["made-up-0-0", "made-up-9-999"].map(|name| cluster.joined(name));
    cluster.commit([put(node("made-up-9-999", "zone-a")), put(node("made-up-0-0", "zone-a"))]);
    assert_eq!(cluster.log.nodes.len(), 3 + 256);
    for replica in &mut replicas {
        cluster.sync(replica);
    }
}

#[test]
fn change_on_one_node_visits_no_other_one() {
    let web = |changed: usize| {
        let on_node = |at: usize| endpoint(&format!("10.0.{}.{}", at / 250, at % 250), &format!("node-{at}"));
        put(slice("x", "web", (0..1000).filter(|at| *at != changed).map(on_node).collect()))
    };
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), web(1000)]);
    assert_eq!(cluster.log.nodes.len(), 1000);
    let mut replicas = ["node-7", "node-8"].map(|name| cluster.joined(name));
    for (changed, nodes) in [(7, vec!["node-7"]), (8, vec!["node-7", "node-8"]), (1000, vec!["node-8"])] {
        cluster.apply(web(changed));
        let changes = cluster.index.take_changes();
        cluster.views.extend(changes.ports.iter().filter_map(|(key, view)| Some((key.clone(), view.clone()?))));
        let before = cluster.log.views_of(&changes);
        let prepared = PreparedChanges::new(changes, &before, |_| "");
        let visited: Vec<_> = prepared.ports.iter().flat_map(|change| &change.nodes).map(|node| &**node).collect();
        assert_eq!(visited, nodes);
        cluster.log.commit(prepared);
        for replica in &mut replicas {
            cluster.sync(replica);
        }
    }
}

#[test]
fn change_concerns_the_nodes_that_are_sent_something() {
    let hints = |last: u8, node: &str, zone: &str| SliceEndpoint {
        zone_hints: vec![zone.into()],
        ..endpoint(&format!("10.0.0.{last}"), node)
    };
    let nodes = [("node-0", "zone-a"), ("node-1", "zone-b")].map(|(name, zone)| put(node(name, zone)));
    let both = vec![hints(1, "node-0", "zone-a"), hints(2, "node-1", "zone-b")];
    let mut cluster = Cluster::of(nodes.into_iter().chain([put(service("web", "10.96.0.1")), web(both.clone())]));
    let mut concerned = |change| {
        cluster.commit([change]);
        let log = &cluster.log;
        ["node-0", "node-1"].map(|name| {
            let since = log.changes_while(name, |_| true);
            since.concerns(name, &since.changes[0])
        })
    };
    assert_eq!(concerned(put(service("web", "10.96.0.2"))), [true, true], "another VIP");
    let [_, in_b] = &both[..] else { panic!("{both:?}") };
    let moved = vec![hints(3, "node-0", "zone-a"), in_b.clone()];
    assert_eq!(concerned(web(moved)), [true, false], "the pool of one zone");
    assert_eq!(concerned(Change::Delete(ObjectKind::Service, ObjectName::new("ns", "web"))), [true, true]);
}

#[test]
fn service_port_without_its_last_endpoint_is_lost_until_it_has_another() {
    let mut cluster = Cluster::of([put(service("web", "10.96.0.1")), put(service("idle", "10.96.0.2"))]);
    let mut lost = |change| {
        cluster.commit([change]);
        cluster.log.lost.iter().map(|key| key.name.to_string()).collect::<Vec<_>>()
    };
    assert!(lost(web(endpoints(1..=2))).is_empty());
    assert!(lost(web(endpoints(1..=1))).is_empty());
    assert_eq!(lost(web(Vec::new())), ["web"]);
    assert_eq!(lost(put(service("web", "10.96.0.3"))), ["web"], "another change");
    assert!(lost(web(endpoints(3..=3))).is_empty());
    assert_eq!(lost(web(Vec::new())), ["web"]);
    assert!(lost(Change::Delete(ObjectKind::Service, ObjectName::new("ns", "web"))).is_empty());
}
