//! A kernel that rejects service ports or fails: the others are programmed, and the rest is retried.

mod large;

use backend::{
    Backend as _, NodeState,
    dataplane::{DataplaneOptions, LocalhostNodePorts},
    testing::{
        ErrorDetail, ProgramAll as _, Stack, apply, mk_key, mk_state, operations_between, rejected_by_test, synthetic,
        transition,
    },
};
use iptables::{Ruleset, Table};
use proto::model::Operation;
use tokio::time::timeout;

use super::*;
use crate::{fake_driver::FakeDriver, kernel::fake::FakeKernel, names::SERVICES};

fn state(services: u8) -> NodeState {
    (1..=services).fold(mk_state(), |state, n| service(state, n, ["10.244.1.1:80", "10.244.1.2:80"])).build()
}

fn service(state: backend::testing::StateBuilder, n: u8, endpoints: [&str; 2]) -> backend::testing::StateBuilder {
    state.service(&format!("default/svc-{n:03}"), |service| {
        service.cluster_ip(&format!("10.96.0.{n}")).endpoints(endpoints)
    })
}

fn without(mut state: NodeState, keys: &[&str]) -> NodeState {
    apply(&mut state, keys.iter().map(|key| Operation::RemoveServicePort(mk_key(key))).collect::<Vec<_>>());
    state
}

fn driver(kernel: &FakeKernel) -> FakeDriver {
    kernel.driver(DataplaneOptions::default())
}

/// What a kernel contains in which only this state was programmed.
async fn shape(state: &NodeState) -> Vec<String> {
    let kernel = FakeKernel::default();
    driver(&kernel).reconcile_all(state).await.unwrap();
    kernel.shape(IpFamily::V4)
}

#[tokio::test]
async fn rejected_service_ports_are_left_out_and_reported() {
    for (detail, most) in [(ErrorDetail::Named, 6), (ErrorDetail::Unnamed, 42)] {
        let kernel = FakeKernel::default();
        // The programs stop at the first line that they reject.
        kernel.reject(["10.96.0.7/32", "10.96.0.90/32"], detail);
        let mut driver = driver(&kernel);
        assert_eq!(rejected_by_test(&mut driver, &state(100)).await, ["svc-007", "svc-090"]);
        let restores = kernel.take_restores().len();
        assert!((3..=most).contains(&restores), "{detail:?}: {restores} scripts");

        // All others are programmed, and stay so.
        let others = without(state(100), &["default/svc-007", "default/svc-090"]);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&others).await);
        assert_eq!(driver.reconcile_all(&state(100)).await.unwrap().writes, 0);

        // Once the kernel accepts them there are no failures.
        kernel.reject([], detail);
        assert_eq!(rejected_by_test(&mut driver, &state(100)).await, [""; 0]);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&state(100)).await);
    }
}

#[tokio::test]
async fn a_rejected_service_port_is_retried_when_it_changes() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = FakeKernel::default();
        let mut driver = driver(&kernel);
        let mut current = state(3);
        driver.reconcile_all(&current).await.unwrap();
        kernel.reject(["10.244.1.9:80", "10.96.0.9/32"], detail);

        // The endpoint of one is rejected; the one of the other is not.
        let other = service(mk_state(), 1, ["10.244.1.1:80", "10.244.1.8:80"]);
        let target =
            service(service(other, 2, ["10.244.1.1:80", "10.244.1.9:80"]), 3, ["10.244.1.1:80", "10.244.1.2:80"]);
        let target = target.build();
        let changes = transition(&mut current, &target);
        let applied = driver.apply_all(&current, &changes).await.unwrap();
        let names: Vec<_> = applied.failures.iter().map(|failure| failure.key.name.as_ref()).collect();
        assert_eq!(names, ["svc-002"]);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&without(target.clone(), &["default/svc-002"])).await);

        // A change of another service port still reports it, and writes only that change.
        let fewer = without(target.clone(), &["default/svc-003"]);
        let changes = transition(&mut current, &fewer);
        assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures.len(), 1);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&without(fewer, &["default/svc-002"])).await);

        // It is retried when it changes.
        kernel.reject([], detail);
        let changes = transition(&mut current, &without(state(2), &["default/svc-001"]));
        assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures, []);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
    }
}

/// The owner of one Service may change it as often as the API server permits.
#[tokio::test(start_paused = true)]
async fn changes_of_a_rejected_service_port_do_not_read_the_kernel_each_time() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = FakeKernel::default();
        let mut driver = driver(&kernel);
        let mut current = state(3);
        driver.reconcile_all(&current).await.unwrap();
        kernel.reject(["10.244.9."], detail);
        kernel.take_saves();
        let with = |endpoint: String| {
            let others = service(mk_state(), 1, ["10.244.1.1:80", "10.244.1.2:80"]);
            let evil =
                others.service("default/svc-002", |evil| evil.cluster_ip("10.96.0.2").endpoints([endpoint.as_str()]));
            service(evil, 3, ["10.244.1.1:80", "10.244.1.2:80"]).build()
        };
        for n in 1..=50 {
            let changes = transition(&mut current, &with(format!("10.244.9.{n}:80")));
            let report = driver.apply_all(&current, &changes).await.unwrap();
            assert_eq!(report.failures.len(), 1, "{detail:?}: change {n}");
        }
        // For the first change and two more: of each family, and again after each rejection.
        let saves = kernel.take_saves();
        assert!(saves <= 24, "{detail:?}: {saves} reads");

        kernel.reject([], detail);
        tokio::time::sleep(Duration::from_secs(30)).await;
        let changes = transition(&mut current, &state(3));
        assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures, []);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&state(3)).await);
    }
}

/// Bisecting commits the others step by step; existing rules stay until it has ended.
#[tokio::test]
async fn existing_rules_stay_while_a_batch_is_bisected() {
    let kernel = FakeKernel::default();
    driver(&kernel).reconcile_all(&state(20)).await.unwrap();
    kernel.take_restores();
    kernel.reject(["10.96.0.25/32"], ErrorDetail::Unnamed);
    assert_eq!(rejected_by_test(&mut driver(&kernel), &without(state(30), &["default/svc-001"])).await, ["svc-025"]);
    let restores = kernel.take_restores();
    let steps: Vec<_> = restores.iter().flat_map(|restore| &restore.steps).collect();
    for n in 2..=20 {
        let vip = format!("-d 10.96.0.{n}/32");
        let leads = |rules: &&&Ruleset| rules.rules(Table::Nat, SERVICES).iter().any(|line| line.contains(&vip));
        assert_eq!(steps.iter().filter(leads).count(), steps.len(), "{vip}");
    }
}

#[tokio::test]
async fn any_number_of_service_ports_may_be_rejected() {
    let kernel = FakeKernel::default();
    let vips: Vec<String> = (1..=100).map(|n| format!("10.96.0.{n}/32")).collect();
    kernel.reject(vips.iter().map(String::as_str), ErrorDetail::Unnamed);
    assert_eq!(rejected_by_test(&mut driver(&kernel), &state(100)).await.len(), 100);
}

/// The rules of a service port are the sum of its VIPs, endpoints and ranges, not their product.
#[tokio::test]
async fn rules_of_a_service_port_are_linear() {
    let rules = async |vips: u8, endpoints: u8, ranges: u8| {
        let state = mk_state().service("default/web", |mut web| {
            web = web.cluster_ip("10.96.0.1").node_port(30080);
            for n in 1..=vips {
                web = web.external_ip(&format!("203.0.113.{n}")).load_balancer_ip(&format!("198.51.100.{n}"));
            }
            for n in 1..=ranges {
                web = web.source_range(&format!("192.0.{n}.0/24"));
            }
            let endpoints: Vec<_> = (1..=endpoints).map(|n| format!("10.244.1.{n}:80")).collect();
            web.endpoints(endpoints.iter().map(String::as_str))
        });
        let kernel = FakeKernel::default();
        driver(&kernel).reconcile_all(&state.build()).await.unwrap().writes
    };
    let base = rules(1, 1, 1).await;
    let (vips, endpoints, ranges) = (rules(101, 1, 1).await, rules(1, 101, 1).await, rules(1, 1, 101).await);
    let sum = vips + endpoints + ranges - 2 * base;
    let all = rules(101, 101, 101).await;
    assert!(all <= sum + 10, "{all} lines together, {sum} for each on its own");
}

/// If one of them is rejected, the others are not affected.
#[tokio::test]
async fn on_a_new_node_urgent_service_ports_come_first() {
    let urgent = mk_state()
        .service("default/kubernetes", |api| api.cluster_ip("10.200.0.1").endpoints(["10.0.0.1:6443"]))
        .service("kube-system/kube-dns", |dns| dns.port(53).cluster_ip("10.200.0.10").endpoints(["10.244.0.2:53"]));
    let mut all = synthetic(256, 2, Stack::V4);
    apply(&mut all, operations_between(&mk_state().build(), &urgent.build()));
    for rejected in [None, Some("10.200.0.10/32")] {
        let kernel = FakeKernel::default();
        kernel.reject(rejected, ErrorDetail::Named);
        let applied = driver(&kernel).reconcile_all(&all).await.unwrap();
        assert_eq!(applied.failures.len(), usize::from(rejected.is_some()));
        // The base ruleset of both families precedes them.
        let restores = kernel.take_restores().split_off(2);
        let urgent = |script: &str| {
            ["10.200.0.1/32", "10.200.0.10/32"].map(|vip| script.contains(&format!("-d {vip} "))) == [true; 2]
                && script.lines().count() < 100
        };
        assert!(urgent(&restores[0].script), "{}", restores[0].script);
        assert_eq!(restores[0].accepted, rejected.is_none());
        let dns = rejected.map(|_| "kube-system/kube-dns");
        assert_eq!(kernel.shape(IpFamily::V4), shape(&without(all.clone(), dns.as_slice())).await);

        // On a node with rules of ours there is no urgent script.
        driver(&kernel).reconcile_all(&all).await.unwrap();
        assert!(kernel.take_restores().len() <= 2);
    }
}

#[tokio::test]
async fn a_rejected_base_ruleset_is_an_error() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = FakeKernel::default();
        kernel.reject(["kubernetes postrouting rules"], detail);
        let error = format!("{:#}", driver(&kernel).reconcile_all(&state(3)).await.unwrap_err());
        assert!(error.contains("the kernel rejected the base ruleset"), "{error}");
        // It stops at once, before any service port.
        assert!(kernel.take_restores().len() <= 2);
    }
}

#[tokio::test]
async fn a_failure_is_followed_by_a_reconcile() {
    for parts in [0, 1] {
        let kernel = FakeKernel::default();
        let mut driver = driver(&kernel);
        let mut current = state(3);
        driver.reconcile_all(&current).await.unwrap();
        kernel.fail_after(parts);
        let changes = transition(&mut current, &state(4));
        let error = driver.apply_all(&current, &changes).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "terminated by a signal");
        assert_ne!(kernel.shape(IpFamily::V4), shape(&state(4)).await);

        // The next change programs everything, even if it is unrelated.
        let changes = transition(&mut current, &without(state(4), &["default/svc-001"]));
        driver.apply_all(&current, &changes).await.unwrap();
        assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
    }
}

/// Another process has removed our rules, so the kernel rejects the next change.
#[tokio::test]
async fn a_rejected_change_is_followed_by_a_reconcile() {
    let kernel = FakeKernel::default();
    let mut driver = driver(&kernel);
    let mut current = state(3);
    driver.reconcile_all(&current).await.unwrap();
    kernel.change_by_other(IpFamily::V4, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
    let changes = transition(&mut current, &without(state(3), &["default/svc-001"]));
    assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures, []);
    assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
}

/// The base ruleset changes while service ports are still missing, and one of those is rejected in the second family:
/// the first has the new base ruleset.
#[tokio::test]
async fn a_base_ruleset_in_a_rejected_script_is_read_again() {
    let of = |address: &str| {
        let services = (1..=9).fold(mk_state().node_addresses([address]), |state, n| {
            state.service(&format!("default/svc-{n:03}"), |service| {
                let service = service.cluster_ip(&format!("10.96.0.{n}")).cluster_ip(&format!("fd00:96::{n}"));
                service.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
            })
        });
        services.build()
    };
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = FakeKernel::default();
        kernel.set_script_lines(10);
        let mut driver = driver(&kernel);
        let mut current = of("192.168.1.1");
        assert!(driver.reconcile(&current).await.unwrap().unfinished.is_some());
        kernel.reject(["fd00:96::9/128"], detail);
        kernel.set_script_lines(1_000);
        let changes = transition(&mut current, &of("192.168.1.2"));
        assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures.len(), 1, "{detail:?}");
        assert_eq!(kernel.shape(IpFamily::V4), shape(&without(current, &["default/svc-009"])).await);
    }
}

/// The backend is restarted without node ports on loopback where sysctls are read-only: the kernel still routes
/// loopback addresses, so the rule that protects them stays until the operator has reset the sysctl.
#[tokio::test]
async fn loopback_addresses_stay_protected_while_they_are_routed() {
    let (kernel, shape_without) = (FakeKernel::default(), shape(&state(3)).await);
    let open = DataplaneOptions { localhost_nodeports: LocalhostNodePorts::Open, ..DataplaneOptions::default() };
    kernel.driver(open).reconcile_all(&state(3)).await.unwrap();
    let guard = "block incoming localnet connections";
    let is_guarded = || kernel.shape(IpFamily::V4).iter().any(|chain| chain.contains(guard));
    assert!(kernel.routes_localnet() && is_guarded());

    kernel.set_sysctl_read_only(true);
    let mut driver = driver(&kernel);
    let mut current = state(3);
    driver.reconcile_all(&current).await.unwrap();
    assert!(kernel.routes_localnet() && is_guarded());
    // Nor does a change of the node's addresses remove it, after which nothing is left to write.
    let target = mk_state().node_addresses(["192.168.1.2"]);
    let target = (1..=3).fold(target, |state, n| service(state, n, ["10.244.1.1:80", "10.244.1.2:80"])).build();
    let changes = transition(&mut current, &target);
    driver.apply_all(&current, &changes).await.unwrap();
    assert!(is_guarded());
    assert_eq!(driver.reconcile_all(&current).await.unwrap().writes, 0);
    // Another process removes it.
    kernel.change_by_other(IpFamily::V4, "*filter\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n");
    driver.reconcile_all(&current).await.unwrap();
    assert!(is_guarded());

    kernel.set_sysctl_read_only(false);
    let changes = transition(&mut current, &state(3));
    driver.apply_all(&current, &changes).await.unwrap();
    driver.reconcile_all(&current).await.unwrap();
    assert!(!kernel.routes_localnet());
    assert_eq!(kernel.shape(IpFamily::V4), shape_without);
}

#[tokio::test]
async fn a_restart_writes_nothing() {
    let kernel = FakeKernel::default();
    assert_ne!(driver(&kernel).reconcile_all(&state(9)).await.unwrap().writes, 0);
    kernel.take_restores();
    assert_eq!(driver(&kernel).reconcile_all(&state(9)).await.unwrap().writes, 0);
    assert_eq!(kernel.take_restores(), []);
}

#[tokio::test]
async fn a_family_without_iptables_is_left_out() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1");
        web.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
    });
    let (both, kernel) = (both.build(), FakeKernel::default());
    kernel.uninstall(IpFamily::V6);
    let mut driver = driver(&kernel);
    let mut current = both.clone();
    driver.reconcile_all(&current).await.unwrap();
    assert_eq!(kernel.shape(IpFamily::V4), shape(&both).await);
    let changes = transition(&mut current, &without(both, &["default/web"]));
    driver.apply_all(&current, &changes).await.unwrap();
    assert!(kernel.take_restores().iter().all(|restore| restore.family == IpFamily::V4));

    kernel.uninstall(IpFamily::V4);
    let error = driver.reconcile_all(&current).await.unwrap_err();
    let reasons = "IPv4: iptables is not installed; IPv6: ip6tables is not installed";
    assert_eq!(error.to_string(), format!("no IP family can be programmed: {reasons}"));
}

/// The rules of a family cannot be read for an hour: the other one is not read again meanwhile, and both are programmed
/// soon after.
#[tokio::test(start_paused = true)]
async fn family_that_cannot_be_read_is_left_out_for_seconds_longer() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1");
        web.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
    });
    let (both, reference) = (both.build(), FakeKernel::default());
    driver(&reference).reconcile_all(&both).await.unwrap();
    let kernel = FakeKernel::default();
    kernel.set_unreadable(Some(IpFamily::V4));
    let mut driver = driver(&kernel);
    driver.reconcile_all(&both).await.unwrap_err();
    let report = driver.reconcile_all(&both).await.unwrap();
    assert_eq!(report.unusable_families, [(IpFamily::V4, "read the IPv4 tables: cannot allocate memory".to_owned())]);
    timeout(Duration::from_secs(3600), driver.drifted()).await.unwrap_err();

    kernel.set_unreadable(None);
    let drifted = timeout(Duration::from_secs(30), driver.drifted()).await;
    assert_eq!(drifted, Ok(Drift::Outdated));
    assert_eq!(driver.reconcile_all(&both).await.unwrap().unusable_families, []);
    assert_eq!(kernel.shape(IpFamily::V4), reference.shape(IpFamily::V4));
}

/// See [`FakeKernel::set_unsupported`].
const NO_NAT: &str = "unable to initialize table 'nat'";

/// The kernel lacks the table nat of a family: the other one is programmed, and both once it has it.
#[tokio::test(start_paused = true)]
async fn family_without_nat_is_left_out_until_the_kernel_has_it() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1");
        web.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
    });
    let (both, reference) = (both.build(), FakeKernel::default());
    driver(&reference).reconcile_all(&both).await.unwrap();
    for (family, other) in [(IpFamily::V4, IpFamily::V6), (IpFamily::V6, IpFamily::V4)] {
        let kernel = FakeKernel::default();
        kernel.set_unsupported(Some(family));
        let mut driver = driver(&kernel);
        // It may be for another reason, so it is tried twice.
        driver.reconcile_all(&both).await.unwrap_err();
        let report = driver.reconcile_all(&both).await.unwrap();
        assert_eq!(report.failures, []);
        assert_eq!(report.unusable_families, [(family, format!("the kernel rejected the base ruleset: {NO_NAT}"))]);
        assert_eq!(kernel.shape(other), reference.shape(other));
        kernel.take_restores();
        driver.reconcile_all(&both).await.unwrap();
        assert_eq!(kernel.take_restores(), []);

        kernel.set_unsupported(None);
        assert_eq!(driver.drifted().await, Drift::Outdated);
        let report = driver.reconcile_all(&both).await.unwrap();
        assert_eq!(report.unusable_families, []);
        assert_eq!(kernel.shape(family), reference.shape(family));
    }
}
