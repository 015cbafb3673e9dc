//! The answers and owners of health-check node ports: tables, and random histories.

use super::*;
use crate::testing::{History, ServiceBuilder, StateBuilder, apply, mk_key, mk_state, operations_between};

const PORT: u16 = 32_000;

/// The answer at each port: port, family, Service and count.
fn answers(checks: &Checks) -> Vec<(u16, IpFamily, String, usize)> {
    let answers = checks.owners().map(|(port, _)| {
        let Check { service, local_endpoints } = checks.get(port).unwrap();
        (port.port.get(), port.family, service.to_string(), local_endpoints)
    });
    answers.collect()
}

fn of(state: &NodeState) -> Checks {
    let mut checks = Checks::default();
    checks.update(state, state.service_ports().keys());
    checks
}

fn count(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Vec<(IpFamily, usize)> {
    let state = mk_state().service("default/web", |web| build(web.health_check_node_port(PORT))).build();
    answers(&of(&state)).into_iter().map(|(_, family, _, count)| (family, count)).collect()
}

fn v4(web: ServiceBuilder) -> ServiceBuilder {
    web.cluster_ip("10.96.0.1")
}

fn both(web: ServiceBuilder) -> ServiceBuilder {
    v4(web).cluster_ip("fd00:96::1")
}

#[test]
fn local_endpoints_that_are_not_terminating_count() {
    use IpFamily::{V4, V6};
    let (one, two, six) = ("10.244.1.1:80", "10.244.1.2:80", "[fd00:244:1::1]:80");
    let cases = [
        ("none", count(v4), vec![(V4, 0)]),
        ("two", count(|web| v4(web).local_endpoints([one, two])), vec![(V4, 2)]),
        ("elsewhere", count(|web| v4(web).endpoints([one])), vec![(V4, 0)]),
        ("terminating", count(|web| v4(web).terminating_endpoints([one, two])), vec![(V4, 0)]),
        ("one of two ports of an address", count(|web| v4(web).local_endpoints([one, "10.244.1.1:81"])), vec![(V4, 1)]),
        (
            "each family has its own count",
            count(|web| both(web).local_endpoints([one, two, six])),
            vec![(V4, 2), (V6, 1)],
        ),
        ("no cluster IP, no family", count(|web| web.local_endpoints([one, six])), vec![]),
    ];
    for (case, counts, expected) in cases {
        assert_eq!(counts, expected, "{case}");
    }
}

#[test]
fn all_ports_of_a_service_are_one_check() {
    let port = |endpoints: [&'static str; 2]| {
        move |web: ServiceBuilder| v4(web).health_check_node_port(PORT).local_endpoints(endpoints)
    };
    let state = mk_state()
        .service("default/we", |we| v4(we).local_endpoints(["10.244.1.8:80"]))
        .service("default/web:http", port(["10.244.1.1:80", "10.244.1.2:80"]))
        .service("default/web:https", port(["10.244.1.2:443", "10.244.1.3:443"]))
        .service("default/web:dns/udp", |web| {
            v4(web).health_check_node_port(PORT).terminating_endpoints(["10.244.1.3:53", "10.244.1.4:53"])
        })
        .service("default/web2", |web2| v4(web2).local_endpoints(["10.244.1.9:80"]))
        .build();
    assert_eq!(answers(&of(&state)), [(PORT, IpFamily::V4, "default/web".to_owned(), 3)]);
}

#[test]
fn services_without_the_port_have_no_check() {
    let state = mk_state().service("default/web", |web| both(web).local_endpoints(["10.244.1.1:80"])).build();
    assert_eq!(answers(&of(&state)), []);
}

fn claim(state: StateBuilder, name: &str) -> StateBuilder {
    state.service(name, |web| v4(web).health_check_node_port(PORT))
}

#[test]
fn first_service_in_order_owns_the_port() {
    const CHANGED: bool = true;
    const SAME: bool = false;
    type Step = (&'static [&'static str], bool, Option<&'static str>);
    let steps: [Step; 7] = [
        (&["default/b"], CHANGED, Some("default/b")),
        (&["default/b", "default/c"], CHANGED, Some("default/b")),
        (&["default/b", "default/c"], SAME, Some("default/b")),
        (&["default/a", "default/b", "default/c"], CHANGED, Some("default/a")),
        (&["default/b", "default/c"], CHANGED, Some("default/b")),
        // The port moves within one update.
        (&["default/d"], CHANGED, Some("default/d")),
        (&[], CHANGED, None),
    ];
    let mut reconciled = Checks::default();
    let mut applied = Checks::default();
    let mut last = mk_state().build();
    for (services, claims, owner) in steps {
        let state = services.iter().fold(mk_state(), |state, name| claim(state, name)).build();
        let mut copy = last.clone();
        let changes = apply(&mut copy, operations_between(&last, &state));
        let all = last.service_ports().keys().chain(state.service_ports().keys());
        for is_changed in [reconciled.update(&state, all), applied.update(&state, changes.service_ports.iter())] {
            assert_eq!(is_changed, claims, "{services:?}");
        }
        let owners = answers(&applied).into_iter().map(|(_, _, service, _)| service).collect::<Vec<_>>();
        assert_eq!(owners, owner.into_iter().collect::<Vec<_>>(), "{services:?}");
        assert_eq!(applied, reconciled);
        last = state;
    }
}

#[test]
fn changed_counts_are_no_change_of_claims() {
    let mk = |port, addresses: &[&'static str]| {
        let service =
            |web: ServiceBuilder| v4(web).health_check_node_port(port).local_endpoints(addresses.iter().copied());
        mk_state().service("default/web", service).build()
    };
    let mut checks = of(&mk(PORT, &["10.244.1.1:80"]));
    let changed = [mk_key("default/web")];
    assert!(!checks.update(&mk(PORT, &[]), changed.iter()));
    assert_eq!(answers(&checks)[0].3, 0);
    assert!(checks.update(&mk(PORT + 1, &[]), changed.iter()));
    assert_eq!(answers(&checks), [(PORT + 1, IpFamily::V4, "default/web".to_owned(), 0)]);
}

#[test]
fn apply_equals_reconcile_in_random_histories() {
    let mut seen = 0;
    for seed in 0..20 {
        let mut history = History::new(seed);
        let mut checks = Checks::default();
        for _ in 0..50 {
            let changes = history.step();
            checks.update(history.state(), changes.service_ports.iter());
            assert_eq!(checks, of(history.state()), "seed {seed}");
            seen += answers(&checks).len();
        }
    }
    assert!(seen > 100, "only {seen} checks in all histories");
}
