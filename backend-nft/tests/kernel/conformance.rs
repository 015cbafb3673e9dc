//! What every backend must do.

use agent::{
    Backend,
    testing::{History, conformance},
};

use super::support::{assert_readable, backend, run};

#[test]
fn an_empty_state_is_a_state() {
    run(|| conformance::empty_state(backend));
}

#[test]
fn apply_is_as_good_as_reconcile() {
    run(|| async {
        for seed in 0..10 {
            conformance::apply_is_as_good_as_reconcile(backend, seed, 40).await;
        }
    });
}

#[test]
fn reconcile_leads_from_any_state_to_any_other() {
    run(|| conformance::reconcile_leads_from_any_state_to_any_other(backend, 7, 40));
}

#[test]
fn cleanup_and_back() {
    run(|| conformance::cleanup_and_back(backend, 3));
}

/// Whatever is programmed can be listed.
#[test]
fn random_states_are_readable() {
    run(|| async {
        let (mut history, mut backend) = (History::new(11), backend());
        for _ in 0..25 {
            history.jump();
            backend.reconcile(history.state()).await.unwrap();
            assert_readable();
            let changes = history.step();
            backend.apply(history.state(), &changes).await.unwrap();
            assert_readable();
        }
    });
}
