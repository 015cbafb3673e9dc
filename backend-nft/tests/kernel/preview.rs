//! A preview reports what a reconcile would write, and writes nothing.

use backend::{
    DifferenceKind,
    testing::{History, mk_key, mk_state},
};
use netlink::nft::NftHandle;

use super::support::{nft, options, reconcile, run};

fn preview() -> backend_nft::Nft {
    backend_nft::open(options()).unwrap()
}

/// The number of transactions in this network namespace.
fn generation() -> u32 {
    NftHandle::open().unwrap().generation().unwrap()
}

#[test]
fn a_preview_has_differences_exactly_when_a_reconcile_writes() {
    run(|| async {
        let mut history = History::new(7);
        let mut same = preview();
        for step in 0..12 {
            history.jump();
            let before = generation();
            let fresh = preview().preview(history.state()).await.unwrap();
            assert_eq!(same.preview(history.state()).await.unwrap(), fresh, "step {step}");
            assert_eq!(generation(), before, "step {step}");
            let writes = reconcile(history.state()).await.writes;
            assert_eq!(fresh.differences.is_empty(), writes == 0, "step {step}: {fresh:?}");
            let after = same.preview(history.state()).await.unwrap();
            assert_eq!(after.differences, [], "step {step}");
        }
    });
}

#[test]
fn differences_name_the_service_port() {
    run(|| async {
        let state = |endpoints: &'static [&'static str]| {
            let web = |web: backend::testing::ServiceBuilder| web.cluster_ip("10.96.0.1").endpoints(endpoints.to_vec());
            mk_state().service("default/web", web).build()
        };
        let new = preview().preview(&state(&["10.244.1.1:80"])).await.unwrap();
        assert!(new.differences[0].object.starts_with("the table, with "), "{new:?}");
        reconcile(&state(&["10.244.1.1:80", "10.244.2.1:80"])).await;
        nft("add element ip fairlead1 cluster-ips { 10.96.0.3 }");
        let shorter = preview().preview(&state(&["10.244.2.1:80"])).await.unwrap();
        let mut lines: Vec<_> = shorter
            .differences
            .iter()
            .map(|difference| {
                assert_eq!(difference.subsystem, "table ip fairlead1");
                (
                    difference.kind,
                    difference.object.as_str(),
                    difference.service_port.as_ref() == Some(&mk_key("default/web")),
                )
            })
            .collect();
        lines.sort_by_key(|(_, object, _)| *object);
        let expected = [
            (DifferenceKind::Add, "chain cluster-ip-pool-1, 2 rules", false),
            (DifferenceKind::Add, "chain pool-1, 2 rules", false),
            (DifferenceKind::Remove, "cluster-ips 10.96.0.3", false),
            (DifferenceKind::Change, "endpoints 10.96.0.1:80/tcp[0]: 10.244.1.1:80 -> 10.244.2.1:80", true),
            (DifferenceKind::Remove, "endpoints 10.96.0.1:80/tcp[1]: 10.244.2.1:80", true),
            (DifferenceKind::Change, "vips 10.96.0.1:80/tcp: cluster-ip-pool-2 -> cluster-ip-pool-1", true),
        ];
        assert_eq!(lines, expected);
    });
}
