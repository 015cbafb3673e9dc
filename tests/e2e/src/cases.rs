//! The Service conformance cases, which every backend must pass: real packets in both families and all protocols,
//! without access to a backend's internals. Each case is a function of the [`Backend`](crate::Backend);
//! [`conformance!`](crate::conformance) makes a test of each, and lists which ones `make test` runs with which backend.

pub mod affinity;
pub mod changes;
pub mod cluster_ips;
pub mod commands;
pub mod connections;
pub mod drained;
pub mod drift;
pub mod endpoints;
pub mod faults;
pub mod half_open;
pub mod health;
pub mod instances;
pub mod invalid_packets;
pub mod node_addresses;
pub mod node_ports;
pub mod packets;
pub mod policies;
pub mod resets;
pub mod restarts;
pub mod services;
pub mod slices;
pub mod source_ranges;
pub mod takeover;
pub mod udp_flows;

mod expect;

/// Defines a test for each case: `conformance!(Backend::Nft)` of all, `conformance!(gate Backend::IptablesNft)` and
/// `conformance!(unmarked Backend::IptablesLegacy)` with `#[ignore]` at those that `make test` leaves to `make
/// nightly`. With `list` it returns all cases, for a test that runs them in a guest.
///
/// A case whose code and rules are the same in all backends runs with nftables only: a fault in another backend that
/// this case would find, a case without a mark finds too.
///
/// - Without a mark `make test` runs it with all backends: it is about objects that each backend computes or writes
///   with code of its own.
/// - With `rules` it runs with nftables and iptables-nft. It is about rules of netfilter, conntrack, or settings, which
///   a packet meets before or after IPVS, about a kind of VIP for which IPVS has no code of its own, or about another
///   change of objects that a case without a mark changes. The rules of both variants of iptables are the same text;
///   what writes and reads them, cases without a mark test with iptables-legacy.
/// - With `shared` it runs with nftables: it is about what the frontend decides, the stream, the state file, the
///   command line, or listeners of the process; or another kind of VIP with the same detection of local traffic.
#[macro_export]
macro_rules! conformance {
    (list) => {
        $crate::conformance! { @all list () }
    };
    (gate $backend:expr) => {
        $crate::conformance! { @all gate $backend }
    };
    (unmarked $backend:expr) => {
        $crate::conformance! { @all unmarked $backend }
    };
    ($backend:expr) => {
        $crate::conformance! { @all tests $backend }
    };
    (@all $what:ident $backend:expr) => {
        $crate::conformance! { @$what @modules $backend;
            packets {
                cluster_ip,
                #[rules]
                external_ip,
                #[rules]
                load_balancer_ip,
                node_port,
                cluster_ip_with_masquerade_all,
                #[rules]
                node_port_without_cluster_cidr,
                #[rules]
                cluster_ip_with_node_cidr,
                #[rules]
                node_port_with_bridge_interface,
                #[rules]
                cluster_ip_with_interface_prefix,
                #[rules]
                pod_cidr_changes_apply_at_once,
            }
            endpoints {
                endpoints_get_equal_shares,
                a_pod_reaches_itself,
                #[rules]
                direct_connections_to_host_network_endpoints_keep_their_source,
                #[shared]
                terminating_endpoints_are_used_if_none_is_ready,
                #[shared]
                hints_select_endpoints,
            }
            changes {
                endpoint_drains_and_is_removed,
                endpoints_are_added_and_replaced,
                first_endpoint_is_added_and_last_removed,
                #[rules]
                first_local_endpoint_is_used_at_once,
                services_are_created_and_deleted,
                #[rules]
                port_changes_apply_at_once,
                #[rules]
                policy_changes_apply_at_once,
            }
            drained {
                #[shared]
                pod_is_drained_when_all_nodes_have_programmed_its_end,
                kubelet_asks_for_a_pod_by_its_address,
                #[rules]
                kubelet_asks_at_the_port_of_health_checks,
                #[rules]
                hook_waits_for_the_next_backend,
                #[shared]
                hooks_of_many_pods_are_answered_beside_probes_of_others,
            }
            restarts {
                #[shared]
                backends_are_terminated,
                backends_are_killed,
                #[shared]
                the_frontend_is_terminated,
                #[shared]
                the_frontend_is_killed,
                #[rules]
                rebooted_node_programs_its_last_state,
            }
            faults {
                #[shared]
                loopback_endpoints_are_ignored,
                #[shared]
                external_ip_that_is_a_cluster_ip_is_not_served,
                #[shared]
                loopback_load_balancer_ip_is_not_served,
                #[rules]
                service_with_the_longest_names_is_programmed,
                #[rules]
                invalid_source_range_closes_the_address,
                #[rules]
                first_service_keeps_a_contested_vip,
            }
            drift {
                removed_rules_are_restored,
                rules_of_other_programs_are_kept,
            }
            commands {
                #[shared]
                local_runs_frontend_and_backend,
                cleanup_removes_only_objects_of_fairlead,
            }
            connections {
                connections_are_counted_by_endpoint_and_client,
            }
            instances {
                #[shared]
                second_instance_is_refused,
                #[shared]
                second_instance_waits_for_the_first_to_end,
                #[shared]
                cleanup_leaves_a_running_backend_alone,
                #[rules]
                masquerade_bit_changes_at_a_restart,
                #[shared]
                split_and_local_take_over_from_each_other,
            }
            health {
                #[shared]
                health_check_ports_open_and_close,
                #[rules]
                health_checks_are_answered_at_load_balancer_ips,
            }
            cluster_ips {
                other_ports_are_rejected,
                #[rules]
                unallocated_addresses_are_dropped,
                cluster_ips_of_another_proxy_pass,
                #[rules]
                service_cidr_changes_apply_at_once,
            }
            node_addresses {
                external_ip_of_a_node_is_served,
                ingress_on_the_host_network_is_served,
                ports_of_kubelet_and_api_server_are_protected,
            }
            node_ports {
                #[rules]
                primary_addresses_answer,
                #[rules]
                no_address_answers_while_none_is_known,
                #[shared]
                node_ports_answer_while_the_node_object_is_missing,
                #[rules]
                addresses_in_the_given_cidrs_answer,
                loopback_never_answers,
            }
            affinity {
                clients_keep_their_pod,
                affinity_ends_after_the_timeout,
                only_clients_of_a_removed_pod_move,
                timeout_changes_apply_at_once,
                affinity_is_turned_on_and_off,
                recreated_service_has_no_clients,
                #[rules]
                policy_local_keeps_local_pods,
                clients_inside_move_at_once_under_policy_local,
            }
            source_ranges {
                only_sources_in_a_range_connect,
                #[rules]
                range_changes_apply_at_once,
                node_in_a_range_may_use_the_load_balancer_ip_as_source,
            }
            services {
                type_changes_apply_at_once,
                #[shared]
                proxying_load_balancers_get_the_traffic,
                #[rules]
                single_stack_services_serve_one_family,
                #[shared]
                leading_zeros_in_addresses_are_decimal,
                #[rules]
                protocols_are_independent,
                #[rules]
                ports_are_renamed,
                recreated_service_keeps_old_connections,
                clients_reuse_a_source_port,
            }
            slices {
                #[shared]
                relabelled_slice_moves_its_endpoints,
                #[shared]
                duplicate_address_is_that_of_the_live_pod,
                #[rules]
                pods_may_differ_in_target_ports,
                #[rules]
                irrelevant_changes_write_nothing,
            }
            policies {
                policies_are_independent,
                #[shared]
                terminating_endpoints_are_used_for_external_traffic_if_none_is_ready,
                nodes_can_be_endpoints,
            }
            udp_flows {
                client_moves_when_its_endpoint_is_removed,
                client_is_rejected_until_the_next_endpoint,
                #[rules]
                flows_end_with_their_vip,
                #[rules]
                flows_follow_their_vip_to_another_service,
                #[rules]
                client_from_before_the_service_is_answered,
                #[rules]
                clients_move_at_every_node_address,
                live_flows_keep_their_endpoint,
                #[rules]
                flows_stay_while_their_endpoint_serves,
            }
            half_open {
                clients_of_a_removed_endpoint_reach_another_one,
                #[rules]
                clients_from_before_the_vip_are_answered,
            }
            resets {
                #[rules]
                clients_of_a_node_that_is_gone_are_reset,
                clients_of_a_removed_endpoint_are_reset,
                an_endpoint_that_returns_gets_connections_at_once,
                #[rules]
                connections_that_no_service_translated_are_kept,
            }
            invalid_packets {
                replies_outside_of_the_window,
                #[rules]
                liberal_conntrack_translates_them,
            }
            takeover {
                from_iptables_nft,
                from_iptables_legacy,
                from_nftables,
                back_to_kube_proxy,
            }
        }
    };
    (@list @modules $backend:expr; $($module:ident { $($(#[$scope:ident])? $case:ident),* $(,)? })*) => {
        [$($($crate::suite::Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: $crate::cases::$module::$case,
            scope: $crate::conformance! { @scope $($scope)? },
        },)*)*]
    };
    (@$what:ident @modules $backend:expr; $($module:ident { $($(#[$scope:ident])? $case:ident),* $(,)? })*) => {
        $(mod $module {
            $($crate::conformance! { @test $what [$($scope)?] $module $case $backend })*
        })*
    };
    (@scope) => {
        $crate::suite::Scope::All
    };
    (@scope rules) => {
        $crate::suite::Scope::Rules
    };
    (@scope shared) => {
        $crate::suite::Scope::Shared
    };
    (@test gate [shared] $module:ident $case:ident $backend:expr) => {
        #[test]
        #[ignore = "the same as with nftables: `make nightly` runs it"]
        fn $case() {
            $crate::cases::$module::$case($backend);
        }
    };
    (@test unmarked [$scope:ident] $module:ident $case:ident $backend:expr) => {
        #[test]
        #[ignore = "the same as with another backend: `make nightly` runs it"]
        fn $case() {
            $crate::cases::$module::$case($backend);
        }
    };
    (@test $what:ident [$($scope:ident)?] $module:ident $case:ident $backend:expr) => {
        #[test]
        fn $case() {
            $crate::cases::$module::$case($backend);
        }
    };
}
