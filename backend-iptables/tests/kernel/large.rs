//! More rules than fit into one transaction.

use backend::testing::ProgramAll as _;
use backend::{
    Backend as _,
    testing::{Stack, synthetic, transition},
};
use iptables::Variant;

use super::support::{backend, reconcile, run, saved};

#[test]
fn adding_and_removing_many_services() {
    for variant in Variant::ALL {
        run(move || async move {
            let before = saved(variant);
            let mut backend = backend(variant);
            let mut state = synthetic(120, 5, Stack::Dual);
            backend.reconcile_all(&state).await.unwrap();
            assert_eq!(reconcile(variant, &state).await.writes, 0);
            for services in [10, 120] {
                let changes = transition(&mut state, &synthetic(services, 5, Stack::Dual));
                assert_eq!(backend.apply_all(&state, &changes).await.unwrap().failures, []);
                assert_eq!(reconcile(variant, &state).await.writes, 0);
            }
            // A new instance removes most of it.
            let few = synthetic(10, 5, Stack::Dual);
            assert_ne!(reconcile(variant, &few).await.writes, 0);
            assert_eq!(reconcile(variant, &few).await.writes, 0);
            reconcile(variant, &state).await;
            backend.cleanup().await.unwrap();
            let chains = |lines: Vec<String>| {
                lines
                    .into_iter()
                    .filter(|line| line.contains("KUBE-") || line.contains("FAIRLEAD-"))
                    .collect::<Vec<_>>()
            };
            assert_eq!(chains(saved(variant)), chains(before));
        });
    }
}
