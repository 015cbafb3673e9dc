//! Expected results of VIPs, and verdicts on observations.

use std::net::{IpAddr, SocketAddr};

use backend::testing::mk_state;
use proto::model::Protocol;

use super::{
    plan::{ProbeTarget, TestedVipKind, probe_targets},
    probe::{ConnectionOutcome, Observation},
    verdict::judge,
};
use crate::{commands::check::Level, takeover::ConnectionVerdict};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn expected_results_follow_from_the_state() {
    let state = mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").port(80).endpoints(["10.244.1.1:8080"]))
        .service("default/none", |none| none.cluster_ip("10.96.0.2").port(80))
        .build();
    let targets = probe_targets(&state, |_| true, |_: IpAddr| None);
    let planned: Vec<_> = targets.iter().map(|target| (target.address, target.expected.clone())).collect();
    let expected = [
        (socket("10.96.0.2:80"), ConnectionVerdict::Reject),
        (socket("10.96.0.1:80"), ConnectionVerdict::Endpoints([socket("10.244.1.1:8080")].into())),
    ];
    assert_eq!(planned, expected);
}

fn target(has_affinity: bool, expected: ConnectionVerdict) -> ProbeTarget {
    ProbeTarget {
        service: "default/web/tcp".to_owned(),
        vip_kind: TestedVipKind::ClusterIp,
        protocol: Protocol::Tcp,
        address: socket("10.96.0.1:80"),
        has_affinity,
        expected,
    }
}

fn pool() -> ConnectionVerdict {
    ConnectionVerdict::Endpoints([socket("10.244.1.1:80"), socket("10.244.1.2:80")].into())
}

fn answered_by(endpoints: &[&str]) -> Vec<Observation> {
    let observation = |endpoint: &&str| Observation {
        outcome: ConnectionOutcome::Answered,
        duration: Default::default(),
        endpoint: Some(socket(endpoint)),
    };
    endpoints.iter().map(observation).collect()
}

fn one(outcome: ConnectionOutcome) -> Vec<Observation> {
    vec![Observation { outcome, duration: Default::default(), endpoint: None }]
}

#[test]
fn verdict_follows_from_observations() {
    let verdict = |has_affinity, expected, observations: &[Observation]| {
        judge(&target(has_affinity, expected), observations).verdict
    };
    let [first, second, other] = ["10.244.1.1:80", "10.244.1.2:80", "10.244.9.9:80"];
    assert_eq!(verdict(false, pool(), &answered_by(&[first, second])), Level::Ok);
    assert_eq!(verdict(false, pool(), &answered_by(&[first, other])), Level::Fail);
    assert_eq!(verdict(false, pool(), &answered_by(&[first; 8])), Level::Warn);
    assert_eq!(verdict(true, pool(), &answered_by(&[first; 8])), Level::Ok);
    assert_eq!(verdict(true, pool(), &answered_by(&[first, second])), Level::Fail);
    assert_eq!(verdict(false, pool(), &one(ConnectionOutcome::Refused)), Level::Fail);
    assert_eq!(verdict(false, pool(), &one(ConnectionOutcome::Sent)), Level::Ok);
    assert_eq!(verdict(false, ConnectionVerdict::Reject, &one(ConnectionOutcome::Refused)), Level::Ok);
    assert_eq!(verdict(false, ConnectionVerdict::Reject, &one(ConnectionOutcome::NoReply)), Level::Fail);
    assert_eq!(verdict(false, ConnectionVerdict::Drop, &one(ConnectionOutcome::NoReply)), Level::Ok);
    assert_eq!(verdict(false, ConnectionVerdict::Drop, &answered_by(&[first])), Level::Fail);
}
