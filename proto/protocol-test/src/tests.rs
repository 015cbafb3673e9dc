//! For each rule a client violates that rule only, and the scenario about the rule must report it.

mod client;

use std::{fs, time::Duration};

use futures::future::join_all;
use tokio::task::JoinSet;

use self::client::{Fault, NODE};
use crate::{SCENARIOS, ScenarioResult, Server, TestOptions, Verdict, run};

/// A fault, the scenario that detects it, and a part of what it reports.
const FAULTS: &[(Fault, &str, &str)] = &[
    (Fault::AckFirst, "hello", "sent an Ack of number 1 before Hello"),
    (Fault::OtherNode, "hello", "sent Hello for node \"other\" instead of \"test-node\""),
    (Fault::OtherVersion, "hello", "the client supports version 9"),
    (Fault::AckBeforeWelcome, "hello", "sent an Ack of number 1 before the Welcome"),
    (Fault::SecondHello, "snapshot", "sent a second Hello"),
    (Fault::NoAck, "snapshot", "did not ack revision 1000"),
    (Fault::OtherNumber, "snapshot", "acked number 2, but 1 was sent"),
    (Fault::OtherDigest, "snapshot", "but that of the committed state is"),
    (Fault::WrongApplyTimeUnit, "snapshot", "with an apply time of 1000s"),
    (Fault::UnknownFailure, "empty-snapshot", "reported a failure of elsewhere/nothing/tcp"),
    (Fault::SecondStream, "snapshot", "opened a second stream"),
    (Fault::RepeatsAcks, "snapshot", "the limit is 64 at once, then 10 per second"),
    (Fault::RejectsEmptyBatches, "waiting", "ended the stream"),
    (Fault::CommitsFirstTarget, "waiting", "ended the stream"),
    (Fault::AcksEachBatch, "several-batches", "sent an Ack of number 2 before the batch with commit"),
    (Fault::AcksBeforeKernel, "ack-after-kernel", "which is in the committed state"),
    (Fault::DrainsOfOtherNode, "drain-levels", "called Drains for node \"other\" instead of \"test-node\""),
    (Fault::SecondDrains, "drain-levels", "called Drains a second time while the first stream was open"),
    (Fault::RejectsUnknownStates, "drain-levels", "ended the stream of Drains after a level with state 99"),
    (Fault::RepeatsDrainsAtOnce, "drain-levels", "the limit is 8 at once, then 1 per second"),
    (Fault::NeverRepeatsDrains, "drain-levels", "did not call Drains again within 8s after an error"),
    (Fault::KeepsUncommitted, "uncommitted", "but that of the committed state is"),
    (Fault::ForgetsPools, "deltas", "(after put_service_port of an existing service port)"),
    (Fault::AddsFirst, "deltas", "(after change_pool that removes and adds an endpoint)"),
    (Fault::KeepsUnknownPools, "deltas", "(after put_service_port after its pool was ignored)"),
    (Fault::GroupsOperations, "order", "(after an endpoint that is added and removed)"),
    (Fault::RemovesLast, "order", "(after an endpoint that is removed and added)"),
    (Fault::IgnoresEstablishedPools, "established-pools", "but that of the committed state is"),
    (Fault::IgnoresReset, "reset-bucket", "but that of the committed state is"),
    (Fault::RejectsSecondSnapshot, "snapshot-again", "ended the stream"),
    (Fault::IgnoresBookmarks, "bookmark", "did not ack revision 1001"),
    (Fault::KeepsBaseAtBookmarks, "bookmark", "ended the stream"),
    (Fault::CountsOn, "numbers", "acked number 4, but 1 was sent"),
    (Fault::IgnoresBase, "wrong-base", "did not end the stream"),
    (Fault::IgnoresDigestRequests, "digest-request", "did not send a DigestResponse"),
    (Fault::OtherDigests, "digest-request", "entry 7 is not that of the committed state"),
    (Fault::EmptyDigests, "repair", "sent the digests of revision 0, but has committed 1000"),
    (Fault::RejectsUnknownFields, "unknown-fields", "ended the stream"),
    (Fault::SkipsUnknownOperations, "unknown-operation", "sent an Ack of number 2 after an unknown operation"),
    (Fault::RejectsLargeMessages, "large-message", "ended the stream after a message of 1 MiB"),
    (Fault::ForgetsRevision, "resume", "sent Hello with revision 1000, but has acked 1001"),
    (Fault::RejectsOtherEpochs, "another-frontend", "ended the stream"),
    (Fault::OtherSourceVersion, "source-version", "sent source version 5, but that of the last commit is"),
    (Fault::IgnoresDrain, "drain", "did not end the stream within 6.5s after a Drain"),
    (Fault::ReconnectsAtOnce, "reconnect", "after an error: the minimum is 200ms"),
    (Fault::EndsStreamEarly, "silence", "ended the stream"),
];

/// Runs scenarios against a client with this fault.
async fn run_scenarios(fault: Fault, scenarios: &[&str]) -> Vec<ScenarioResult> {
    run_scenarios_with(&[], fault, scenarios).await
}

/// As [`run_scenarios`], with a command that is started for each scenario beside the client.
async fn run_scenarios_with(command: &[&str], fault: Fault, scenarios: &[&str]) -> Vec<ScenarioResult> {
    let server = Server::listen("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let state_file = directory.path().join("state");
    fs::write(&state_file, "[]").unwrap();
    let state_command = scenarios.contains(&"ack-after-kernel").then(|| format!("cat {}", state_file.display()));
    let mut clients = JoinSet::new();
    clients.spawn(client::run(server.address().to_owned(), fault, state_file));
    let options = TestOptions {
        node: NODE.into(),
        scenarios: scenarios.iter().map(ToString::to_string).collect(),
        patience: Duration::from_secs(8),
        command: command.iter().map(ToString::to_string).collect(),
        state_command,
        log: None,
    };
    run(server, options, |_| ()).await.unwrap().results
}

#[tokio::test]
async fn each_fault_is_detected_and_described() {
    let runs = FAULTS.iter().map(|(fault, scenario, _)| run_scenarios(*fault, std::slice::from_ref(scenario)));
    let mut missed = Vec::new();
    for ((fault, scenario, text), results) in FAULTS.iter().zip(join_all(runs).await) {
        let [ScenarioResult { verdict, observed, .. }] = &results[..] else { panic!("{fault:?}: {results:?}") };
        if *verdict != Verdict::Fail || !observed.contains(text) {
            missed.push(format!("{fault:?} in {scenario}: {verdict} {observed}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Equal delays may be measured as different ones on a busy machine.
#[tokio::test]
async fn equal_delays_before_reconnecting_are_detected() {
    let mut observed = Vec::new();
    for _ in 0..5 {
        let results = run_scenarios(Fault::ReconnectsInStep, &["reconnect"]).await;
        if results[0].verdict == Verdict::Fail && results[0].observed.ends_with("the delays must be random") {
            return;
        }
        observed.push(results[0].observed.clone());
    }
    panic!("{observed:#?}");
}

/// A digest does not say what differs.
#[tokio::test]
async fn contents_are_compared_before_digests() {
    // The other scenario adds a state command.
    let results = run_scenarios(Fault::KeepsUnknownPools, &["deltas", "ack-after-kernel"]).await;
    assert_eq!(
        results[0].observed,
        "has programmed protocol-test/unknown/tcp with other endpoints than committed: missing none; not committed \
         203.0.113.1:8001 (after put_service_port after its pool was ignored)"
    );
}

#[tokio::test]
async fn a_correct_client_passes() {
    let runs = SCENARIOS.iter().map(|scenario| run_scenarios(Fault::None, std::slice::from_ref(&scenario.name)));
    for result in join_all(runs).await.into_iter().flatten() {
        // The test cannot restart its client.
        let expected = if result.scenario == "restart" { Verdict::Skip } else { Verdict::Pass };
        assert_eq!(result.verdict, expected, "{}: {}", result.scenario, result.observed);
    }
}

#[tokio::test]
async fn a_client_that_acks_before_it_has_programmed_passes() {
    for result in run_scenarios(Fault::ProgramsLater, &["snapshot", "several-batches", "ack-after-kernel"]).await {
        assert_eq!(result.verdict, Verdict::Pass, "{}: {}", result.scenario, result.observed);
    }
}

#[tokio::test]
async fn unsupported_optional_parts_are_skipped() {
    let names = ["digest-request", "repair", "resume", "source-version", "drain-levels"];
    for result in run_scenarios(Fault::Minimal, &names).await {
        assert_eq!(result.verdict, Verdict::Skip, "{}: {}", result.scenario, result.observed);
    }
    for result in run_scenarios(Fault::Minimal, &["snapshot", "snapshot-again", "another-frontend"]).await {
        assert_eq!(result.verdict, Verdict::Pass, "{}: {}", result.scenario, result.observed);
    }
}

#[tokio::test]
async fn contents_of_a_client_without_digests_are_compared_with_a_state_command_only() {
    let names =
        ["empty-snapshot", "several-batches", "uncommitted", "deltas", "order", "established-pools", "reset-bucket"];
    for result in run_scenarios(Fault::Minimal, &names).await {
        assert_eq!(result.verdict, Verdict::Skip, "{}: {}", result.scenario, result.observed);
        assert!(result.observed.contains("contents not compared"), "{}: {}", result.scenario, result.observed);
    }
    let with_state_command: Vec<_> = names.into_iter().chain(["ack-after-kernel"]).collect();
    for result in run_scenarios(Fault::Minimal, &with_state_command).await {
        assert_eq!(result.verdict, Verdict::Pass, "{}: {}", result.scenario, result.observed);
    }
}

#[tokio::test]
async fn a_command_that_fails_ends_the_wait_for_a_stream() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    for (log, shown) in [
        (None, "after the output \"No module named grpc\"".to_owned()),
        (Some(log.clone()), format!("its output is in {}", log.display())),
    ] {
        let server = Server::listen("127.0.0.1:0").await.unwrap();
        let command = ["/bin/sh", "-c", "echo; echo 'No module named grpc' >&2; exit 3"];
        let options = TestOptions {
            node: NODE.into(),
            scenarios: vec!["hello".to_owned()],
            patience: Duration::from_secs(60),
            command: command.iter().map(ToString::to_string).collect(),
            state_command: None,
            log,
        };
        let report = run(server, options, |_| ()).await.unwrap();
        let ScenarioResult { verdict, observed, seconds, .. } = &report.results[0];
        let expected = format!("did not open a stream; the backend has exited: exit status: 3, {shown}");
        assert_eq!((*verdict, observed), (Verdict::Fail, &expected));
        assert!(*seconds < 30.0, "{seconds}");
    }
    assert_eq!(fs::read_to_string(log).unwrap(), "\nNo module named grpc\n");
}

#[tokio::test]
async fn a_command_that_starts_the_backend_in_the_background_passes() {
    for result in run_scenarios_with(&["true"], Fault::None, &["hello", "restart"]).await {
        assert_eq!(result.verdict, Verdict::Pass, "{}: {}", result.scenario, result.observed);
    }
}

#[test]
fn each_scenario_detects_a_fault() {
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name != "restart") {
        let has_fault = FAULTS.iter().any(|(_, name, _)| *name == scenario.name);
        assert!(has_fault, "{}: add a fault that it detects", scenario.name);
    }
}

#[test]
fn unknown_scenarios_are_rejected() {
    let error = crate::select(&["hello".to_owned(), "goodbye".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("\"goodbye\""), "{error}");
}
