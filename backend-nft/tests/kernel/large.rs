//! Maps that are too large to be dumped are listed by their keys; elements with other keys are detected by their
//! number.

use backend::testing::{Stack, synthetic};

use crate::support::{nft, reconcile, run};

#[test]
fn changes_of_a_large_map_are_repaired() {
    run(|| async {
        // 25,000 endpoints in each family.
        let state = synthetic(2_500, 10, Stack::Dual);
        assert!(reconcile(&state).await.writes > 50_000);
        assert_eq!(reconcile(&state).await.writes, 0);
        let element = |slot: &str| format!("element ip fairlead endpoints {{ 10.96.0.9 . tcp . 80 . {slot} }}");
        let foreign = element("77 : 192.0.2.1 . 80");
        for (changes, writes) in [
            (&["delete", &element("3")][..], 1),
            (&["add", &foreign], 1),
            // The number of elements does not change.
            (&["delete", &element("3"), "add", &foreign], 2),
            (&["delete", &element("3"), "add", &element("3 : 192.0.2.1 . 80")], 2),
        ] {
            let change: Vec<String> = changes.chunks(2).map(|change| change.join(" ")).collect();
            nft(&change.join(" ; "));
            assert_eq!(reconcile(&state).await.writes, writes, "{changes:?}");
            assert_eq!(reconcile(&state).await.writes, 0, "{changes:?}");
        }
    });
}
