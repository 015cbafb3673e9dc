//! Two states of a set of Services, which differ in everything that a change can touch, and what clients see in each.

use std::{
    fmt::{Debug, Write as _},
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use e2e::{
    Backend, BackgroundTraffic, Client, Cluster, Deployment, Failure, IpFamily, Protocol,
    manifests::{Service, TrafficPolicy},
    plan, uml,
};

/// Timeout until all service ports are programmed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a request that may be dropped, and the same in a guest, which has a share of one CPU.
const SILENCE: Duration = Duration::from_millis(150);
const SILENCE_IN_A_GUEST: Duration = Duration::from_secs(2);
/// Requests of each client to each address.
const REQUESTS: usize = 3;
const NODE_PORT: u16 = 30_080;
const PORT: u16 = 80;

/// The states that changes alternate between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    First,
    Second,
}

/// What a request may result in: a pod's name, or one of these.
const REFUSED: &str = "refused";
const DROPPED: &str = "dropped";
const UNREACHABLE: &str = "unreachable";

/// A client, a destination, and the results in each state.
struct Expectation {
    client: Client,
    to: SocketAddr,
    results: [&'static [&'static str]; 2],
}

// === impl State ===

impl State {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn pick<T>(self, first: T, second: T) -> T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }

    fn services(self, cluster: &Cluster) -> Vec<Service> {
        let service = |name: &str, number, pods: &[&str]| {
            let service = Service::new(name).cluster_ip(plan::cluster_ip(number)).port_all(PORT, 8080);
            service.pods(pods.iter().map(|pod| cluster.pod(pod)))
        };
        let moves = service("moves", 2, self.pick(&["pod-a-1"], &["pod-a-2"])).node_port(NODE_PORT);
        let restricted = service("restricted", 5, &["pod-a-1"]).load_balancer_ip(plan::load_balancer_ip(1));
        let allowed = source(self.pick(1, 2)).map(prefix);
        let affine = service("affine", 6, &["pod-a-1", "pod-a-2"]);
        let local = service("local", 7, &["pod-a-3"]).external_ip(plan::external_ip(2));
        let mut services = vec![
            service("steady", 1, &["pod-a-1", "pod-a-2"]),
            moves.external_ip(plan::external_ip(1)),
            self.pick(service("removed", 3, &["pod-a-3"]), service("added", 4, &["pod-a-1"])),
            restricted.source_ranges(&allowed.each_ref().map(String::as_str)),
            self.pick(affine.clone(), affine.affinity(60)),
            local.external_policy(self.pick(TrafficPolicy::Cluster, TrafficPolicy::Local)),
            service("emptied", 8, self.pick(&["pod-a-1"][..], &[])),
        ];
        services.extend((9..self.pick(12, 11)).map(|number| service(&format!("more-{number}"), number, &["pod-a-2"])));
        services
    }

    /// Writes the objects of this state in place of those of the other one.
    pub(crate) fn write(self, deployment: &Deployment) {
        deployment.manifests().apply_all("services", &self.services(deployment.cluster()));
    }
}

/// A client's address in both families.
fn source(number: u8) -> [IpAddr; 2] {
    plan::client_source(number).both()
}

fn prefix(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

// === what clients see ===

fn expectations(cluster: &Cluster, family: IpFamily) -> Vec<Expectation> {
    let cluster_ip = |number| SocketAddr::new(plan::cluster_ip(number).ip(family), PORT);
    let external_ip = |number| SocketAddr::new(plan::external_ip(number).ip(family), PORT);
    let load_balancer = SocketAddr::new(plan::load_balancer_ip(1).ip(family), PORT);
    let node_port = SocketAddr::new(cluster.node('a').address.ip(family), NODE_PORT);
    let (pod, outside) = (|| cluster.pod("pod-a-3").client(), || cluster.client());
    let from = |number: u8| outside().with_source(plan::client_source(number).ip(family));
    let node = || cluster.node('a').client();
    let row = |client: Client, to, first, second| Expectation { client, to, results: [first, second] };
    const A1: &[&str] = &["pod-a-1"];
    const A2: &[&str] = &["pod-a-2"];
    const A3: &[&str] = &["pod-a-3"];
    const A1_A2: &[&str] = &["pod-a-1", "pod-a-2"];
    const NONE: &[&str] = &[DROPPED];
    vec![
        row(pod(), cluster_ip(1), A1_A2, A1_A2),
        row(node(), cluster_ip(1), A1_A2, A1_A2),
        row(pod(), cluster_ip(2), A1, A2),
        row(outside(), external_ip(1), A1, A2),
        row(outside(), node_port, A1, A2),
        row(pod(), cluster_ip(3), A3, NONE),
        row(pod(), cluster_ip(4), NONE, A1),
        row(from(1), load_balancer, A1, NONE),
        row(from(2), load_balancer, NONE, A1),
        row(pod(), cluster_ip(6), A1_A2, A1_A2),
        row(outside(), external_ip(2), A3, A3),
        row(pod(), cluster_ip(8), A1, &[REFUSED]),
        row(pod(), cluster_ip(9), A2, A2),
    ]
}

/// Waits until clients see this state: a service port that failed is tried again after all others.
#[track_caller]
pub(crate) fn check(cluster: &Cluster, state: State, what: &dyn Debug) {
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        if unexpected_results(cluster, |row| vec![row.results[state as usize].to_vec()]).is_empty() {
            return;
        }
    }
    check_now(cluster, state, what);
}

/// Checks that clients see this state already: no process changes it.
#[track_caller]
pub(crate) fn check_now(cluster: &Cluster, state: State, what: &dyn Debug) {
    check_each(cluster, what, |row| vec![row.results[state as usize].to_vec()]);
}

/// Checks that each VIP is in one of both states. While a Service is added or removed, its VIPs may also reject
/// connections: the backends with iptables write the table filter before the table nat. IPVS changes endpoints one by
/// one, new ones first, so there each request may have a result of either state.
#[track_caller]
pub(crate) fn check_between(backend: Backend, cluster: &Cluster, what: &dyn Debug) {
    check_each(cluster, what, |row| {
        let is_added_or_removed = row.results.iter().any(|results| results.contains(&DROPPED));
        let rejected = is_added_or_removed.then_some(vec![REFUSED]);
        let results = row.results.map(<[_]>::to_vec);
        match backend {
            Backend::Ipvs => vec![results.into_iter().chain(rejected).flatten().collect()],
            _ => results.into_iter().chain(rejected).collect(),
        }
    });
}

/// As [`check`], where a Service may also be missing: its VIPs then lead to no endpoint.
#[track_caller]
pub(crate) fn check_incomplete(cluster: &Cluster, state: State, what: &dyn Debug) {
    check_each(cluster, what, |row| {
        [row.results[state as usize], &[DROPPED], &[REFUSED], &[UNREACHABLE]].map(<[_]>::to_vec).to_vec()
    });
}

#[track_caller]
fn check_each(cluster: &Cluster, what: &dyn Debug, allowed: impl Fn(&Expectation) -> Vec<Vec<&'static str>> + Sync) {
    let wrong = unexpected_results(cluster, allowed);
    assert!(wrong.is_empty(), "{what:?}:\n{wrong}");
}

fn unexpected_results(cluster: &Cluster, allowed: impl Fn(&Expectation) -> Vec<Vec<&'static str>> + Sync) -> String {
    let rows: Vec<_> = IpFamily::ALL.into_iter().flat_map(|family| expectations(cluster, family)).collect();
    let (allowed, asked) = (&allowed, rows.iter().flat_map(|row| [(row, Protocol::Tcp), (row, Protocol::Udp)]));
    thread::scope(|scope| {
        let asking: Vec<_> =
            asked.map(|(row, protocol)| scope.spawn(move || unexpected(row, protocol, &allowed(row)))).collect();
        asking.into_iter().filter_map(|asking| asking.join().expect("a client does not panic")).collect()
    })
}

/// What clients see that is not allowed. No process changes the kernel while they ask, so a request that only took too
/// long, on a busy machine, has another result when it is repeated with more patience.
fn unexpected(row: &Expectation, protocol: Protocol, allowed: &[Vec<&str>]) -> Option<String> {
    let may_be_dropped = allowed.iter().any(|results| results.contains(&DROPPED));
    let silence = if uml::is_guest() { SILENCE_IN_A_GUEST } else { SILENCE };
    let client = if may_be_dropped { row.client.clone().with_deadline(silence) } else { row.client.clone() };
    unexpected_for(&client, row.to, protocol, allowed)?;
    unexpected_for(&row.client.clone().with_slow_handshakes(), row.to, protocol, allowed)
}

fn unexpected_for(client: &Client, to: SocketAddr, protocol: Protocol, allowed: &[Vec<&str>]) -> Option<String> {
    let may_be_dropped = allowed.iter().any(|results| results.contains(&DROPPED));
    let mut seen: Vec<String> = Vec::new();
    for _ in 0..REQUESTS {
        seen.push(match client.ask(protocol, to) {
            Ok(reply) => reply.pod,
            Err(Failure::Refused) => REFUSED.into(),
            Err(Failure::TimedOut) => DROPPED.into(),
            Err(Failure::Unreachable) => UNREACHABLE.into(),
            Err(failure) => failure.to_string(),
        });
        if may_be_dropped && seen.iter().any(|result| result == DROPPED) {
            break;
        }
    }
    let is_state = |results: &Vec<&str>| seen.iter().all(|result| results.contains(&result.as_str()));
    if allowed.iter().any(is_state) {
        return None;
    }
    let mut line = String::new();
    let _ = writeln!(line, "    {protocol} {to}: expected {allowed:?}, seen {seen:?}");
    Some(line)
}

/// New connections and streams to the Service that no change touches.
#[track_caller]
pub(crate) fn start_traffic(cluster: &Cluster) -> BackgroundTraffic {
    let mut traffic = BackgroundTraffic::default();
    for family in IpFamily::ALL {
        let steady = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
        for client in [cluster.pod("pod-a-3").client(), cluster.node('a').client()] {
            traffic.churns.push(client.churn(Protocol::Tcp, steady, 50, Duration::from_secs(1800)));
            let stream = client.stream(Protocol::Tcp, steady, Duration::from_millis(20));
            traffic.streams.push(stream.expect("a connection"));
        }
    }
    traffic
}
