//! The elements of a service port are a sum, its pools may get another key, and its ports share client buckets.

use proptest::prelude::*;

use super::*;
use crate::kernel::fake::Fake;

fn large_service(vips: u8, endpoints: u16, ranges: u16, affinity: bool) -> NodeState {
    let endpoints: Vec<String> = (0..endpoints).map(|n| format!("10.244.{}.{}:80", n / 250, n % 250 + 1)).collect();
    let endpoints = || endpoints.iter().map(String::as_str);
    let web = |web: ServiceBuilder| {
        let web = web.cluster_ip("10.96.0.1").node_port(30080).external_local();
        let web = (0..vips).fold(web, |web, n| web.load_balancer_ip(&format!("203.0.113.{n}")));
        let web = (0..ranges).fold(web, |web, n| web.source_range(&format!("10.{}.{}.0/25", n / 250, n % 250)));
        let web = web.endpoints(endpoints()).local_endpoints(endpoints());
        if affinity { web.affinity(60) } else { web }
    };
    mk_state().service("default/web", web).build()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// At most five elements for each VIP (alias, set, two verdicts, restriction), three for each endpoint of each pool
    /// (with session affinity) and one for the hairpin, one for each source range, and one for the cluster IP.
    #[test]
    fn elements_are_linear_in_vips_endpoints_and_ranges(
        vips in 0u8..100,
        endpoints in 0u16..300,
        ranges in 0u16..300,
        affinity: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let kernel = Fake::default();
        let state = large_service(vips, endpoints, ranges, affinity);
        runtime.block_on(driver(&kernel).reconcile_all(&state)).unwrap();
        let total: usize = kernel.element_counts().values().sum();
        let (vips, endpoints, ranges) = (usize::from(vips) + 2, usize::from(endpoints), usize::from(ranges));
        let bound = 5 * vips + (2 * 3 + 1) * endpoints + ranges + 1;
        prop_assert!(total <= bound, "{total} of {bound}: {:?}", kernel.element_counts());
    }
}

/// The cluster IP is the key of the pool; when another Service has it, the endpoints move to another key at once.
#[tokio::test]
async fn the_key_of_a_pool_changes_in_one_transaction() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |cluster_ip: bool, external: &[&str]| {
        let web = |web: ServiceBuilder| {
            let web = web.endpoints(["10.244.1.1:80", "10.244.1.2:80"]).affinity(60);
            let web = external.iter().fold(web, |web, address| web.external_ip(address));
            if cluster_ip { web.cluster_ip("10.96.0.1").node_port(30080) } else { web }
        };
        mk_state().service("default/web", web).build()
    };
    let mut state = with(true, &["203.0.113.1"]);
    driver.reconcile_all(&state).await.unwrap();
    for (cluster_ip, external) in
        [(false, &["203.0.113.1", "203.0.113.2"][..]), (false, &["203.0.113.2"]), (true, &["203.0.113.2"]), (true, &[])]
    {
        let changes = backend::testing::transition(&mut state, &with(cluster_ip, external));
        kernel.transactions();
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().failures, []);
        assert!(kernel.transactions() <= 1, "{external:?}: the fake rejected a transaction");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{external:?}");
    }
}

/// A port with session affinity that is added changes the chains of the others in its namespace only when their number
/// of client buckets changes: those of a namespace with few ports keep their clients.
#[tokio::test]
async fn client_buckets_follow_the_number_of_ports() {
    const OTHER: u16 = 1_000;
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |ports: u16| {
        let web = |web: ServiceBuilder, port| {
            web.port(port).cluster_ip("10.96.0.1").affinity(60).endpoints(["10.244.1.1:80"])
        };
        let services = (1..=ports).fold(mk_state(), |state, port| {
            state.service(&format!("default/web-{}:{port}", port % 3), |service| web(service, port))
        });
        services.service("other/web", |service| web(service, OTHER)).build()
    };
    let of_port = |number| {
        let mut found = Vec::new();
        let is_of_port = |vip: &Vip| matches!(vip, Vip::AddressPort { port, .. } if *port == number);
        kernel.tamper(|elements| {
            found.extend(elements.clone().into_iter().filter(|((_, vip, ..), _)| is_of_port(vip)));
        });
        found
    };
    let mut state = with(1);
    driver.reconcile_all(&state).await.unwrap();
    let (alone, other) = (of_port(1), of_port(OTHER));
    for ports in [2, 3, 4, 5, 1, 0, 15, 16, 17, 40, 2] {
        let changes = backend::testing::transition(&mut state, &with(ports));
        driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{ports} ports");
        assert_eq!(of_port(1) == alone, (1..=16).contains(&ports), "{ports} ports");
        assert_eq!(of_port(OTHER), other, "{ports} ports");
    }
}
