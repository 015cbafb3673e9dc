//! What several frontends say, joined, and how that is printed, to the letter.

use std::time::Duration;

use anyhow::{Error, anyhow};
use clap::Parser as _;
use proto::v1::{
    NodeStatus, Problem, Protocol, Role, ServicePortFailure, ServicePortKey, StatusResponse, WatchPhase, WatchStatus,
};

use super::{
    join::{Limits, Overview, State},
    json, table,
};
use crate::cli::{Cli, Command, StatusArgs};

fn node(name: &str, held: u64) -> NodeStatus {
    NodeStatus {
        node: name.to_owned(),
        role: Role::Backend.into(),
        backend: "nft".to_owned(),
        backend_version: "0.1.0".to_owned(),
        acked_revision: held,
        programmed_revision: held,
        apply_micros: 1500,
        connected: true,
        connected_micros: 10,
        ..NodeStatus::default()
    }
}

fn absent(name: &str, seconds: u64) -> NodeStatus {
    NodeStatus { node: name.to_owned(), lag_micros: seconds * 1_000_000, ..NodeStatus::default() }
}

fn behind(name: &str, held: u64, seconds: u64) -> NodeStatus {
    NodeStatus { lag_micros: seconds * 1_000_000, ..node(name, held) }
}

fn failing(name: &str, held: u64) -> NodeStatus {
    let key = ServicePortKey {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        port_name: String::new(),
        protocol: Protocol::Tcp.into(),
    };
    let failure = ServicePortFailure { key: Some(key), reason: "no such module".to_owned(), retryable: true, kind: 0 };
    NodeStatus { failures: vec![failure], failure_count: 3, ..node(name, held) }
}

fn frontend(epoch: u64, revision: u64, nodes: Vec<NodeStatus>) -> StatusResponse {
    StatusResponse {
        epoch,
        revision,
        service_ports: 7,
        endpoints: 21,
        programmed_on_all_nodes: revision,
        ready: true,
        nodes,
        ..StatusResponse::default()
    }
}

fn join(answers: Vec<(&str, Result<StatusResponse, Error>)>, limits: &Limits) -> Overview {
    Overview::of(answers.into_iter().map(|(address, answer)| (address.to_owned(), answer)).collect(), limits)
}

fn limits() -> Limits {
    Limits::new(Duration::from_secs(5), None)
}

fn args(args: &[&str]) -> StatusArgs {
    match Cli::try_parse_from([&["fairlead", "status"], args].concat()).unwrap().command {
        Command::Status(args) => args,
        other => panic!("{other:?}"),
    }
}

fn states(overview: &Overview) -> Vec<(&str, State)> {
    overview.nodes.iter().map(|row| (row.status.node.as_str(), row.state)).collect()
}

#[test]
fn what_is_wrong_comes_first() {
    let nodes =
        vec![node("a", 9), failing("b", 9), behind("c", 7, 6), behind("d", 9, 4), absent("e", 3), absent("f", 300)];
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &limits());
    let expected = [
        ("f", State::Absent),
        ("e", State::Absent),
        ("c", State::Behind),
        ("b", State::Failing),
        ("a", State::Well),
        ("d", State::Well),
    ];
    assert_eq!(states(&overview), expected);
    assert!(!overview.is_well());
    let expected = "\
NODE   BACKEND   VERSION   REVISION   LAG        APPLIED IN   STATE
f      -         -         -          5m0s       -            no stream
e      -         -         -          3.0s       -            no stream
c      nft       0.1.0     7          6.0s (2)   1ms          behind
b      nft       0.1.0     9          -          1ms          failed: default/web/tcp (no such module) and 2 more
a      nft       0.1.0     9          -          1ms          ok
d      nft       0.1.0     9          4.0s       1ms          ok
6 nodes: 2 well, 1 behind, 1 with failures, 2 without a stream
unix:/s: revision 9, in every kernel 9, 7 service ports, 21 endpoints
";
    assert_eq!(table::render(&overview, &args(&[])), expected);
}

#[test]
fn a_node_is_connected_if_one_frontend_has_it() {
    let observer = NodeStatus { role: Role::Observer.into(), ..node("a", 0) };
    let answers = vec![
        ("https://a", Ok(frontend(1, 9, vec![node("a", 9), absent("b", 60), absent("c", 60), observer]))),
        ("https://b", Ok(frontend(2, 4, vec![node("b", 4), absent("a", 60), absent("c", 20)]))),
        // The same as the first, behind another name.
        ("https://c", Ok(frontend(1, 9, vec![node("a", 9), absent("b", 60)]))),
    ];
    let overview = join(answers, &limits());
    assert_eq!(states(&overview), [("c", State::Absent), ("a", State::Well), ("b", State::Well)]);
    assert_eq!((overview.frontends.len(), overview.observers), (2, 1));
    let expected = "\
NODE   BACKEND   VERSION   REVISION   LAG     APPLIED IN   STATE       FRONTEND
c      -         -         -          20.0s   -            no stream   -
a      nft       0.1.0     9          -       1ms          ok          https://a
b      nft       0.1.0     4          -       1ms          ok          https://b
3 nodes: 2 well, 0 behind, 0 with failures, 1 without a stream; 1 observers
https://a: revision 9, in every kernel 9, 7 service ports, 21 endpoints
https://b: revision 4, in every kernel 4, 7 service ports, 21 endpoints
";
    assert_eq!(table::render(&overview, &args(&[])), expected);
}

#[test]
fn the_newest_stream_of_a_node_speaks_for_it() {
    let old = NodeStatus { connected_micros: 1, ..behind("a", 3, 600) };
    for nodes in [vec![old.clone(), node("a", 9)], vec![node("a", 9), old]] {
        let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &limits());
        assert_eq!(states(&overview), [("a", State::Well)]);
    }
}

#[test]
fn what_was_committed_when_waiting_began_must_be_there_whatever_the_lag() {
    let answer = |held| vec![("unix:/s", Ok(frontend(1, 9, vec![behind("a", held, 1)])))];
    let mut limits = limits();
    let before = join(answer(8), &limits);
    assert!(before.is_well(), "one second is put up with");
    limits.want(&before);
    assert_eq!(states(&join(answer(8), &limits)), [("a", State::Behind)]);
    assert!(join(answer(9), &limits).is_well());
    // Another run counts anew.
    assert!(join(vec![("unix:/s", Ok(frontend(2, 3, vec![node("a", 3)])))], &limits).is_well());
}

#[test]
fn thousands_of_nodes_are_cut_short() {
    let mut nodes: Vec<_> = (0..5000).map(|number| node(&format!("node-{number:04}"), 9)).collect();
    nodes[4000] = absent("node-4000", 3);
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, nodes)))], &limits());
    let text = table::render(&overview, &args(&[]));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 40 + 3);
    assert!(lines[1].starts_with("node-4000"));
    assert_eq!(lines[41], "... and 4960 more: 4960 well, 0 not (--all shows them)");
    assert_eq!(table::render(&overview, &args(&["--all"])).lines().count(), 1 + 5000 + 2);
}

#[test]
fn one_node_is_shown_with_all_that_it_could_not_program() {
    let limits = Limits::new(Duration::from_secs(5), Some("b".to_owned()));
    let overview = join(vec![("unix:/s", Ok(frontend(1, 9, vec![failing("b", 9)])))], &limits);
    let text = table::render(&overview, &args(&["--node", "b"]));
    let expected = "\
NOT IN FORCE      TRIED AGAIN   REASON
default/web/tcp   yes           no such module
";
    assert!(text.contains(expected), "{text}");
    let nowhere = join(vec![("unix:/s", Ok(frontend(1, 9, Vec::new())))], &limits);
    assert_eq!(states(&nowhere), [("b", State::Absent)]);
}

#[test]
fn problems_are_listed_in_place_of_nodes() {
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
    let overview = join(vec![("unix:/s", Ok(listing)), ("unix:/t", Ok(other))], &limits());
    assert!(!overview.is_well(), "it has not listed everything");
    let expected = "\
OBJECT                FIELD                 PROBLEM
Service default/web   spec.externalIPs[0]   is no address

FRONTEND   KIND   CONFIRMED   LISTS   FAILURES   LAST ERROR
unix:/s    Node   3.0s ago    2       1          refused

1 nodes: 1 well, 0 behind, 0 with failures, 0 without a stream
unix:/s: revision 9, in every kernel 9, 7 service ports, 21 endpoints, not ready: not all objects are listed yet, 1 problems (--problems lists them)
unix:/t: revision 9, in every kernel 9, 7 service ports, 21 endpoints, 1 problems (--problems lists them)
";
    assert_eq!(table::render(&overview, &args(&["--problems"])), expected);
}

#[test]
fn a_frontend_that_does_not_answer_is_named() {
    let overview = join(
        vec![("unix:/a", Err(anyhow!("refused"))), ("unix:/b", Ok(frontend(1, 9, vec![node("a", 9)])))],
        &limits(),
    );
    let nobody = join(vec![("unix:/a", Err(anyhow!("refused")))], &limits());
    assert_eq!(table::render(&nobody, &args(&[])), "");
    let document = json::of(&overview);
    assert_eq!(document["well"], false);
    assert_eq!(document["silent_frontends"][0]["error"], "refused");
    assert_eq!(document["nodes"][0]["state"], "well");
    assert_eq!(document["nodes"][0]["frontend"], "unix:/b");
    assert_eq!(document["frontends"][0]["programmed_on_all_nodes"], 9);
}

#[test]
fn times_are_short() {
    let short = |micros| table::short(Duration::from_micros(micros));
    let times = [850, 12_300, 3_250_000, 310_000_000, 10_920_000_000, 180_000_000_000];
    assert_eq!(times.map(short), ["850us", "12ms", "3.2s", "5m10s", "3h2m", "2d2h"]);
}

#[test]
fn a_shadow_is_no_agent_and_its_node_is_not_well() {
    let shadow = |name| NodeStatus { role: Role::Shadow.into(), ..node(name, 9) };
    let nodes = vec![node("a", 9), shadow("a"), shadow("b"), absent("b", 60)];
    let overview = join(vec![("https://a", Ok(frontend(1, 9, nodes)))], &limits());
    assert_eq!(states(&overview), [("b", State::Shadow), ("a", State::Well)]);
    assert!(!overview.is_well());
}
