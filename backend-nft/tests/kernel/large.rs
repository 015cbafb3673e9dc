//! Maps that are too large to be dumped: they are asked for what they should have, and what they should not have is noticed all the
//! same.

use backend::testing::{Stack, synthetic};

use crate::support::{nft, reconcile, run};

#[test]
fn a_large_map_is_found_as_it_is() {
    run(|| async {
        // 25,000 endpoints in each family.
        let state = synthetic(2_500, 10, Stack::Dual);
        assert!(reconcile(&state).await.writes > 50_000);
        assert_eq!(reconcile(&state).await.writes, 0);
        let element = |place: &str| format!("element ip fairlead endpoints {{ 10.96.0.9 . tcp . 80 . {place} }}");
        let foreign = element("77 : 192.0.2.1 . 80");
        for (changes, writes) in [
            (&["delete", &element("3")][..], 1),
            (&["add", &foreign], 1),
            // As many as before.
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
