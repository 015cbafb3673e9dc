//! The Service conformance cases with the IPVS backend, in user-mode-linux: each of a few guests runs a share of them.
//! Cases in which IPVS differs are listed with the reason, as in `docs/semantics.md`.
//!
//! In a guest a program starts fifteen times as slowly as on the host. Therefore only cases without a mark
//! ([`e2e::conformance`]) run, unless the variable `CASES` has the beginning of the names of the cases to run, or
//! `all`.

use std::{env, process::Command, time::Duration};

use e2e::{
    Backend,
    suite::{self, Case, Scope},
    uml,
};

/// All cases.
const CASES: &[Case] = &e2e::conformance!(list);
/// The number of cases that run at the same time in a guest. They wait for a part of their time.
const PARALLEL_CASES: usize = 3;
/// Timeout of a guest, for a machine under load.
const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// What programs in all cases need. Without this, each case that starts at the same time would load it on demand.
const MODULES: [&str; 29] = [
    "ip_vs_mh",
    "veth",
    "bridge",
    "nf_tables",
    "nf_conntrack_netlink",
    "ip_tables",
    "iptable_filter",
    "iptable_mangle",
    "iptable_nat",
    "ipt_REJECT",
    "ip6_tables",
    "ip6table_filter",
    "ip6table_mangle",
    "ip6table_nat",
    "ip6t_REJECT",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_comment",
    "xt_connmark",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_statistic",
    "xt_tcpudp",
    "ip_set_hash_ip",
    "ip_set_hash_ipport",
    "ip_set_hash_ipportip",
    "ip_set_hash_ipportnet",
    "ip_set_hash_netport",
];

/// Cases in which IPVS differs.
const DIFFERENT: [&str; 8] = [
    // IPVS keeps the affinity of a client as long as any of its connections: two minutes after a TCP connection is
    // closed.
    "affinity::affinity_ends_after_the_timeout",
    "affinity::timeout_changes_apply_at_once",
    // The kernel keeps persistence templates without their virtual server, and has no call that deletes one.
    "affinity::recreated_service_has_no_clients",
    // A VIP is an address of the node: the kernel drops packets from outside with such a source.
    "source_ranges::node_in_a_range_may_use_the_load_balancer_ip_as_source",
    // A VIP is an address of every node, so addresses of nodes are refused (`--refuse-node-addresses`).
    "node_addresses::external_ip_of_a_node_is_served",
    "node_addresses::ingress_on_the_host_network_is_served",
    "node_addresses::ports_of_kubelet_and_api_server_are_protected",
    // Open connections end with their virtual servers, which the cleanup removes.
    "takeover::back_to_kube_proxy",
];
/// Cases that need nf_tables for IPv4 and IPv6, which user-mode-linux lacks.
const NEED_NF_TABLES: [&str; 2] = ["takeover::from_iptables_nft", "takeover::from_nftables"];
/// The tests, each of which runs a share of the cases in a guest.
const SHARES: [fn(); 4] = [first_share, second_share, third_share, fourth_share];

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
fn each_case_is_in_one_share_or_differs() {
    let shares = (0..SHARES.len()).flat_map(|share| cases(share, Some("all")));
    let left_out = DIFFERENT.into_iter().chain(NEED_NF_TABLES);
    let mut names: Vec<_> = shares.map(|case| case.name).chain(left_out).collect();
    let mut all: Vec<_> = CASES.iter().map(|case| case.name).collect();
    names.sort_unstable();
    all.sort_unstable();
    assert_eq!(names, all);
}

#[test]
fn default_shares_have_the_cases_without_a_mark() {
    let shares: Vec<_> = (0..SHARES.len()).flat_map(|share| cases(share, None)).collect();
    let unmarked = CASES.iter().filter(|case| case.scope == Scope::All && !is_left_out(case));
    assert_eq!(shares.len(), unmarked.count());
    assert!(shares.iter().all(|case| case.scope == Scope::All));
}

/// The cases of a share, of those that are wanted: every n-th, because cases beside each other in the list take similar
/// time.
fn cases(share: usize, wanted: Option<&str>) -> Vec<Case> {
    let is_wanted = |case: &Case| match wanted {
        None => case.scope == Scope::All,
        Some("all") => true,
        Some(beginning) => case.name.starts_with(beginning),
    };
    let cases = CASES.iter().copied().filter(|case| is_wanted(case) && !is_left_out(case));
    cases.skip(share).step_by(SHARES.len()).collect()
}

fn is_left_out(case: &Case) -> bool {
    DIFFERENT.contains(&case.name) || NEED_NF_TABLES.contains(&case.name)
}

#[track_caller]
fn run(share: usize) {
    uml::load(&MODULES);
    // For iptables, only in older kernels.
    let _ = Command::new("modprobe").args(["--quiet", "bpfilter"]).status();
    let variable = env::var("CASES").ok();
    let wanted = variable.as_deref();
    assert!(!cases(0, wanted).is_empty(), "CASES={}: no case has a name that begins so", wanted.unwrap_or_default());
    let tests: Vec<_> =
        cases(share, wanted).into_iter().map(|case| (case.name, move || (case.run)(Backend::Ipvs))).collect();
    suite::run(&tests, PARALLEL_CASES);
}
