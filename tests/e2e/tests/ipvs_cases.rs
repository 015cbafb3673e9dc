//! The Service conformance cases with the IPVS backend, in user-mode-linux: each of a few guests runs a share of them.
//! Cases in which IPVS differs are listed with the reason, as in `docs/semantics.md`.

use std::time::Duration;

use e2e::{
    Backend,
    suite::{self, Case},
    uml,
};

/// All cases.
const CASES: &[Case] = &e2e::conformance!(list);
/// The number of guests.
const GUESTS: usize = 4;
/// The number of cases that run at the same time in a guest. They spend most of their time waiting.
const PARALLEL_CASES: usize = 4;
/// Timeout of a guest, for a machine under load.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Cases in which IPVS differs.
const DIFFERENT: [&str; 8] = [
    // IPVS keeps the affinity of a client as long as any of its connections: two minutes after a TCP connection is
    // closed.
    "affinity::affinity_ends_after_the_timeout",
    "affinity::timeout_changes_apply_at_once",
    // A VIP is an address of the node: the kernel drops packets from outside with such a source.
    "source_ranges::node_in_a_range_may_use_the_load_balancer_ip_as_source",
    // A VIP is an address of every node, so addresses of nodes are refused (`--refuse-node-addresses`).
    "node_addresses::external_ip_of_a_node_is_served",
    "node_addresses::load_balancer_ip_of_a_node_is_served",
    "node_addresses::ingress_on_the_host_network_is_served",
    "node_addresses::ports_of_kubelet_and_api_server_are_protected",
    // Open connections end with their virtual servers, which the cleanup removes.
    "takeover::back_to_kube_proxy",
];
/// Cases that need nf_tables for IPv4 and IPv6, which user-mode-linux lacks.
const NEED_NF_TABLES: [&str; 2] = ["takeover::from_iptables_nft", "takeover::from_nftables"];

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
    for name in DIFFERENT.iter().chain(&NEED_NF_TABLES) {
        assert!(CASES.iter().any(|(case, _)| case == name), "{name}");
    }
    assert!(CASES.len() > 90);
}

/// Runs every [`GUESTS`]-th case: cases beside each other in the list take similar time.
#[track_caller]
fn run(share: usize) {
    uml::load(&["ip_vs_mh"]);
    let is_run = |name: &str| ![&DIFFERENT[..], &NEED_NF_TABLES].concat().contains(&name);
    let cases: Vec<Case> = CASES.iter().copied().filter(|(name, _)| is_run(name)).collect();
    let cases: Vec<Case> = cases.into_iter().skip(share).step_by(GUESTS).collect();
    suite::run(&cases, Backend::Ipvs, PARALLEL_CASES);
}
