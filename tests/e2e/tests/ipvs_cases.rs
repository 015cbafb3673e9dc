//! The Service conformance cases with the IPVS backend, in user-mode-linux: each of a few guests runs a share of them.
//! Cases in which IPVS differs are listed with the reason, as in `docs/semantics.md`.
//!
//! In a guest a program starts fifteen times as slowly as on the host. Cases of what all backends share therefore run
//! only where asked for; they always run on the host, with the other backends. The variable `CASES` has the beginning
//! of the names of the cases to run, or `all`.

use std::{env, time::Duration};

use e2e::{
    Backend,
    suite::{self, Case},
    uml,
};

/// All cases.
const CASES: &[Case] = &e2e::conformance!(list);
/// The number of guests.
const GUESTS: usize = 4;
/// The number of cases that run at the same time in a guest. They wait for a part of their time.
const PARALLEL_CASES: usize = 3;
/// Timeout of a guest, for a machine under load.
const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// What programs in all cases need. Without this, each case that starts at the same time would load it on demand.
const MODULES: [&str; 30] = [
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
    "bpfilter",
];

/// Cases in which IPVS differs.
const DIFFERENT: [&str; 9] = [
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
    "node_addresses::load_balancer_ip_of_a_node_is_served",
    "node_addresses::ingress_on_the_host_network_is_served",
    "node_addresses::ports_of_kubelet_and_api_server_are_protected",
    // Open connections end with their virtual servers, which the cleanup removes.
    "takeover::back_to_kube_proxy",
];
/// Cases that need nf_tables for IPv4 and IPv6, which user-mode-linux lacks.
const NEED_NF_TABLES: [&str; 2] = ["takeover::from_iptables_nft", "takeover::from_nftables"];
/// Cases of what all backends share: what the frontend decides, the stream, the state file, the command line, and a
/// second kind of VIP with the same detection of local traffic.
const SHARED: [&str; 42] = [
    "packets::external_ip_without_cluster_cidr",
    "packets::node_port_with_node_cidr",
    "packets::node_port_with_interface_prefix",
    "packets::cluster_ip_with_bridge_interface",
    "packets::cluster_ip_without_cluster_cidr",
    "endpoints::a_pod_without_node_name_reaches_itself",
    "endpoints::hints_select_endpoints",
    "endpoints::terminating_endpoints_are_used_if_none_on_the_node_is_ready",
    "drained::pod_is_drained_when_all_nodes_have_programmed_its_end",
    "drained::last_pod_is_not_drained",
    "restarts::backends_are_terminated",
    "restarts::the_frontend_is_terminated",
    "restarts::the_frontend_is_killed",
    "restarts::changes_wait_for_the_frontend",
    "restarts::changes_wait_for_the_backends",
    "restarts::rebooted_node_leaves_out_its_former_pods",
    "faults::unreadable_manifests_are_reported",
    "faults::objects_of_an_unreadable_manifest_are_kept",
    "faults::loopback_endpoints_are_ignored",
    "faults::external_ip_that_is_a_cluster_ip_is_not_served",
    "faults::invalid_ports_are_ignored",
    "commands::local_runs_frontend_and_backend",
    "commands::services_are_listed",
    "instances::second_instance_is_refused",
    "instances::second_instance_waits_for_the_first_to_end",
    "instances::cleanup_leaves_a_running_backend_alone",
    "instances::state_of_another_node_is_replaced",
    "instances::split_and_local_take_over_from_each_other",
    "health::health_checks_report_ready_local_endpoints",
    "node_ports::no_address_answers_while_none_is_known",
    "node_ports::node_ports_answer_while_the_node_object_has_no_addresses",
    "node_ports::node_ports_answer_while_the_node_object_is_missing",
    "source_ranges::range_of_all_addresses_lifts_the_restriction",
    "services::families_are_read_from_all_fields",
    "services::leading_zeros_in_addresses_are_decimal",
    "slices::endpoints_of_all_slices_are_used",
    "slices::duplicate_address_is_that_of_the_live_pod",
    "slices::conditions_select_endpoints",
    "slices::unusable_slices_are_ignored",
    "topology::hints_fall_back",
    "topology::policy_local_ignores_hints",
    "topology::zone_changes_apply_at_once",
];

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
    for name in DIFFERENT.iter().chain(&NEED_NF_TABLES).chain(&SHARED) {
        assert!(CASES.iter().any(|(case, _)| case == name), "{name}");
    }
    assert!(CASES.len() > 90);
}

/// Runs every [`GUESTS`]-th case: cases beside each other in the list take similar time.
#[track_caller]
fn run(share: usize) {
    uml::load(&MODULES);
    let wanted = env::var("CASES").ok();
    let is_wanted = |name: &str| match wanted.as_deref() {
        None => !SHARED.contains(&name),
        Some("all") => true,
        Some(beginning) => name.starts_with(beginning),
    };
    let is_run = |name: &str| is_wanted(name) && ![&DIFFERENT[..], &NEED_NF_TABLES].concat().contains(&name);
    let cases: Vec<Case> = CASES.iter().copied().filter(|(name, _)| is_run(name)).collect();
    assert!(!cases.is_empty(), "CASES={}: no case has a name that begins so", wanted.unwrap_or_default());
    let cases: Vec<Case> = cases.into_iter().skip(share).step_by(GUESTS).collect();
    suite::run(&cases, Backend::Ipvs, PARALLEL_CASES);
}
