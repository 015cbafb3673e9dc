//! One service port with more rules than a script may write.

use std::collections::BTreeSet;

use backend::{
    Backend as _, Changes, SyncReport,
    testing::{ServiceBuilder, StateBuilder},
};
use iptables::target;

use super::*;
use crate::kernel::fake::Restore;

/// With session affinity, each endpoint is a chain with two rules, and two rules of parts that both pools share.
const ENDPOINTS: u32 = 800;
const RULES: usize = 5 * ENDPOINTS as usize;
const SCRIPT_LINES: usize = 500;
/// Lines that begin and commit tables.
const FRAME: usize = 8;

fn addresses(first: u32, count: u32) -> Vec<String> {
    (first..first + count).map(|n| format!("10.{}.{}.{}:80", 1 + (n >> 16), n >> 8 & 255, n & 255)).collect()
}

fn with_attack(state: StateBuilder) -> StateBuilder {
    let endpoints = addresses(0, ENDPOINTS);
    let endpoints = || endpoints.iter().map(String::as_str);
    state.service("evil/large", |large| {
        let large = large.cluster_ip("10.96.0.66").external_ip("198.18.0.66").external_local().affinity(60);
        large.endpoints(endpoints()).local_endpoints(endpoints())
    })
}

fn with_bystander(state: StateBuilder, endpoints: u32) -> StateBuilder {
    let endpoints = addresses(0, endpoints);
    state.service("shop/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints.iter().map(String::as_str)))
}

fn small_scripts(lines: usize) -> FakeKernel {
    let kernel = FakeKernel::default();
    kernel.set_script_lines(lines);
    kernel
}

#[track_caller]
fn assert_small(restores: &[Restore]) {
    for Restore { script, accepted, .. } in restores {
        let lines = script.lines().count();
        assert!(*accepted && lines <= SCRIPT_LINES + FRAME, "{accepted}, {lines} lines");
    }
}

#[tokio::test]
async fn a_change_of_another_namespace_waits_for_two_scripts_of_a_large_service_port() {
    let kernel = small_scripts(SCRIPT_LINES);
    let mut driver = driver(&kernel);
    let mut current = with_bystander(mk_state(), 1).build();
    driver.reconcile_all(&current).await.unwrap();
    kernel.take_restores();
    let changes = transition(&mut current, &with_bystander(with_attack(mk_state()), 1).build());
    let mut report = driver.apply(&current, &changes).await.unwrap();
    let (key, mut most, mut restores) = (mk_key("shop/web"), 0, Vec::new());
    for endpoints in 2.. {
        restores.extend(kernel.take_restores());
        let changes = transition(&mut current, &with_bystander(with_attack(mk_state()), endpoints % 20 + 1).build());
        report = driver.apply(&current, &changes).await.unwrap();
        while report.unfinished.as_ref().is_some_and(|unfinished| unfinished.contains(&key)) {
            report = driver.apply(&current, &Changes::default()).await.unwrap();
        }
        let of_bystander = kernel.take_restores();
        most = most.max(of_bystander.len());
        restores.extend(of_bystander);
        report = driver.apply(&current, &Changes::default()).await.unwrap();
        if report.unfinished.is_none() {
            break;
        }
    }
    restores.extend(kernel.take_restores());
    assert_eq!(report.failures, []);
    assert!(most <= 2, "{most} scripts");
    assert_small(&restores);
    let written: usize = restores.iter().map(|restore| restore.script.lines().count()).sum();
    assert!((RULES..2 * RULES).contains(&written), "{written} lines: each rule is written once");
    assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);

    // Its removal too.
    let changes = transition(&mut current, &with_bystander(mk_state(), 3).build());
    driver.apply_all(&current, &changes).await.unwrap();
    assert_small(&kernel.take_restores());
    assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
}

/// The endpoints that a VIP leads to.
fn endpoints_of<'a>(rules: &'a Ruleset, vip: &str) -> BTreeSet<&'a str> {
    fn add<'a>(rules: &'a Ruleset, rule: &'a str, visited: &mut BTreeSet<&'a str>, found: &mut BTreeSet<&'a str>) {
        match target(rule) {
            Some("DNAT") => drop(found.insert(rule.rsplit(' ').next().unwrap())),
            Some(chain) if visited.insert(chain) => {
                rules.rules(Table::Nat, chain).iter().for_each(|rule| add(rules, rule, visited, found));
            }
            _ => {}
        }
    }
    let (mut visited, mut found) = (BTreeSet::new(), BTreeSet::new());
    // The first rule decides.
    let rule = rules.rules(Table::Nat, SERVICES).iter().find(|rule| rule.contains(&format!("-d {vip}/32 ")));
    rule.into_iter().for_each(|rule| add(rules, rule, &mut visited, &mut found));
    found
}

const VIPS: [&str; 3] = ["10.96.0.7", "198.18.0.39", "203.0.113.7"];

/// Many endpoints from this one on, VIPs and source ranges.
fn shop(first: u32, build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> NodeState {
    let endpoints = addresses(first, 450);
    let endpoints = || endpoints.iter().map(String::as_str);
    let web = |web: ServiceBuilder| {
        let web = (0..40).fold(web.cluster_ip("10.96.0.7"), |web, n| web.external_ip(&format!("198.18.0.{n}")));
        let web = (0..420).fold(web.load_balancer_ip("203.0.113.7"), |web, n| {
            web.source_range(&format!("10.{}.{}.0/25", 100 + (first + n) / 256, (first + n) % 256))
        });
        build(web.endpoints(endpoints()).local_endpoints(endpoints().take(200)))
    };
    with_bystander(mk_state().service("shop/large", web), 2).build()
}

fn states() -> [NodeState; 5] {
    [
        shop(0, |web| web),
        shop(200, |web| web.external_local()),
        shop(200, |web| web.affinity(60)),
        shop(2_000, |web| web),
        with_bystander(mk_state(), 2).build(),
    ]
}

/// A VIP leads to the endpoints of the old state or to those of the new one, whichever script is the last one.
#[tokio::test]
async fn each_script_leaves_old_or_new_endpoints() {
    let kernel = small_scripts(400);
    let mut driver = driver(&kernel);
    let states = states();
    let mut current = states[0].clone();
    driver.reconcile_all(&current).await.unwrap();
    for target in states.iter().cycle().skip(1).take(6) {
        let before = kernel.ruleset(IpFamily::V4);
        kernel.take_restores();
        let changes = transition(&mut current, target);
        assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures, []);
        assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
        let (restores, after) = (kernel.take_restores(), kernel.ruleset(IpFamily::V4));
        assert!(restores.len() > 2, "{} scripts", restores.len());
        for vip in VIPS {
            let allowed = [&before, &after].map(|rules| endpoints_of(rules, vip));
            for (number, step) in restores.iter().flat_map(|restore| &restore.steps).enumerate() {
                let found = endpoints_of(step, vip);
                assert!(allowed.contains(&found), "{vip} leads to {} endpoints in step {number}", found.len());
            }
        }
    }
}

/// The next process reads what the kernel contains, and continues.
#[tokio::test]
async fn a_restart_in_the_middle_of_a_large_change_writes_only_the_rest() {
    let states = states();
    for (from, to) in [(0, 1), (0, 3), (3, 4), (4, 2)] {
        let uninterrupted = {
            let kernel = small_scripts(400);
            driver(&kernel).reconcile_all(&states[from]).await.unwrap();
            let (mut driver, mut current) = (driver(&kernel), states[from].clone());
            driver.reconcile_all(&current).await.unwrap();
            let changes = transition(&mut current, &states[to]);
            driver.apply_all(&current, &changes).await.unwrap().writes
        };
        for calls in [1, 2] {
            let kernel = small_scripts(400);
            let (mut first, mut current) = (driver(&kernel), states[from].clone());
            first.reconcile_all(&current).await.unwrap();
            let changes = transition(&mut current, &states[to]);
            let mut writes = first.apply(&current, &changes).await.unwrap().writes;
            for _ in 1..calls {
                writes += first.apply(&current, &Changes::default()).await.unwrap().writes;
            }
            drop(first);
            kernel.take_restores();

            let mut second = driver(&kernel);
            let SyncReport { writes: rest, failures, .. } = second.reconcile_all(&states[to]).await.unwrap();
            assert_eq!(failures, []);
            assert_eq!(kernel.shape(IpFamily::V4), shape(&states[to]).await);
            assert!(rest > 0 && writes + rest <= uninterrupted + 2, "{writes} + {rest}, not {uninterrupted} writes");
            assert!(kernel.take_restores().iter().all(|restore| restore.accepted));
            assert_eq!(driver(&kernel).reconcile_all(&states[to]).await.unwrap().writes, 0);
        }
    }
}

/// The part of the endpoint, the chain that jumps to the parts, and the chains of two endpoints.
#[tokio::test]
async fn a_change_of_one_of_many_endpoints_writes_a_part() {
    let with = |last: &str| {
        let mut endpoints = addresses(0, 2_000);
        endpoints.push(last.to_owned());
        let web = |web: ServiceBuilder| web.cluster_ip("10.96.0.7").endpoints(endpoints.iter().map(String::as_str));
        mk_state().service("shop/large", web).build()
    };
    let (kernel, mut current) = (FakeKernel::default(), with("10.9.0.1:80"));
    let mut driver = driver(&kernel);
    driver.reconcile_all(&current).await.unwrap();
    let changes = transition(&mut current, &with("10.9.0.2:80"));
    let writes = driver.apply_all(&current, &changes).await.unwrap().writes;
    assert!(writes < 4 * 256, "{writes}");
    assert_eq!(kernel.shape(IpFamily::V4), shape(&current).await);
}

/// What remains of a large service port is deleted in several scripts, too.
#[tokio::test]
async fn a_reconcile_is_several_scripts() {
    let kernel = small_scripts(SCRIPT_LINES);
    driver(&kernel).reconcile_all(&with_bystander(with_attack(mk_state()), 3).build()).await.unwrap();
    let restores = kernel.take_restores();
    assert!(restores.len() > RULES / SCRIPT_LINES);
    assert_small(&restores);
    let after = with_bystander(mk_state(), 3).build();
    driver(&kernel).reconcile_all(&after).await.unwrap();
    let restores = kernel.take_restores();
    assert!(restores.len() > 2 * ENDPOINTS as usize / SCRIPT_LINES);
    assert_small(&restores);
    assert_eq!(kernel.shape(IpFamily::V4), shape(&after).await);
}
