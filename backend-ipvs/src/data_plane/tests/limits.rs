//! What one Service costs in the kernel: sums of its VIPs and endpoints, and limits where IPVS or ipset need a product.

use super::*;
use crate::desired::MAX_PERSISTENT_DESTINATIONS;

/// The n-th address of a network with 8 bits.
fn address(net: u32, n: u32) -> std::net::Ipv4Addr {
    ((net << 24) + n).into()
}

fn pods(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("{}:8080", address(10, n + 1))).collect()
}

/// A Service with session affinity, and this many ports, external IPs and endpoints.
fn sticky(state: StateBuilder, ports: u32, vips: u32, endpoints: u32) -> StateBuilder {
    let endpoints = pods(endpoints);
    (0..ports).fold(state, |state, number| {
        state.service(&format!("default/sticky:port-{number:03}"), |port| {
            let port = port.cluster_ip("10.96.0.2").port(1000 + number as u16).affinity(60);
            let port = (0..vips).fold(port, |port, n| port.external_ip(&address(198, n + 1).to_string()));
            port.endpoints(endpoints.iter().map(String::as_str))
        })
    })
}

fn destinations(kernel: &Fake) -> usize {
    kernel.objects().keys().filter(|object| matches!(object, Object::Destination(..))).count()
}

#[tokio::test(start_paused = true)]
async fn destinations_of_a_service_with_affinity_are_bounded() {
    const { assert!(10 * 5_000 < MAX_PERSISTENT_DESTINATIONS, "a usual Service has persistent virtual servers") };
    for (ports, vips, endpoints) in [(1, 20, 5_000), (1, 21, 5_000), (20, 64, 100), (40, 64, 100)] {
        let kernel = Fake::default();
        let report = reconcile(&kernel, &sticky(mk_state(), ports, vips, endpoints).build()).await;
        let external = (ports * vips * endpoints) as usize;
        let cluster_ip = (ports * endpoints) as usize;
        let is_limited = external > MAX_PERSISTENT_DESTINATIONS;
        let expected = if is_limited { cluster_ip } else { external };
        let at = format!("{ports} ports, {vips} VIPs, {endpoints} endpoints");
        assert_eq!(destinations(&kernel), cluster_ip + expected, "{at}");
        // Virtual servers, addresses and set entries of each port at each VIP.
        assert!(report.writes < destinations(&kernel) + (4 * ports * (vips + 2)) as usize, "{at}: {}", report.writes);
        assert_eq!(report.failures.len(), if is_limited { ports as usize } else { 0 }, "{at}");
        if let Some(failure) = report.failures.first() {
            assert!(failure.reason.starts_with("spec.sessionAffinity: "), "{}", failure.reason);
            assert!(failure.reason.contains(&format!("are {external}, more than 100000")), "{}", failure.reason);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_ports_of_a_service_change_when_one_exceeds_the_limit_of_destinations() {
    let kernel = Fake::default();
    let mut driver =
        Driver::new(IpvsDataPlane::new(kernel.clone(), Settings { drain: Duration::ZERO, ..Settings::default() }));
    let mut state = sticky(with_web(mk_state(), &[ONE]), 10, 100, 100).build();
    driver.reconcile_all(&state).await.unwrap();
    for (ports, expected) in [(11, 11 * 200), (10, 10 * 10_100), (12, 12 * 200), (0, 0)] {
        let changes = transition(&mut state, &sticky(with_web(mk_state(), &[ONE]), ports, 100, 100).build());
        let report = driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(report.failures.len(), if expected == 200 * ports as usize { ports as usize } else { 0 });
        // Two destinations are those of the other Service: at its cluster IP and its node port.
        assert_eq!(destinations(&kernel), expected + 2, "{ports} ports");
        assert_eq!(reconcile(&kernel, &state).await.writes, 0, "{ports} ports: a restart writes nothing");
    }
}

/// A Service with these endpoints.
fn web_on(pods: &[String]) -> NodeState {
    let endpoints = pods.iter().map(String::as_str);
    mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints)).build()
}

/// The endpoints are replaced again and again, and no check removes those that have left. Connections continue.
#[tokio::test(start_paused = true)]
async fn destinations_that_drain_without_connections_are_bounded() {
    const ENDPOINTS: usize = 1_000;
    const ROUNDS: usize = 50;
    let pods = pods((ROUNDS as u32 + 1) * ENDPOINTS as u32);
    let with = |round: usize| web_on(&pods[round * ENDPOINTS..][..ENDPOINTS]);
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = with(0);
    driver.reconcile_all(&state).await.unwrap();
    kernel.connect(1);
    for round in 1..=ROUNDS {
        let changes = transition(&mut state, &with(round));
        driver.apply_all(&state, &changes).await.unwrap();
        // Those of the Service, those with connections, those that wait, and those of one change.
        let bound = 3 * ENDPOINTS + MAX_TRANSACTION_WRITES;
        let count = destinations(&kernel);
        assert!(count <= bound, "round {round}: {count} destinations, more than {bound}");
    }
    let objects = kernel.objects();
    assert!(pods[..ENDPOINTS].iter().all(|pod| objects.contains_key(&destination(pod))), "connections were ended");
}

/// Each change needs more than one transaction, and the next change arrives after the first of them.
#[tokio::test(start_paused = true)]
async fn destinations_of_a_large_service_that_always_changes_are_bounded() {
    const ENDPOINTS: usize = 6_000;
    const ROUNDS: usize = 12;
    let pods = pods((ROUNDS as u32 + 1) * ENDPOINTS as u32);
    let with = |round: usize| web_on(&pods[round * ENDPOINTS..][..ENDPOINTS]);
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = with(0);
    driver.reconcile_all(&state).await.unwrap();
    for round in 1..=ROUNDS {
        let changes = transition(&mut state, &with(round));
        let report = driver.apply(&state, &changes).await.unwrap();
        assert!(report.writes <= MAX_TRANSACTION_WRITES, "round {round}: {} operations", report.writes);
        let bound = 2 * ENDPOINTS + 2 * MAX_TRANSACTION_WRITES;
        let count = destinations(&kernel);
        assert!(count <= bound, "round {round}: {count} destinations, more than {bound}");
    }
    // The same as after a change without others.
    driver.apply_all(&state, &backend::Changes::default()).await.unwrap();
    let objects = kernel.objects();
    let used = objects.values().filter(|value| matches!(value, Value::Weight(Weight::Of(_)))).count();
    assert_eq!(used, ENDPOINTS);
}

/// A service port with load-balancer IPs, a node port, endpoints and source ranges.
fn restricted(vips: u32, endpoints: u32, ranges: u32) -> NodeState {
    let endpoints = pods(endpoints);
    let web = |web: ServiceBuilder| {
        let web = web.cluster_ip("10.96.0.2").node_port(30_000).external_local();
        let web = (0..vips).fold(web, |web, n| web.load_balancer_ip(&address(198, n + 1).to_string()));
        let web = (0..ranges).fold(web, |web, n| web.source_range(&format!("{}/30", address(11, 8 * n))));
        let endpoints = || endpoints.iter().map(String::as_str);
        web.endpoints(endpoints()).local_endpoints(endpoints())
    };
    mk_state().service("default/web", web).build()
}

/// Objects and operations of a service port: at most five for each VIP (address, two verdicts, restriction, other
/// ports) and two more for the node port, one for each endpoint of each of the three virtual servers and one for the
/// hairpin, and the virtual servers. Source ranges are a product with load-balancer IPs, which is bounded.
#[tokio::test(start_paused = true)]
async fn objects_are_linear_in_vips_and_endpoints() {
    for (vips, endpoints, ranges) in [(0, 0, 0), (1, 1, 1), (200, 1, 0), (1, 500, 0), (200, 500, 0), (64, 300, 20)] {
        let kernel = Fake::default();
        let report = reconcile(&kernel, &restricted(vips, endpoints, ranges)).await;
        assert_eq!(report.failures, []);
        let (vips, endpoints, ranges) = (vips as usize, endpoints as usize, ranges as usize);
        let bound = 5 * (vips + 2) + 4 * endpoints + 3 + vips * ranges;
        let at = format!("{vips} VIPs, {endpoints} endpoints, {ranges} ranges");
        assert!(kernel.objects().len() <= bound, "{at}: {} objects of {bound}", kernel.objects().len());
        // One operation for each object, and the base objects.
        assert!(report.writes <= kernel.objects().len() + 1, "{at}: {} operations", report.writes);
    }
}

/// The Service gets one more load-balancer IP than its source ranges allow, and later fewer: the excess is closed, and
/// a restart agrees.
#[tokio::test(start_paused = true)]
async fn load_balancer_ips_are_closed_and_opened_as_the_limit_of_source_ranges_says() {
    const RANGES: u32 = 4_096;
    let kernel = Fake::default();
    let mut driver = Driver::new(IpvsDataPlane::new(kernel.clone(), Settings::default()));
    let mut state = restricted(23, 1, RANGES);
    driver.reconcile_all(&state).await.unwrap();
    for (vips, open) in [(25, 24), (24, 24)] {
        let changes = transition(&mut state, &restricted(vips, 1, RANGES));
        let report = driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(report.failures.len(), usize::from(open < vips), "{vips} VIPs: {:?}", report.failures);
        let is_source =
            |object: &&Object| matches!(object, Object::SetEntry(set, _) if set.content == SetContent::Sources);
        assert_eq!(kernel.objects().keys().filter(is_source).count(), (open * RANGES) as usize, "{vips} VIPs");
        assert_eq!(reconcile(&kernel, &state).await.writes, 0, "{vips} VIPs: a restart writes nothing");
    }
}
