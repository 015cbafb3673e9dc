//! Every case, with the IPVS backend, inside user-mode-linux: a few guests, each with a share of the cases. Where IPVS
//! differs it is listed here, with the reason, as in `docs/semantics.md`.

// A panic is how a test fails.
#![allow(clippy::expect_used)]

use std::time::Duration;

use fairlead_e2e::suite::{self, Case};
use fairlead_e2e::{Backend, uml};

/// Every case there is.
const CASES: &[Case] = &fairlead_e2e::conformance!(list);
/// So many guests share them.
const GUESTS: usize = 4;
/// So many cases at a time in a guest: most of them wait most of the time.
const AT_ONCE: usize = 4;
/// How long a guest may take on a machine that does much else.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// What IPVS does differently.
const DIFFERENT: [&str; 3] = [
    // IPVS remembers a client for as long as it remembers one of its connections: two minutes after a TCP connection
    // has been closed.
    "affinity::affinity_ends_after_the_timeout",
    "affinity::timeout_changes_apply_at_once",
    // A VIP is an address of the node: the kernel drops packets from outside with such a source.
    "source_ranges::node_in_a_range_may_use_the_load_balancer_ip_as_source",
];
/// What user-mode-linux has no nf_tables for.
const ELSEWHERE: [&str; 2] = ["takeover::from_iptables_nft", "takeover::from_nftables"];

#[test]
fn first_share() {
    uml::inside_for(DEADLINE, || run(0));
}

#[test]
fn second_share() {
    uml::inside_for(DEADLINE, || run(1));
}

#[test]
fn third_share() {
    uml::inside_for(DEADLINE, || run(2));
}

#[test]
fn fourth_share() {
    uml::inside_for(DEADLINE, || run(3));
}

#[test]
fn skipped_names_are_cases() {
    for name in DIFFERENT.iter().chain(&ELSEWHERE) {
        assert!(CASES.iter().any(|(case, _)| case == name), "{name}");
    }
    assert!(CASES.len() > 90);
}

/// Every so-manieth case: neighbours are of a kind, and take as long.
#[track_caller]
fn run(share: usize) {
    uml::load(&["ip_vs_mh"]);
    let is_run = |name: &str| !DIFFERENT.contains(&name) && !ELSEWHERE.contains(&name);
    let cases: Vec<Case> = CASES.iter().copied().filter(|(name, _)| is_run(name)).collect();
    let cases: Vec<Case> = cases.into_iter().skip(share).step_by(GUESTS).collect();
    suite::run(&cases, Backend::Ipvs, AT_ONCE);
}
