//! The backend contract tests.

use backend::testing::contract;
use iptables::Variant;

use super::support::{backend, run};

#[test]
fn an_empty_state_is_a_state() {
    for variant in Variant::ALL {
        run(move || contract::empty_state(move || backend(variant)));
    }
}

#[test]
fn apply_equals_reconcile() {
    for variant in Variant::ALL {
        for seed in 0..4 {
            run(move || contract::apply_equals_reconcile(move || backend(variant), seed, 30));
        }
    }
}

#[test]
fn reconcile_works_from_any_state() {
    for variant in Variant::ALL {
        run(move || contract::reconcile_works_from_any_state(move || backend(variant), 7, 20));
    }
}

#[test]
fn cleanup_removes_everything() {
    for variant in Variant::ALL {
        run(move || contract::cleanup_removes_everything(move || backend(variant), 3));
    }
}
