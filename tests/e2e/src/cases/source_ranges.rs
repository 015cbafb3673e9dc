//! Load-balancer source ranges. All packets arrive at node-a; sources are the additional addresses of the outside
//! client: 1 to 3 are in one range ([`NEAR`]), 4 to 7 in the next ([`FAR`]).

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::expect::{Check, Expected, check_all, check_with_trace};
use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::Service,
    plan::{self, DualStack, IpFamily},
    traffic::Churn,
    wire::Protocol,
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const NEAR: [&str; 2] = ["203.0.113.0/30", "2001:db8:203::/126"];
const FAR: [&str; 2] = ["203.0.113.4/30", "2001:db8:203::4/126"];
const INTERVAL: Duration = Duration::from_millis(15);
const PER_SECOND: u32 = 100;
/// Enough to notice a gap.
const ATTEMPTS: u64 = 60;

// === the cases ===

/// Sources in a range are answered, and packets of all others are dropped, also those of the node itself, which pass no
/// prerouting hook, and without endpoints. A range of all addresses lifts the restriction, and ranges of one family do
/// not restrict the other. The service's other addresses, and other services, are not restricted.
pub fn only_sources_in_a_range_connect(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| {
        let near = service(cluster, 1).external_ip(plan::external_ip(1)).node_port(NODE_PORT);
        vec![
            near.source_ranges(&NEAR),
            service(cluster, 2).source_ranges(&FAR),
            service(cluster, 3),
            service(cluster, 4).source_ranges(&plan::FABRIC),
            web(5).source_ranges(&NEAR),
            service(cluster, 6).source_ranges(&[NEAR[0], "0.0.0.0/0", NEAR[1]]),
            service(cluster, 7).source_ranges(&[NEAR[0], "::/0", NEAR[1]]),
            service(cluster, 8).source_ranges(&NEAR[..1]),
            service(cluster, 9).source_ranges(&NEAR[1..]),
        ]
    });
    let cluster = deployment.cluster();
    let dropped = |_| Expected::Dropped;
    let mut checks = Vec::new();

    for (number, answered, others) in [(1, [1, 3], [4, 8]), (2, [4, 7], [3, 8])] {
        let ip = plan::load_balancer_ip(number);
        checks.extend(answered.into_iter().flat_map(|source| checks_from(cluster, source, ip, &answers())));
        checks.extend(others.into_iter().flat_map(|source| checks_from(cluster, source, ip, &dropped)));
    }
    for ip in [plan::load_balancer_ip(3), plan::cluster_ip(1), plan::external_ip(1)] {
        checks.extend(checks_from(cluster, 8, ip, &answers()));
    }
    let mut node_port = checks_from(cluster, 8, cluster.node('a').address, &answers());
    node_port.iter_mut().for_each(|check| check.to.set_port(NODE_PORT));
    checks.extend(node_port);

    let pod = cluster.pod("pod-a-3").client();
    checks.extend(self::checks("from a pod", |_| pod.clone(), plan::load_balancer_ip(1), &dropped));
    for (number, expected) in [(1, &dropped as &dyn Fn(_) -> _), (3, &answers()), (4, &answers()), (5, &dropped)] {
        let ip = plan::load_balancer_ip(number);
        checks.extend(self::checks("from node-a", |_| cluster.node('a').client(), ip, expected));
    }

    checks.extend(checks_from(cluster, 1, plan::load_balancer_ip(5), &|_| Expected::Refused));
    checks.extend(checks_from(cluster, 8, plan::load_balancer_ip(5), &dropped));
    for (number, open) in [(6, IpFamily::V4), (7, IpFamily::V6), (8, IpFamily::V6), (9, IpFamily::V4)] {
        let ip = plan::load_balancer_ip(number);
        let expected = |family| if family == open { answers()(family) } else { Expected::Dropped };
        checks.extend(checks_from(cluster, 1, ip, &answers()));
        checks.extend(checks_from(cluster, 8, ip, &expected));
    }
    check_with_trace(cluster, &checks);
}

/// Ranges change under traffic: sources that are in a range before and after are not affected, nor is another service,
/// and established connections continue from any source.
pub fn range_changes_apply_at_once(backend: Backend) {
    let service = |cluster: &Cluster, ranges: &[&str]| service(cluster, 1).source_ranges(ranges);
    let mut deployment = Deployment::start(backend, |cluster| {
        let other = self::service(cluster, 2).source_ranges(&["203.0.113.8/32", "2001:db8:203::8/128"]);
        vec![service(cluster, &NEAR), other]
    });
    assert_answered(&deployment, [1], [5]);
    let churns = IpFamily::ALL.map(|family| {
        [(1, 1), (8, 2)].map(|(source, number)| {
            let client = from(deployment.cluster(), source, family);
            client.churn(Protocol::Tcp, vip(number, family), PER_SECOND, TIMEOUT * 3)
        })
    });
    let churns = churns.as_flattened();
    let both = [NEAR, FAR].concat();
    deployment.apply(&service(deployment.cluster(), &both));
    assert_answered(&deployment, [1, 5], [8]);
    let streams = IpFamily::ALL.map(|family| {
        let client = from(deployment.cluster(), 5, family);
        client.stream(Protocol::Tcp, vip(1, family), INTERVAL).expect("a connection")
    });
    let narrow = ["203.0.113.1/32", "2001:db8:203::1/128"];
    let wide = ["203.0.113.0/24", "2001:db8:203::/64"];
    for (ranges, expected) in [
        (&narrow[..], [&[1][..], &[2, 5, 8]]),
        (&wide, [&[1, 5, 8], &[]]),
        (&NEAR, [&[1, 3], &[4, 5]]),
        (&[], [&[1, 5, 8], &[]]),
    ] {
        let changed = service(deployment.cluster(), ranges);
        deployment.apply(&changed);
        let [answered, dropped] = expected;
        assert_answered(&deployment, answered.iter().copied(), dropped.iter().copied());
        Churn::wait_for_attempts(churns, ATTEMPTS, TIMEOUT);
    }
    for churn in churns {
        assert_eq!(churn.report().failures, []);
    }
    let changed = service(deployment.cluster(), &NEAR);
    deployment.apply(&changed);
    assert_answered(&deployment, [1], [5]);
    for stream in streams {
        assert!(stream.wait_echoes(10, TIMEOUT), "the connection continues: {:?}", stream.report());
        assert!(stream.finish().is_clean());
    }
}

/// If the node itself is in a range, packets whose source is the load-balancer IP are accepted, because a load balancer
/// may send the node's own traffic back that way. The IP of another load balancer is not.
pub fn node_in_a_range_may_use_the_load_balancer_ip_as_source(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| {
        vec![service(cluster, 1).source_ranges(&plan::FABRIC), service(cluster, 2).source_ranges(&NEAR)]
    });
    let cluster = deployment.cluster();
    own_load_balancer_ips(cluster, &[1, 2]);
    let mut checks = Vec::new();
    for (to, source, expected) in
        [(1, 1, &answers() as &dyn Fn(_) -> _), (1, 2, &|_| Expected::Dropped), (2, 2, &|_| Expected::Dropped)]
    {
        let source = plan::load_balancer_ip(source);
        let client = |family| cluster.client().with_source(source.ip(family));
        checks.extend(self::checks(&format!("from {source:?}"), client, plan::load_balancer_ip(to), expected));
    }
    check_all(&checks);
}

// === the services ===

/// A service with a load-balancer IP and, as its endpoint, a pod on node-a.
fn service(cluster: &Cluster, number: u8) -> Service {
    web(number).pods([cluster.pod("pod-a-1")])
}

fn web(number: u8) -> Service {
    let service = Service::new(&format!("web-{number}")).cluster_ip(plan::cluster_ip(number));
    service.load_balancer_ip(plan::load_balancer_ip(number)).port_all(PORT, 8080)
}

fn vip(number: u8, family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::load_balancer_ip(number).ip(family), PORT)
}

// === clients and checks ===

fn from(cluster: &Cluster, source: u8, family: IpFamily) -> Client {
    cluster.client().with_source(plan::client_source(source).ip(family))
}

/// The endpoint answers, and sees node-a: external traffic is masqueraded.
fn answers() -> impl Fn(IpFamily) -> Expected {
    |family| Expected::Answers([("pod-a-1".to_owned(), plan::gateway(1).ip(family))].into())
}

fn checks(
    what: &str,
    client: impl Fn(IpFamily) -> Client,
    to: DualStack,
    expected: &dyn Fn(IpFamily) -> Expected,
) -> Vec<Check> {
    let of = |family| {
        let check = |protocol| Check {
            what: what.to_owned(),
            client: client(family),
            protocol,
            to: SocketAddr::new(to.ip(family), PORT),
            expected: expected(family),
        };
        Protocol::ALL.map(check)
    };
    IpFamily::ALL.into_iter().flat_map(of).collect()
}

fn checks_from(cluster: &Cluster, source: u8, to: DualStack, expected: &dyn Fn(IpFamily) -> Expected) -> Vec<Check> {
    checks(&format!("from outside, {source}"), |family| from(cluster, source, family), to, expected)
}

/// Which sources reach the first service, and which do not.
#[track_caller]
fn assert_answered(
    deployment: &Deployment,
    answered: impl IntoIterator<Item = u8>,
    dropped: impl IntoIterator<Item = u8>,
) {
    let (cluster, ip) = (deployment.cluster(), plan::load_balancer_ip(1));
    let answered = answered.into_iter().flat_map(|source| checks_from(cluster, source, ip, &answers()));
    let dropped = dropped.into_iter().flat_map(|source| checks_from(cluster, source, ip, &|_| Expected::Dropped));
    check_all(&answered.chain(dropped).collect::<Vec<_>>());
}

/// Gives the outside client load-balancer IPs as source addresses. Its own packets to them still go to node-a; packets
/// that arrive for them are delivered locally.
fn own_load_balancer_ips(cluster: &Cluster, numbers: &[u8]) {
    let outside = cluster.outside();
    let ip = |family: &str, words: &str| {
        let arguments = [family].into_iter().chain(words.split(' ')).collect::<Vec<_>>();
        outside.output("ip", &arguments);
    };
    let own = |family, address: IpAddr, via: IpAddr| {
        outside.add_address(address, "lo", "");
        ip(family, &format!("route add {address} via {via} table 50"));
        ip(family, &format!("rule add pref 50 iif lo to {address} lookup 50"));
    };
    let node = cluster.node('a').address;
    for family in ["-4", "-6"] {
        // After the rules for the additional addresses.
        ip(family, "rule add pref 100 lookup local");
        ip(family, "rule del pref 0 lookup local");
    }
    for address in numbers.iter().map(|number| plan::load_balancer_ip(*number)) {
        own("-4", address.v4.into(), node.v4.into());
        own("-6", address.v6.into(), node.v6.into());
    }
}
