//! What should be seen from a node, and what is made of what was.

use std::net::{IpAddr, SocketAddr};

use backend::testing::mk_state;
use proto::model::Protocol;

use super::{
    plan::{Affinity, Expected, Target, Way, targets},
    probe::{End, Observation},
    verdict::{Verdict, judge},
};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_node_sees_what_it_should() {
    let state = mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").port(80).endpoints(["10.244.1.1:8080"]))
        .service("default/none", |none| none.cluster_ip("10.96.0.2").port(80))
        .build();
    let targets = targets(&state, |_| true, |_: IpAddr| None);
    let seen: Vec<_> = targets.iter().map(|target| (target.address, target.expected.clone())).collect();
    let expected = [
        (socket("10.96.0.2:80"), Expected::Refused),
        (socket("10.96.0.1:80"), Expected::Endpoints(vec![socket("10.244.1.1:8080")])),
    ];
    assert_eq!(seen, expected);
}

fn target(affinity: Affinity, expected: Expected) -> Target {
    Target {
        service: "default/web/tcp".to_owned(),
        way: Way::ClusterIp,
        protocol: Protocol::Tcp,
        address: socket("10.96.0.1:80"),
        affinity,
        expected,
    }
}

fn pool() -> Expected {
    Expected::Endpoints(vec![socket("10.244.1.1:80"), socket("10.244.1.2:80")])
}

fn took(endpoints: &[&str]) -> Vec<Observation> {
    let observation = |endpoint: &&str| Observation {
        end: End::Answered,
        took: Default::default(),
        endpoint: Some(socket(endpoint)),
        status: None,
    };
    endpoints.iter().map(observation).collect()
}

fn ended(end: End) -> Vec<Observation> {
    vec![Observation { end, took: Default::default(), endpoint: None, status: None }]
}

#[test]
fn what_was_seen_is_judged() {
    let verdict = |affinity, expected, seen: &[Observation]| judge(&target(affinity, expected), seen).verdict;
    let [one, two, stranger] = ["10.244.1.1:80", "10.244.1.2:80", "10.244.9.9:80"];
    assert_eq!(verdict(Affinity::None, pool(), &took(&[one, two])), Verdict::Ok);
    assert_eq!(verdict(Affinity::None, pool(), &took(&[one, stranger])), Verdict::Fail);
    assert_eq!(verdict(Affinity::None, pool(), &took(&[one; 8])), Verdict::Warn);
    assert_eq!(verdict(Affinity::ClientIp, pool(), &took(&[one; 8])), Verdict::Ok);
    assert_eq!(verdict(Affinity::ClientIp, pool(), &took(&[one, two])), Verdict::Fail);
    assert_eq!(verdict(Affinity::None, pool(), &ended(End::Refused)), Verdict::Fail);
    assert_eq!(verdict(Affinity::None, pool(), &ended(End::Sent)), Verdict::Ok);
    assert_eq!(verdict(Affinity::None, Expected::Refused, &ended(End::Refused)), Verdict::Ok);
    assert_eq!(verdict(Affinity::None, Expected::Refused, &ended(End::Silence)), Verdict::Fail);
    assert_eq!(verdict(Affinity::None, Expected::Silence, &ended(End::Silence)), Verdict::Ok);
    assert_eq!(verdict(Affinity::None, Expected::Silence, &took(&[one])), Verdict::Fail);
}
