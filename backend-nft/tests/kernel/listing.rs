//! What an operator sees.
use super::support::*;
use agent::testing::mk_state;

#[test]
fn show() {
    run(|| async {
        let state = mk_state()
            .service("default/web", |s| {
                s.cluster_ip("10.96.0.1")
                    .cluster_ip("fd00:96::1")
                    .endpoints(["10.244.1.1:8080", "10.244.2.1:8080", "[fd00:244:1::1]:8080"])
                    .local_endpoints(["10.244.1.1:8080", "[fd00:244:1::1]:8080"])
            })
            .service("default/lb", |s| {
                s.cluster_ip("10.96.0.2")
                    .load_balancer_ip("203.0.113.1")
                    .node_port(30080)
                    .external_local()
                    .endpoints(["10.244.1.2:8080", "10.244.2.2:8080"])
                    .local_endpoints(["10.244.1.2:8080"])
            })
            .service("default/none", |s| s.cluster_ip("10.96.0.3").node_port(30081))
            .build();
        println!("{:?}", reconcile(&state).await);
        println!("{}", nft("list table ip fairlead"));
        println!("{}", nft("list table ip6 fairlead"));
        assert_readable();
        println!("{:?}", reconcile(&state).await);
    });
}
