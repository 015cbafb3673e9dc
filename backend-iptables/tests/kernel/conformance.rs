//! What every backend must do.

use backend::testing::conformance;
use backend_iptables::Variant;

use super::support::{backend, run};

#[test]
fn an_empty_state_is_a_state() {
    for variant in Variant::ALL {
        run(move || conformance::empty_state(move || backend(variant)));
    }
}

#[test]
fn apply_is_as_good_as_reconcile() {
    for variant in Variant::ALL {
        for seed in 0..4 {
            run(move || conformance::apply_is_as_good_as_reconcile(move || backend(variant), seed, 30));
        }
    }
}

#[test]
fn reconcile_leads_from_any_state_to_any_other() {
    for variant in Variant::ALL {
        run(move || conformance::reconcile_leads_from_any_state_to_any_other(move || backend(variant), 7, 20));
    }
}

#[test]
fn cleanup_and_back() {
    for variant in Variant::ALL {
        run(move || conformance::cleanup_and_back(move || backend(variant), 3));
    }
}
