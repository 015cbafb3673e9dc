//! What every backend must do, seen from outside: real packets in both families and all protocols, and no look into how a backend
//! does it. Each case is a function of the [`Backend`](crate::Backend); [`conformance!`](crate::conformance) makes a test of each.

pub mod endpoints;
pub mod node_ports;
pub mod packets;

mod expect;

/// One test for each case: `fairlead_e2e::conformance!(fairlead_e2e::Backend::Nft);`
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance! { @modules $backend;
            packets {
                cluster_ip,
                external_ip,
                load_balancer_ip,
                node_port,
                cluster_ip_with_masquerade_all,
                cluster_ip_without_cluster_cidr,
                external_ip_without_cluster_cidr,
                node_port_without_cluster_cidr,
            }
            endpoints {
                spread_is_uniform,
                a_pod_reaches_itself,
                draining_endpoints_are_the_last_resort,
                draining_endpoints_are_the_last_resort_of_each_node,
                hints_are_honoured,
            }
            node_ports {
                they_answer_at_the_primary_address,
                they_answer_in_the_cidrs_given,
                they_never_answer_on_loopback,
            }
        }
    };
    (@modules $backend:expr; $($module:ident { $($case:ident),* $(,)? })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                $crate::cases::$module::$case($backend);
            })*
        })*
    };
}
