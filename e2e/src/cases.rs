//! What every backend must do, seen from outside: real packets in both families and all protocols, and no look into how a backend
//! does it. Each case is a function of the [`Backend`](crate::Backend); [`conformance!`](crate::conformance) makes a test of each.

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
