//! Each rule is broken once, by a client that does everything else right, and the scenario about it says so.

mod client;

use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinSet;

use self::client::{Fault, NODE};
use crate::{SCENARIOS, ScenarioResult, Server, TestOptions, Verdict, run};

/// What is broken, the scenario that finds it, and words that it says.
const BROKEN: &[(Fault, &str, &str)] = &[
    (Fault::AckFirst, "hello", "says an Ack of revision 1 first, and not Hello"),
    (Fault::OtherNode, "hello", "says Hello for node \"other\", and not \"conformance\""),
    (Fault::OtherVersion, "hello", "protocol_version"),
    (Fault::TalksTooEarly, "hello", "says an Ack of revision 1 before the Welcome"),
    (Fault::SecondHello, "snapshot", "says a second Hello"),
    (Fault::NoAck, "snapshot", "has not acked revision 1000"),
    (Fault::OtherRevision, "snapshot", "has acked revision 1001, but 1000 was sent"),
    (Fault::OtherDigest, "snapshot", "but what was committed has"),
    (Fault::Nanoseconds, "snapshot", "says that applying took"),
    (Fault::StrangeFailure, "empty-snapshot", "could not program elsewhere/nothing/tcp, of which it was told nothing"),
    (Fault::SecondStream, "snapshot", "a second stream of the same agent"),
    (Fault::AcksEachBatch, "several-batches", "says an Ack of revision 1001 before the batch with commit"),
    (Fault::KeepsUncommitted, "uncommitted", "but what was committed has"),
    (Fault::ForgetsPools, "deltas", "after put_service_port of one that is there: acks"),
    (Fault::IgnoresReset, "reset-bucket", "but what was committed has"),
    (Fault::OnlyOneSnapshot, "snapshot-again", "has ended the stream"),
    (Fault::IgnoresBookmarks, "bookmark", "has not acked revision 1001"),
    (Fault::StaysBehindBookmarks, "bookmark", "has ended the stream"),
    (Fault::IgnoresBase, "wrong-base", "does not end the stream"),
    (Fault::KeepsDigests, "digest-request", "has not sent its digests"),
    (Fault::OtherDigests, "digest-request", "entry 7 is not that of what was committed"),
    (Fault::DigestsOfNothing, "repair", "sends the digests of revision 0, but it holds 1000"),
    (Fault::RefusesUnknownFields, "unknown-fields", "has ended the stream"),
    (Fault::SkipsUnknownOperations, "unknown-operation", "says an Ack of revision 1001 after an operation"),
    (Fault::SmallMessages, "large-message", "has ended the stream after a message of 1 MiB"),
    (Fault::ForgetsRevision, "resume", "says in Hello that it holds revision 1000, but it has acked 1001"),
    (Fault::OneFrontend, "another-frontend", "has ended the stream"),
    (Fault::OtherSourceVersion, "source-version", "says source version 5, but that of the last commit was"),
    (Fault::IgnoresDrain, "drain", "has not ended the stream within 6.5s after a Drain"),
    (Fault::ComesBackAtOnce, "reconnect", "after an error: 200ms is the least"),
    (Fault::LeavesEarly, "silence", "has ended the stream"),
];

/// Plays scenarios with a client that has this fault.
async fn played(fault: Fault, scenarios: &[&str]) -> Vec<ScenarioResult> {
    let server = Server::listen("127.0.0.1:0").await.unwrap();
    let mut clients = JoinSet::new();
    clients.spawn(client::run(server.address(), fault));
    let options = TestOptions {
        node: NODE.into(),
        scenarios: scenarios.iter().map(ToString::to_string).collect(),
        patience: Duration::from_secs(8),
        command: Vec::new(),
        state_command: None,
        log: None,
    };
    run(server, options, |_| ()).await.unwrap().outcomes
}

#[tokio::test]
async fn each_broken_rule_is_found_and_named() {
    let found = join_all(BROKEN.iter().map(|(fault, scenario, _)| played(*fault, std::slice::from_ref(scenario))));
    let mut missed = Vec::new();
    for ((fault, scenario, words), outcomes) in BROKEN.iter().zip(found.await) {
        let is_found = |outcome: &ScenarioResult| outcome.verdict == Verdict::Fail && outcome.seen.contains(words);
        let [outcome] = &outcomes[..] else { panic!("{fault:?}: {outcomes:?}") };
        if !is_found(outcome) {
            missed.push(format!("{fault:?} in {scenario}: {} {}", outcome.verdict, outcome.seen));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test]
async fn one_that_breaks_none_passes() {
    let all: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    let found = join_all(all.iter().map(|name| played(Fault::None, std::slice::from_ref(name)))).await;
    for outcome in found.into_iter().flatten() {
        // Nobody here can start it again.
        let expected = if outcome.scenario == "restart" { Verdict::Skip } else { Verdict::Pass };
        assert_eq!(outcome.verdict, expected, "{}: {}", outcome.scenario, outcome.seen);
    }
}

#[tokio::test]
async fn what_may_be_left_out_is_skipped() {
    let names = ["digest-request", "repair", "resume", "source-version"];
    for outcome in played(Fault::Minimal, &names).await {
        assert_eq!(outcome.verdict, Verdict::Skip, "{}: {}", outcome.scenario, outcome.seen);
    }
    for outcome in played(Fault::Minimal, &["snapshot", "deltas", "another-frontend", "reset-bucket"]).await {
        assert_eq!(outcome.verdict, Verdict::Pass, "{}: {}", outcome.scenario, outcome.seen);
    }
}

#[test]
fn every_scenario_can_fail() {
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name != "restart") {
        let is_broken = BROKEN.iter().any(|(_, name, _)| *name == scenario.name);
        assert!(is_broken, "{}: break what it is about", scenario.name);
    }
}

#[test]
fn unknown_scenarios_are_refused() {
    let error = crate::chosen(&["hello".to_owned(), "goodbye".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("\"goodbye\""), "{error}");
}
