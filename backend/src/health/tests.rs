//! Real listeners, in a network namespace for each test, and an HTTP client on a plain TCP stream.

use std::{
    cell::RefCell,
    collections::HashSet,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use netlink::testing::block_on_in_netns;
use proto::model::IpFamily;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::*;
use crate::{
    Progress,
    dataplane::NodePortAddresses,
    testing::{ServiceBuilder, mk_state},
};

const PORT: u16 = 32_000;
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// HealthCheckServers that run, and both ends that feed them.
struct Fixture {
    health: HealthChecks,
    progress: watch::Sender<Progress>,
    published: RefCell<NodeState>,
    _servers: JoinSet<()>,
}

/// An answer as the client receives it.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    weight: usize,
    body: String,
}

fn start() -> Fixture {
    start_at(NodePortAddresses::all())
}

fn start_at(addresses: NodePortAddresses) -> Fixture {
    start_with(addresses, |_| {})
}

fn start_with(addresses: NodePortAddresses, set: impl FnOnce(&mut HealthCheckServers)) -> Fixture {
    let (health, progress) = (HealthChecks::default(), watch::Sender::<Progress>::default());
    progress.send_modify(|progress| progress.stream.last_iteration = Some(tokio::time::Instant::now()));
    let mut servers = HealthCheckServers::new(&health, addresses, progress.subscribe());
    set(&mut servers);
    let mut tasks = JoinSet::new();
    tasks.spawn(servers.run());
    Fixture { health, progress, published: RefCell::new(mk_state().build()), _servers: tasks }
}

impl Fixture {
    fn publish(&self, state: &NodeState) {
        let before = self.published.replace(state.clone());
        self.health.publish(state, before.diff(state).map(|change| change.key));
    }
}

/// Runs a test in a network namespace with only a loopback interface.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    block_on_in_netns(|| async move {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        timeout(PATIENCE, test()).await.expect("in time");
    });
}

fn web(local: &'static [&'static str]) -> impl Fn(ServiceBuilder) -> ServiceBuilder {
    move |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").health_check_node_port(PORT);
        web.local_endpoints(local.iter().copied())
    }
}

fn state(local: &'static [&'static str]) -> NodeState {
    mk_state().service("default/web", web(local)).build()
}

fn at(family: IpFamily) -> SocketAddr {
    let loopback: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(loopback, PORT)
}

async fn exchange(family: IpFamily, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(at(family)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    // The server closes the connection.
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn ask(family: IpFamily) -> io::Result<Answer> {
    let answer = exchange(family, "GET /any/path?at=all HTTP/1.1\r\nHost: node\r\n\r\n").await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).unwrap()[..3].parse().unwrap();
    let header = |name: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {name}: {head}"))
    };
    assert_eq!(header("Content-Type"), "application/json");
    assert_eq!(header("X-Content-Type-Options"), "nosniff");
    assert_eq!(header("Connection").to_lowercase(), "close");
    let weight = header("X-Load-Balancing-Endpoint-Weight").parse().unwrap();
    Ok(Answer { status, weight, body: body.to_owned() })
}

/// The first answer, once the port is open.
async fn eventually(family: IpFamily) -> Answer {
    loop {
        match ask(family).await {
            Ok(answer) => return answer,
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

async fn until_refused(family: IpFamily) {
    while ask(family).await.is_ok() {
        tokio::time::sleep(POLL).await;
    }
    assert_eq!(ask(family).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

fn answer(status: u16, weight: usize, healthy: &str) -> Answer {
    let service = r#"{"namespace":"default","name":"web"}"#;
    let body = format!(r#"{{"service":{service},"localEndpoints":{weight},"serviceProxyHealthy":{healthy}}}"#);
    Answer { status, weight, body }
}

#[test]
fn each_family_has_its_own_answer() {
    run(|| async {
        let fixture = start();
        fixture.publish(&state(&["10.244.1.1:80", "10.244.1.2:80"]));
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 2, "true"));
        assert_eq!(eventually(IpFamily::V6).await, answer(503, 0, "true"));
    });
}

/// Traffic of that family reaches no endpoint through the node.
#[test]
fn answer_is_unhealthy_in_a_family_that_is_not_programmed() {
    run(|| async {
        let fixture = start();
        fixture.progress.send_modify(|progress| {
            progress.kernel.unusable_families = vec![(IpFamily::V6, "no such table".to_owned())];
        });
        fixture.publish(&state(&["10.244.1.1:80", "[fd00:244::1]:80"]));
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
        assert_eq!(eventually(IpFamily::V6).await, answer(503, 1, "false"));
        fixture.progress.send_modify(|progress| progress.kernel.unusable_families.clear());
        assert_eq!(ask(IpFamily::V6).await.unwrap(), answer(200, 1, "true"));
    });
}

#[test]
fn count_changes_without_reopening_the_port() {
    run(|| async {
        let fixture = start();
        fixture.publish(&state(&[]));
        assert_eq!(eventually(IpFamily::V4).await, answer(503, 0, "true"));
        let mut early = TcpStream::connect(at(IpFamily::V4)).await.unwrap();
        early.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        // No `eventually`: the very next request, and a connection that a new listener would have closed.
        fixture.publish(&state(&["10.244.1.1:80"]));
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
        early.write_all(b"Host: node\r\n\r\n").await.unwrap();
        let mut text = String::new();
        early.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    });
}

#[test]
fn answer_is_unhealthy_when_syncs_have_failed_for_a_minute() {
    run(|| async {
        let fixture = start();
        fixture.publish(&state(&["10.244.1.1:80"]));
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
        let failing_for = |seconds| {
            fixture.progress.send_modify(|progress| {
                progress.kernel.error = Some("no memory".to_owned());
                progress.changes.pending_since = tokio::time::Instant::now().checked_sub(Duration::from_secs(seconds));
            });
        };
        for (seconds, expected) in [(0, answer(200, 1, "true")), (50, answer(200, 1, "true"))] {
            failing_for(seconds);
            assert_eq!(ask(IpFamily::V4).await.unwrap(), expected, "{seconds} s");
        }
        failing_for(60);
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(503, 1, "false"));
        fixture.progress.send_modify(|progress| {
            progress.kernel.error = None;
            progress.changes.pending_since = None;
        });
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
    });
}

#[test]
fn ports_are_opened_at_the_addresses_of_node_ports_only() {
    run(|| async {
        for address in ["192.168.1.1/24", "192.168.1.7/24", "198.51.100.1/24", "fd00:1::1/64"] {
            let nodad = address.contains(':').then_some("nodad");
            let added = Command::new("ip").args(["address", "add", address, "dev", "lo"]).args(nodad).status().unwrap();
            assert!(added.success());
        }
        let is_open = |address: &str| {
            let address = SocketAddr::new(address.parse().unwrap(), PORT);
            async move { TcpStream::connect(address).await.is_ok() }
        };
        let all = ["127.0.0.1", "192.168.1.1", "192.168.1.7", "198.51.100.1", "fd00:1::1", "::1"];
        let range = NodePortAddresses::Cidrs(vec!["192.168.0.0/16".parse().unwrap()]);
        for (addresses, expected) in [
            (NodePortAddresses::Primary, &["192.168.1.1", "fd00:1::1"][..]),
            (range, &["192.168.1.1", "192.168.1.7"]),
            (NodePortAddresses::all(), &all),
        ] {
            let fixture = start_at(addresses.clone());
            // A node at 192.168.1.1 and fd00:1::1.
            fixture.publish(&state(&["10.244.1.1:80"]));
            for address in expected {
                while !is_open(address).await {
                    tokio::time::sleep(POLL).await;
                }
            }
            for address in all {
                assert_eq!(is_open(address).await, expected.contains(&address), "{addresses:?} {address}");
            }
        }
    });
}

#[test]
fn port_is_opened_within_seconds_at_an_address_that_is_added_later() {
    run(|| async {
        let fixture = start_at(NodePortAddresses::Cidrs(vec!["192.168.0.0/16".parse().unwrap()]));
        fixture.publish(&state(&["10.244.1.1:80"]));
        for address in ["192.168.1.1", "192.168.1.7"] {
            let added = Command::new("ip").args(["address", "add", address, "dev", "lo"]).status().unwrap();
            assert!(added.success());
            let until_open = async {
                while TcpStream::connect((address, PORT)).await.is_err() {
                    tokio::time::sleep(POLL).await;
                }
            };
            timeout(Duration::from_secs(5), until_open).await.expect("the address is found");
        }
    });
}

/// With IPVS they are addresses of a device: each would be a socket.
#[test]
fn port_is_not_open_at_vips_of_other_services() {
    run(|| async {
        let ip = |arguments: &str| {
            let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
            assert!(done.success(), "{arguments}");
        };
        ip("link add kube-ipvs0 type bridge");
        ip("address add 10.96.0.1/32 dev kube-ipvs0");
        ip("address add 10.0.0.7/8 dev lo");
        let fixture = start_at(NodePortAddresses::Cidrs(vec!["10.0.0.0/8".parse().unwrap()]));
        let load_balancer =
            mk_state().service("default/web", |port| web(&["10.244.1.1:80"])(port).load_balancer_ip("10.1.0.1"));
        fixture.publish(&load_balancer.build());
        ip("address add 10.1.0.1/32 dev kube-ipvs0");
        for open in ["10.0.0.7", "10.1.0.1"] {
            while TcpStream::connect((open, PORT)).await.is_err() {
                tokio::time::sleep(POLL).await;
            }
        }
        assert!(TcpStream::connect(("10.96.0.1", PORT)).await.is_err());
    });
}

#[test]
fn port_is_open_at_the_load_balancer_ips_of_its_service() {
    run(|| async {
        let fixture = start_at(NodePortAddresses::Primary);
        let with_ip = |ip: &'static str| {
            mk_state().service("default/web", move |web_port| web(&["10.244.1.1:80"])(web_port).load_balancer_ip(ip))
        };
        fixture.publish(&with_ip("203.0.113.7").build());
        // As an agent of the cloud does, later.
        for range in ["203.0.113.0/24", "192.168.1.1"] {
            let added = Command::new("ip").args(["route", "add", "local", range, "dev", "lo"]).status().unwrap();
            assert!(added.success());
        }
        let is_open = |address: &str| {
            let address = SocketAddr::new(address.parse().unwrap(), PORT);
            async move { TcpStream::connect(address).await.is_ok() }
        };
        let until = |address, open| async move {
            while is_open(address).await != open {
                tokio::time::sleep(POLL).await;
            }
        };
        until("203.0.113.7", true).await;
        until("192.168.1.1", true).await;
        assert!(!is_open("203.0.113.8").await, "an address of another Service");
        fixture.publish(&with_ip("203.0.113.8").build());
        until("203.0.113.8", true).await;
        until("203.0.113.7", false).await;
    });
}

#[test]
fn port_is_closed_with_its_service_and_opened_again() {
    run(|| async {
        let fixture = start();
        let with_port = state(&["10.244.1.1:80"]);
        for _ in 0..3 {
            fixture.publish(&with_port);
            assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
            assert_eq!(eventually(IpFamily::V6).await.status, 503);
            fixture.publish(&mk_state().build());
            until_refused(IpFamily::V4).await;
            until_refused(IpFamily::V6).await;
        }
    });
}

#[test]
fn port_moves_to_the_remaining_service() {
    run(|| async {
        let fixture = start();
        let both = mk_state().service("default/other", web(&[])).service("default/web", web(&["10.244.1.1:80"]));
        fixture.publish(&both.build());
        let other = eventually(IpFamily::V4).await;
        assert!(other.status == 503 && other.body.contains(r#""name":"other""#), "{other:?}");
        fixture.publish(&state(&["10.244.1.1:80"]));
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
    });
}

#[test]
fn port_of_another_process_is_opened_when_it_is_free() {
    run(|| async {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.unwrap();
        let fixture = start();
        fixture.publish(&state(&["10.244.1.1:80"]));
        // The other family is independent of it.
        assert_eq!(eventually(IpFamily::V6).await.status, 503);
        drop(taken);
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
    });
}

#[test]
fn port_of_a_removed_service_is_not_retried() {
    /// The servers list the addresses in each of their passes.
    static PASSES: AtomicU32 = AtomicU32::new(0);
    run(|| async {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.unwrap();
        let range = NodePortAddresses::Cidrs(vec!["192.0.2.0/24".parse().unwrap()]);
        let mut fixture = start_with(range, |servers| {
            servers.addresses.list_interfaces = || {
                PASSES.fetch_add(1, Ordering::Relaxed);
                Ok(HashSet::from([IpAddr::from([192, 0, 2, 1])]))
            };
        });
        fixture.publish(&state(&[]));
        fixture.health.changed().await;
        assert_eq!(fixture.health.failures().len(), 1);

        fixture.publish(&mk_state().build());
        fixture.health.changed().await;
        assert!(fixture.health.failures().is_empty());

        let passes = PASSES.load(Ordering::Relaxed);
        // Longer than the longest first delay.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(PASSES.load(Ordering::Relaxed), passes, "passes without a port");
        drop(taken);
    });
}

#[test]
fn ports_beyond_the_bound_are_failures_and_opened_when_there_is_room() {
    run(|| async {
        let mut fixture = start_with(NodePortAddresses::all(), |servers| {
            assert_eq!(u64::try_from(servers.max_open).unwrap(), runtime::file_limit().unwrap() / 2);
            servers.max_open = 1;
        });
        let service = |port| {
            move |service: ServiceBuilder| {
                let service = service.cluster_ip("10.96.0.1").health_check_node_port(port);
                service.local_endpoints(["10.244.1.1:80"])
            }
        };
        let both = mk_state().service("default/other", service(PORT + 1)).service("default/web", service(PORT));
        fixture.publish(&both.build());
        fixture.health.changed().await;
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
        let failures = fixture.health.failures();
        let [failure] = failures.as_slice() else { panic!("{failures:?}") };
        let why = "the limit of open files allows 1 listeners for health checks";
        assert_eq!(failure.reason, format!("health-check node port 32001 (IPv4) cannot be opened: {why}"));
        let other = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT + 1));
        assert!(TcpStream::connect(other).await.is_err());

        fixture.publish(&mk_state().service("default/other", service(PORT + 1)).build());
        fixture.health.changed().await;
        assert!(fixture.health.failures().is_empty());
        TcpStream::connect(other).await.unwrap();
        until_refused(IpFamily::V4).await;
    });
}

#[tokio::test(start_paused = true)]
async fn addresses_that_cannot_be_listed_are_listed_again_after_a_delay() {
    static LISTS: AtomicU32 = AtomicU32::new(0);
    let range = NodePortAddresses::Cidrs(vec!["192.168.0.0/16".parse().unwrap()]);
    let fixture = start_with(range, |servers| {
        servers.addresses.list_interfaces = || {
            LISTS.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::other("no answer of the kernel"))
        };
    });
    fixture.publish(&state(&["10.244.1.1:80"]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lists = LISTS.load(Ordering::Relaxed);
    assert!((2..=61).contains(&lists), "{lists}");
}

#[test]
fn silent_clients_do_not_prevent_health_checks() {
    run(|| async {
        let fixture = start();
        fixture.publish(&state(&["10.244.1.1:80"]));
        eventually(IpFamily::V4).await;
        let mut silent = Vec::new();
        for number in 0..1000 {
            let mut stream = TcpStream::connect(at(IpFamily::V4)).await.unwrap();
            // Fails when the connection has been evicted.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n").await;
            silent.push(stream);
            if number % 100 == 99 {
                assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
            }
        }
        for mut stream in silent {
            let mut nothing = Vec::new();
            let _ = stream.read_to_end(&mut nothing).await;
        }
    });
}

#[test]
fn invalid_http_is_rejected() {
    run(|| async {
        let fixture = start();
        fixture.publish(&state(&["10.244.1.1:80"]));
        eventually(IpFamily::V4).await;
        let answer = exchange(IpFamily::V4, "what is this\r\n\r\n").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!(ask(IpFamily::V4).await.unwrap().status, 200);
    });
}
