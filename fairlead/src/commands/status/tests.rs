//! Answers of several frontends, merged and printed.

use std::collections::BTreeMap;

use anyhow::{Error, anyhow};
use proto::v1::{
    DrainState, EndingPod, NodeStatus, Problem, Protocol, Role, ServicePortFailure, ServicePortKey, StatusResponse,
    WatchPhase, WatchStatus,
};

use super::{
    is_as_wanted,
    join::{NodeHealth, Overview},
    json, table,
};
use crate::cli::{Command, StatusArgs};

fn node(name: &str, programmed: u64) -> NodeStatus {
    NodeStatus {
        node: name.to_owned(),
        role: Role::Backend.into(),
        backend: "nftables".to_owned(),
        backend_version: "0.1.0".to_owned(),
        acked_revision: programmed,
        programmed_revision: programmed,
        apply_micros: 1500,
        connected: true,
        connected_micros: 10,
        ..NodeStatus::default()
    }
}

fn absent(name: &str, seconds: u64) -> NodeStatus {
    NodeStatus { node: name.to_owned(), lag_micros: seconds * 1_000_000, ..NodeStatus::default() }
}

fn behind(name: &str, programmed: u64, seconds: u64) -> NodeStatus {
    NodeStatus { lag_micros: seconds * 1_000_000, ..node(name, programmed) }
}

fn failing(name: &str, programmed: u64) -> NodeStatus {
    let key = ServicePortKey {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        port_name: String::new(),
        protocol: Protocol::Tcp.into(),
    };
    let failure = ServicePortFailure { key: Some(key), reason: "no such module".to_owned(), retryable: true, kind: 0 };
    NodeStatus { failures: vec![failure], failure_count: 3, ..node(name, programmed) }
}

fn frontend(epoch: u64, revision: u64, nodes: Vec<NodeStatus>) -> StatusResponse {
    let backends = nodes.iter().filter(|node| node.connected && node.role() == Role::Backend);
    StatusResponse {
        epoch,
        revision,
        service_ports: 7,
        endpoints: 21,
        programmed_on_all_nodes: backends.map(|node| node.programmed_revision).min(),
        ready: true,
        nodes,
        ..StatusResponse::default()
    }
}

fn join(answers: Vec<(&str, Result<StatusResponse, Error>)>, args: &StatusArgs) -> Overview {
    join_requiring(&BTreeMap::new(), answers, args)
}

fn join_requiring(
    required: &BTreeMap<u64, u64>,
    answers: Vec<(&str, Result<StatusResponse, Error>)>,
    args: &StatusArgs,
) -> Overview {
    Overview::of(answers.into_iter().map(|(address, answer)| (address.to_owned(), answer)).collect(), args, required)
}

/// Of a command that asks all replicas.
fn args(args: &[&str]) -> StatusArgs {
    parse(&[&["--frontend", "https://frontends:7600"], args].concat())
}

/// Of a command that asks one replica at its socket.
fn socket_args(args: &[&str]) -> StatusArgs {
    parse(&[&["--frontend", "unix:/s"], args].concat())
}

fn parse(args: &[&str]) -> StatusArgs {
    match crate::cli::parse([&["fairlead", "status"], args].concat()).unwrap().cli.command {
        Command::Status(args) => args,
        other => panic!("{other:?}"),
    }
}

fn states(overview: &Overview) -> Vec<(&str, NodeHealth)> {
    overview.nodes.iter().map(|row| (row.status.node.as_str(), row.state)).collect()
}

#[test]
fn worst_nodes_come_first() {
    let nodes =
        vec![node("a", 9), failing("b", 9), behind("c", 7, 6), behind("d", 9, 4), absent("e", 3), absent("f", 300)];
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &args(&[]));
    let expected = [
        ("f", NodeHealth::Absent),
        ("e", NodeHealth::Absent),
        ("c", NodeHealth::Behind),
        ("b", NodeHealth::Failing),
        ("a", NodeHealth::Healthy),
        ("d", NodeHealth::Healthy),
    ];
    assert_eq!(states(&overview), expected);
    assert!(!overview.is_healthy());
    let expected = "\
NODE   BACKEND    VERSION   REVISION   LAG        APPLIED IN   STATE
f      -          -         -          5m0s       -            no stream
e      -          -         -          3.0s       -            no stream
c      nftables   0.1.0     7          6.0s (2)   1ms          behind
b      nftables   0.1.0     9          -          1ms          rejected: default/web/tcp (no such module) and 2 more
a      nftables   0.1.0     9          -          1ms          ok
d      nftables   0.1.0     9          4.0s       1ms          ok
6 nodes: 2 healthy, 1 behind, 1 with rejected service ports, 2 without a stream
programmed on 2 of 6 nodes; 2 have no stream, 1 has an older revision, 1 rejects service ports
unix:/s: revision 9, 7 on every connected node, 7 service ports, 21 endpoints
";
    assert_eq!(table::render(&overview, &args(&[])), expected);
}

#[test]
fn unknown_times_are_not_zero() {
    let never_acked = NodeStatus { apply_micros: 0, ..node("a", 0) };
    let overview = join(vec![("unix:/s", Ok(frontend(1, 0, vec![never_acked])))], &args(&[]));
    let text = table::render(&overview, &args(&[]));
    let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["a", "nftables", "0.1.0", "0", "-", "-", "ok"]);
}

#[test]
fn node_is_connected_if_one_frontend_has_its_stream() {
    let observer = NodeStatus { role: Role::Observer.into(), ..node("a", 0) };
    let answers = vec![
        ("https://a", Ok(frontend(1, 9, vec![node("a", 9), absent("b", 60), absent("c", 60), observer]))),
        ("https://b", Ok(frontend(2, 4, vec![node("b", 4), absent("a", 60), absent("c", 20)]))),
        // The first one at another address.
        ("https://c", Ok(frontend(1, 9, vec![node("a", 9), absent("b", 60)]))),
    ];
    let overview = join(answers, &args(&[]));
    assert_eq!(states(&overview), [("c", NodeHealth::Absent), ("a", NodeHealth::Healthy), ("b", NodeHealth::Healthy)]);
    assert_eq!((overview.frontends.len(), overview.observers), (2, 1));
    let expected = "\
NODE   BACKEND    VERSION   REVISION   LAG     APPLIED IN   STATE       FRONTEND
c      -          -         -          20.0s   -            no stream   -
a      nftables   0.1.0     9          -       1ms          ok          https://a
b      nftables   0.1.0     4          -       1ms          ok          https://b
3 nodes: 2 healthy, 0 behind, 0 with rejected service ports, 1 without a stream; 1 observers
programmed on 2 of 3 nodes; 1 has no stream
https://a: revision 9 on every connected node, 7 service ports, 21 endpoints
https://b: revision 4 on every connected node, 7 service ports, 21 endpoints
";
    assert_eq!(table::render(&overview, &args(&[])), expected);
}

/// The picture in the README was taken of real programs.
#[test]
fn picture_has_the_words_of_the_command() {
    let applied = |name, programmed, apply_micros| NodeStatus { apply_micros, ..node(name, programmed) };
    let pod = EndingPod {
        addresses: vec![[10, 244, 1, 11].to_vec().into()],
        state: DrainState::Behind.into(),
        services: vec!["shop/web".to_owned()],
        behind: vec!["node-c".to_owned()],
        waits_for_more: false,
        ending_micros: 6_100_000,
    };
    let behind = NodeStatus { lag_micros: 6_200_000, ..applied("node-c", 2, 46_000) };
    let nodes = vec![applied("node-a", 3, 3_000), applied("node-b", 3, 1_000), behind];
    let status = frontend(1, 3, nodes);
    let status = StatusResponse { service_ports: 3, endpoints: 8, ending_pods: vec![pod], ..status };
    let overview = join(vec![("http://127.0.0.1:7600", Ok(status))], &args(&[]));

    let picture = include_str!("../../../../docs/images/status.svg");
    for line in table::render(&overview, &args(&[])).lines().filter(|line| !line.is_empty()) {
        assert!(picture.contains(&format!(">{line}</text>")), "{line}");
    }
}

/// No node has anything: the newest revision is none that nodes have programmed.
#[test]
fn revision_without_any_backend_is_programmed_nowhere() {
    let overview = join(vec![("https://a", Ok(frontend(1, 4, vec![absent("a", 9), absent("b", 9)])))], &args(&[]));

    assert!(!overview.is_healthy());
    let expected = "\
2 nodes: 0 healthy, 0 behind, 0 with rejected service ports, 2 without a stream
programmed on 0 of 2 nodes; 2 have no stream
https://a: revision 4, no connected node, 7 service ports, 21 endpoints
";
    let text = table::render(&overview, &args(&[]));
    assert!(text.ends_with(expected), "{text}");
    let document = json::of(&overview, &args(&[]));
    assert!(document["frontends"][0]["programmed_on_all_nodes"].is_null(), "{document}");
    assert_eq!((&document["summary"]["programmed"], &document["healthy"]), (&0.into(), &false.into()));
}

#[test]
fn number_for_all_nodes_needs_the_streams_of_all_nodes() {
    let number = |nodes, args: &[&str]| {
        let args = parse(&[&["--frontend", "https://frontends:7600"], args].concat());
        let overview = join(vec![("https://a", Ok(frontend(1, 4, nodes)))], &args);
        json::of(&overview, &args)["frontends"][0]["programmed_on_all_nodes"].as_u64()
    };
    assert_eq!(number(vec![node("a", 4), node("b", 3)], &[]), Some(3));
    assert_eq!(number(vec![node("a", 4), absent("b", 9)], &[]), None);
    let shadow = NodeStatus { role: Role::Shadow.into(), ..node("b", 4) };
    assert_eq!(number(vec![node("a", 4), shadow], &[]), None);
    assert_eq!(number(vec![node("a", 4)], &["--node", "a"]), None, "the answer has one node only");
}

/// Other nodes may be connected to other replicas.
#[test]
fn socket_of_one_replica_speaks_of_its_own_nodes() {
    let nodes = vec![absent("a", 60), node("b", 9), behind("c", 8, 1)];
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &socket_args(&[]));

    assert!(overview.is_healthy() && is_as_wanted(&overview, &socket_args(&[])));
    assert!(!is_as_wanted(&overview, &socket_args(&["--wait"])), "a node may have no stream at all");
    let expected = "\
NODE   BACKEND    VERSION   REVISION   LAG        APPLIED IN   STATE
b      nftables   0.1.0     9          -          1ms          ok
c      nftables   0.1.0     8          1.0s (1)   1ms          ok
a      -          -         -          -          -            not connected to this replica
3 nodes: 2 healthy, 0 behind, 0 with rejected service ports, 1 not connected to this replica
programmed on 1 of the 2 nodes connected to this replica; 1 has an older revision
unix:/s: revision 9, 8 on every connected node, 7 service ports, 21 endpoints
";
    assert_eq!(table::render(&overview, &socket_args(&[])), expected);
    let document = json::of(&overview, &socket_args(&[]));
    assert_eq!((&document["scope"], &document["healthy"]), (&"one_replica".into(), &true.into()));
    assert_eq!(document["nodes"][2]["state"], "not_connected_here");
    assert!(document["frontends"][0]["programmed_on_all_nodes"].is_null(), "{document}");

    let elsewhere = join(vec![("unix:/s", Ok(frontend(1, 9, vec![absent("a", 60)])))], &socket_args(&[]));
    assert!(!elsewhere.is_healthy(), "no node is known to work");
    let text = table::render(&elsewhere, &socket_args(&[]));
    assert!(text.contains("\nno node is connected to this replica\n"), "{text}");
    let nodes = (0..100).map(|number| absent(&format!("node-{number}"), 3)).collect();
    let text = table::render(&join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &socket_args(&[])), &socket_args(&[]));
    assert!(text.contains("... and 60 more: 0 healthy, 0 not, 60 not connected to this replica (--all"), "{text}");
}

#[test]
fn newest_stream_of_a_node_counts() {
    let old = NodeStatus { connected_micros: 1, ..behind("a", 3, 600) };
    for nodes in [vec![old.clone(), node("a", 9)], vec![node("a", 9), old]] {
        let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &args(&[]));
        assert_eq!(states(&overview), [("a", NodeHealth::Healthy)]);
    }
}

#[test]
fn waiting_requires_the_revision_at_its_start() {
    let answer = |programmed| vec![("unix:/s", Ok(frontend(1, 9, vec![behind("a", programmed, 1)])))];
    let before = join(answer(8), &args(&[]));
    assert!(before.is_healthy(), "within --max-lag");
    let join = |answers| join_requiring(&before.revisions(), answers, &args(&[]));
    assert_eq!(states(&join(answer(8))), [("a", NodeHealth::Behind)]);
    assert!(join(answer(9)).is_healthy());
    // A restarted frontend has another epoch.
    assert!(join(vec![("unix:/s", Ok(frontend(2, 3, vec![node("a", 3)])))]).is_healthy());
}

#[test]
fn long_lists_of_nodes_are_cut() {
    let mut nodes: Vec<_> = (0..5000).map(|number| node(&format!("node-{number:04}"), 9)).collect();
    nodes[4000] = absent("node-4000", 3);
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &args(&[]));
    let text = table::render(&overview, &args(&[]));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 40 + 4);
    assert!(lines[1].starts_with("node-4000"));
    assert_eq!(lines[41], "... and 4960 more: 4960 healthy, 0 not (--all lists them)");
    assert_eq!(table::render(&overview, &args(&["--all"])).lines().count(), 1 + 5000 + 3);
}

#[test]
fn one_node_is_shown_with_all_its_rejected_service_ports() {
    let args = args(&["--node", "b"]);
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, vec![failing("b", 9)])))], &args);
    let text = table::render(&overview, &args);
    let expected = "\
REJECTED          RETRIED   REASON
default/web/tcp   yes       no such module
";
    assert!(text.contains(expected), "{text}");
    let nowhere = join(vec![("unix:/s", Ok(frontend(1, 9, Vec::new())))], &args);
    assert_eq!(states(&nowhere), [("b", NodeHealth::Absent)]);
}

#[test]
fn problems_are_listed_instead_of_nodes() {
    let problem = Problem {
        object: "Service default/web".to_owned(),
        field: "spec.externalIPs[0]".to_owned(),
        message: "is no address".to_owned(),
    };
    let kind = WatchStatus {
        kind: "Node".to_owned(),
        phase: WatchPhase::Watching.into(),
        age_micros: Some(3_000_000),
        lists: 2,
        failures: 1,
        last_error: "refused".to_owned(),
    };
    let listing = frontend(1, 9, vec![node("a", 9)]);
    let listing = StatusResponse { problems: vec![problem], watches: vec![kind], ready: false, ..listing };
    let other = StatusResponse { problems: listing.problems.clone(), ..frontend(2, 9, Vec::new()) };
    let overview = join(vec![("unix:/s", Ok(listing)), ("unix:/t", Ok(other))], &args(&[]));
    assert!(!overview.is_healthy(), "a frontend is not ready");
    let expected = "\
OBJECT                FIELD                 PROBLEM
Service default/web   spec.externalIPs[0]   is no address

FRONTEND   KIND   CONFIRMED   LISTS   FAILURES   LAST ERROR
unix:/s    Node   3.0s ago    2       1          refused

1 nodes: 1 healthy, 0 behind, 0 with rejected service ports, 0 without a stream
programmed on all 1 nodes
unix:/s: revision 9 on every connected node, 7 service ports, 21 endpoints, not ready: first list of all objects pending, 1 problems (--problems lists them)
unix:/t: revision 9, no connected node, 7 service ports, 21 endpoints, 1 problems (--problems lists them)
";
    assert_eq!(table::render(&overview, &args(&["--problems"])), expected);
}

/// Its nodes have everything that it knows, which is old.
#[test]
fn frontend_that_does_not_follow_the_api_is_named() {
    let watch = |kind: &str, seconds: u64, failures| WatchStatus {
        kind: kind.to_owned(),
        phase: WatchPhase::Watching.into(),
        age_micros: Some(seconds * 1_000_000),
        failures,
        ..WatchStatus::default()
    };
    let overview = |watches| {
        let status = StatusResponse { watches, ..frontend(1, 3, vec![node("a", 3)]) };
        join(vec![("unix:/a", Ok(status)), ("unix:/b", Ok(frontend(2, 17, vec![node("b", 17)])))], &args(&[]))
    };
    let lost = overview(vec![watch("Node", 30, 1), watch("Service", 181, 1), watch("EndpointSlice", 337, 7)]);
    assert!(!lost.is_healthy());
    assert_eq!(json::of(&lost, &args(&[]))["healthy"], false);
    let expected = "\
unix:/a: revision 3 on every connected node, 7 service ports, 21 endpoints, does not follow the API: Service, EndpointSlice not confirmed for 5m37s (--problems has the errors)
unix:/b: revision 17 on every connected node, 7 service ports, 21 endpoints
";
    let text = table::render(&lost, &args(&[]));
    assert!(text.ends_with(expected), "{text}");
    // A kind without events and bookmarks, a failure that may pass, and a kind that the API does not have any more.
    let not_offered = WatchStatus { phase: WatchPhase::NotOffered.into(), ..watch("ServiceCIDR", 900, 3) };
    let fine = overview(vec![watch("Node", 140, 0), watch("Service", 170, 9), not_offered]);
    assert!(fine.is_healthy(), "{}", table::render(&fine, &args(&[])));
}

#[test]
fn unreachable_frontend_is_named() {
    let overview = join(
        vec![("unix:/a", Err(anyhow!("refused"))), ("unix:/b", Ok(frontend(1, 9, vec![node("a", 9)])))],
        &args(&[]),
    );
    let unreachable = join(vec![("unix:/a", Err(anyhow!("refused")))], &args(&[]));
    assert_eq!(table::render(&unreachable, &args(&[])), "");
    let document = json::of(&overview, &args(&[]));
    assert_eq!(document["healthy"], false);
    // One node is connected to one frontend, and the exit code is 0.
    assert_eq!(json::of(&overview, &args(&["--node", "a"]))["healthy"], true);
    assert_eq!(document["unreachable_frontends"][0]["error"], "refused");
    assert_eq!(document["nodes"][0]["state"], "healthy");
    assert_eq!(document["nodes"][0]["frontend"], "unix:/b");
    assert_eq!(document["frontends"][0]["programmed_on_all_nodes"], 9);
}

/// A frontend of a later version may have more of them.
#[test]
fn unknown_values_of_enums_have_a_name_in_json() {
    let status = StatusResponse {
        watches: vec![WatchStatus { phase: 99, ..WatchStatus::default() }],
        ending_pods: vec![EndingPod { state: 99, ..EndingPod::default() }],
        ..frontend(1, 9, vec![NodeStatus { mode: 99, ..node("a", 9) }])
    };
    let document = json::of(&join(vec![("unix:/s", Ok(status))], &args(&[])), &args(&[]));
    assert_eq!(document["frontends"][0]["watches"][0]["phase"], "listing");
    assert_eq!(document["draining_pods"][0]["state"], "unknown");
    assert!(document["nodes"][0]["mode"].is_null(), "{document}");
}

#[test]
fn durations_have_one_or_two_units() {
    let times = [850, 12_300, 3_250_000, 310_000_000, 10_920_000_000, 180_000_000_000];
    assert_eq!(times.map(table::short), ["850us", "12ms", "3.2s", "5m10s", "3h2m", "2d2h"]);
}

#[test]
fn node_that_does_not_serve_an_ip_family_is_not_healthy() {
    let text = "IPv4 is not programmed: no such table".to_owned();
    let degraded = NodeStatus { degraded: vec![text], ..failing("b", 9) };
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, vec![failing("a", 9), degraded])))], &args(&[]));
    assert_eq!(states(&overview), [("b", NodeHealth::Degraded), ("a", NodeHealth::Failing)]);
    assert!(!overview.is_healthy());
    let table = table::render(&overview, &args(&[]));
    assert!(table.contains(", degraded: IPv4 is not programmed: no such table\n"), "{table}");
    let summary = "2 nodes: 0 healthy, 0 behind, 1 with rejected service ports, 0 without a stream; 1 degraded\n";
    assert!(table.contains(summary), "{table}");
    let document = json::of(&overview, &args(&[]));
    assert_eq!((&document["nodes"][0]["state"], &document["healthy"]), (&"degraded".into(), &false.into()));
    assert_eq!(document["summary"]["degraded"], 1);
}

#[test]
fn node_with_only_a_shadow_is_not_healthy() {
    let shadow = |name| NodeStatus { role: Role::Shadow.into(), ..node(name, 9) };
    let nodes = vec![node("a", 9), shadow("a"), shadow("b"), absent("b", 60)];
    let overview = join(vec![("https://a", Ok(frontend(1, 9, nodes)))], &args(&[]));
    assert_eq!(states(&overview), [("b", NodeHealth::Shadow), ("a", NodeHealth::Healthy)]);
    assert!(!overview.is_healthy());
}
