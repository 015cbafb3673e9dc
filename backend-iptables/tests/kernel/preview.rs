//! The preview shows what would be written, and writes nothing.

use backend::{
    DifferenceKind,
    testing::{History, mk_key, mk_state},
};
use backend_iptables::Iptables;
use iptables::Variant;

use super::support::{options, reconcile, run, saved, tool};

fn preview(variant: Variant) -> Iptables {
    backend_iptables::open(options(), Some(variant))
}

#[test]
fn a_preview_has_differences_exactly_when_a_reconcile_writes() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut history = History::new(7);
            let mut same = preview(variant);
            for step in 0..8 {
                history.jump();
                let before = saved(variant);
                let fresh = preview(variant).preview(history.state()).await.unwrap();
                assert_eq!(same.preview(history.state()).await.unwrap(), fresh, "step {step}");
                assert_eq!(saved(variant), before, "step {step}");
                let writes = reconcile(variant, history.state()).await.writes;
                assert_eq!(fresh.differences.is_empty(), writes == 0, "step {step}: {fresh:?}");
                let after = same.preview(history.state()).await.unwrap();
                assert_eq!(after.differences, [], "step {step}");
            }
        });
    }
}

#[test]
fn differences_are_rules_with_their_service_port() {
    run(|| async {
        let variant = Variant::Nft;
        let state = |endpoints: &'static [&'static str]| {
            let web = |web: backend::testing::ServiceBuilder| web.cluster_ip("10.96.0.1").endpoints(endpoints.to_vec());
            mk_state().service("default/web", web).build()
        };
        let both = state(&["10.244.1.1:80", "10.244.2.1:80"]);
        reconcile(variant, &both).await;
        tool("iptables-nft -t nat -A KUBE-SERVICES -d 1.2.3.4 -j RETURN", "");
        let found = preview(variant).preview(&both).await.unwrap().differences;
        let [line] = &found[..] else { panic!("{found:?}") };
        assert_eq!((line.kind, &*line.subsystem), (DifferenceKind::Remove, "iptables-nft nat"));
        assert_eq!(line.object, "KUBE-SERVICES -d 1.2.3.4/32 -j RETURN");

        let found = preview(variant).preview(&state(&["10.244.2.1:80"])).await.unwrap().differences;
        let of_web = found.iter().filter(|one| one.service_port.as_ref() == Some(&mk_key("default/web")));
        let of_web: Vec<_> = of_web.map(|one| format!("{} {}", one.kind, one.object)).collect();
        assert!(of_web.iter().any(|line| line.starts_with("- KUBE-SVC-") && line.contains("10.244.1.1:80")));
        assert!(found.iter().any(|one| one.object.starts_with("chain KUBE-SEP-")), "{found:#?}");
    });
}
