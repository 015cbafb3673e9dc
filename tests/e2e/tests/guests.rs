//! Tests that need a kernel with IPVS, or without IPv6, in three guests of user-mode-linux: booting one for each test
//! would take longer than most of them. They run one after the other, because some change settings of the guest. The
//! variable `CASES` selects them by the beginning of their names.

use std::env;

use e2e::{suite, uml};

use crate::{families, ipvs, ipvs_backend, ipvs_scheduler, upgrade};

/// A test and its name.
type Test = (&'static str, fn());

/// A list of tests with their paths.
macro_rules! tests {
    ($($module:ident :: $test:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($test)), $module::$test),)*]
    };
}

const WITHOUT_IPV6: &[Test] = tests![
    families::ipv4_is_served_in_a_kernel_without_ipv6_by_iptables,
    families::ipv4_is_served_in_a_kernel_without_ipv6_by_ipvs,
];
const BESIDE_OTHERS: &[Test] = tests![
    // First: no other test has loaded a scheduler.
    ipvs_scheduler::missing_scheduler_is_replaced_by_round_robin,
    ipvs::takeover_from_ipvs_keeps_connections_and_foreign_objects,
    ipvs::backend_adopts_the_device_of_kube_proxy,
    families::ipvs_serves_ipv6_once_it_is_enabled,
];
const BACKEND: &[Test] = tests![
    ipvs_backend::ipvs_backend_fulfils_the_contract,
    ipvs::draining_endpoints_are_listed,
    ipvs_scheduler::restart_with_another_scheduler_changes_it_in_place,
    upgrade::ipvs,
];

#[test]
fn without_ipv6() {
    uml::inside_with(&["ipv6.disable=1"], || run(WITHOUT_IPV6));
}

#[test]
fn beside_others() {
    uml::inside(|| run(BESIDE_OTHERS));
}

#[test]
fn backend() {
    uml::inside(|| run(BACKEND));
}

#[track_caller]
fn run(tests: &[Test]) {
    let wanted = env::var("CASES").unwrap_or_default();
    let tests: Vec<_> = tests.iter().copied().filter(|(name, _)| name.starts_with(&wanted)).collect();
    suite::run(&tests, 1);
}
