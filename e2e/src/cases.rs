//! What every backend must do, seen from outside: real packets in both families and all protocols, and no look into how a backend
//! does it. Each case is a function of the [`Backend`](crate::Backend); [`conformance!`](crate::conformance) makes a test of each.

pub mod affinity;
pub mod changes;
pub mod cluster_ips;
pub mod commands;
pub mod drift;
pub mod endpoints;
pub mod faults;
pub mod health;
pub mod node_ports;
pub mod packets;
pub mod policies;
pub mod restarts;
pub mod services;
pub mod slices;
pub mod source_ranges;
pub mod takeover;
pub mod topology;
pub mod udp_flows;

mod expect;

/// One test for each case: `fairlead_e2e::conformance!(fairlead_e2e::Backend::Nft);`. All cases with their names, for a test that runs
/// them elsewhere: `fairlead_e2e::conformance!(list)`.
#[macro_export]
macro_rules! conformance {
    (list) => {
        $crate::conformance! { @all list () }
    };
    ($backend:expr) => {
        $crate::conformance! { @all tests $backend }
    };
    (@all $what:ident $backend:expr) => {
        $crate::conformance! { @$what @modules $backend;
            packets {
                cluster_ip,
                external_ip,
                load_balancer_ip,
                node_port,
                cluster_ip_with_masquerade_all,
                cluster_ip_without_cluster_cidr,
                external_ip_without_cluster_cidr,
                node_port_without_cluster_cidr,
                cluster_ip_with_node_cidr,
                node_port_with_node_cidr,
                cluster_ip_with_bridge_interface,
                node_port_with_bridge_interface,
                cluster_ip_with_interface_prefix,
                node_port_with_interface_prefix,
                pod_cidrs_of_the_node_change,
            }
            endpoints {
                spread_is_uniform,
                a_pod_reaches_itself,
                draining_endpoints_are_the_last_resort,
                draining_endpoints_are_the_last_resort_of_each_node,
                hints_are_honoured,
            }
            changes {
                an_endpoint_leaves_gracefully,
                endpoints_are_added_and_replaced,
                the_first_endpoint_comes_and_the_last_goes,
                the_first_local_endpoint_comes,
                services_come_and_go,
                ports_change,
                policies_change,
            }
            restarts {
                backends_are_terminated,
                backends_are_killed,
                the_frontend_is_terminated,
                the_frontend_is_killed,
                changes_wait_for_the_frontend,
                changes_wait_for_the_backends,
                a_rebooted_node_comes_up_alone,
            }
            faults {
                unreadable_manifests,
                a_manifest_becomes_unreadable,
                a_loopback_endpoint,
                an_external_ip_that_is_a_cluster_ip,
                an_external_ip_that_is_a_node_address,
                an_unreadable_source_range,
                two_services_with_one_vip,
                ports_that_cannot_be,
            }
            drift {
                a_flushed_table_is_repaired,
                rules_of_others_are_left_alone,
            }
            commands {
                local_does_it_all_in_one_process,
                services_are_listed,
                cleanup_removes_its_own,
            }
            health {
                load_balancers_learn_which_nodes_have_endpoints,
                health_ports_come_and_go,
            }
            cluster_ips {
                other_ports_are_refused,
                unallocated_addresses_lead_nowhere,
                service_cidrs_come_and_go,
            }
            node_ports {
                they_answer_at_the_primary_address,
                without_a_known_address_they_answer_nowhere,
                they_answer_in_the_cidrs_given,
                they_never_answer_on_loopback,
            }
            affinity {
                clients_stick_to_a_pod,
                a_client_is_forgotten_after_the_timeout,
                a_pod_that_leaves_takes_only_its_clients_along,
                the_timeout_changes,
                affinity_comes_and_goes,
                clients_outlive_backends,
                policy_local_sticks_to_local_pods,
            }
            source_ranges {
                only_sources_in_a_range_connect,
                ranges_may_overlap,
                everything_is_a_range_too,
                without_endpoints_the_others_are_told_nothing,
                ranges_change,
                a_node_in_a_range_may_come_as_the_load_balancer,
            }
            services {
                types_change,
                some_services_have_no_vip,
                load_balancers_that_proxy_get_the_traffic,
                services_of_one_family,
                families_in_every_spelling,
                addresses_in_sloppy_spellings,
                protocols_are_independent,
                ports_are_independent,
                ports_are_renamed,
                a_service_is_made_anew,
            }
            slices {
                slices_add_up,
                an_address_in_two_slices,
                pods_have_target_ports_of_their_own,
                conditions_in_every_combination,
                some_slices_do_not_count,
                changes_that_mean_nothing,
            }
            topology {
                hints_fall_back,
                local_traffic_knows_no_hints,
                a_node_changes_zones,
            }
            policies {
                policies_are_independent,
                draining_endpoints_are_the_last_resort_for_external_traffic,
                nodes_are_endpoints_too,
            }
            udp_flows {
                a_client_moves_when_its_endpoint_goes,
                a_client_is_refused_until_the_next_endpoint_comes,
                a_client_from_before_the_service_is_answered,
                clients_move_at_all_node_addresses,
                live_flows_stay,
            }
            takeover {
                from_iptables_nft,
                from_iptables_legacy,
                from_nftables,
            }
        }
    };
    (@list @modules $backend:expr; $($module:ident { $($case:ident),* $(,)? })*) => {
        [$($((
            concat!(stringify!($module), "::", stringify!($case)),
            $crate::cases::$module::$case as fn($crate::Backend),
        ),)*)*]
    };
    (@tests @modules $backend:expr; $($module:ident { $($case:ident),* $(,)? })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                $crate::cases::$module::$case($backend);
            })*
        })*
    };
}
