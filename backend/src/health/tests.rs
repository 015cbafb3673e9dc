//! Real listeners, each test's in a network namespace of its own, and a client that speaks HTTP by hand.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::Command,
    time::{Duration, Instant},
};

use netlink::testing::in_netns;
use proto::model::IpFamily;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::*;
use crate::{
    Changes, Progress,
    testing::{ServiceBuilder, mk_key, mk_state},
};

const PORT: u16 = 32_000;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// Servers that run, and both ends that feed them.
struct World {
    health: Health,
    progress: watch::Sender<Progress>,
    _servers: JoinSet<()>,
}

/// What a client sees of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    weight: usize,
    body: String,
}

fn start() -> World {
    let (health, progress) = (Health::default(), watch::Sender::default());
    let mut servers = JoinSet::new();
    servers.spawn(Servers::new(&health, progress.subscribe()).run());
    World { health, progress, _servers: servers }
}

impl World {
    fn reconcile(&self, state: &NodeState) {
        self.health.publish(state, &Work::Reconcile);
    }

    fn apply(&self, state: &NodeState, key: &str) {
        let changes = Changes { service_ports: [mk_key(key)].into(), ..Changes::default() };
        self.health.publish(state, &Work::Apply(changes));
    }
}

/// Runs a test in a namespace that has nothing but a loopback interface.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    in_netns(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { timeout(PATIENCE, test()).await.expect("in time") });
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
    // To the end: the server closes.
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

/// The answer, once there is one at all.
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
    let body = format!(
        r#"{{"service":{{"namespace":"default","name":"web"}},"localEndpoints":{weight},"serviceProxyHealthy":{healthy}}}"#
    );
    Answer { status, weight, body }
}

#[test]
fn each_family_answers_for_itself() {
    run(|| async {
        let world = start();
        world.reconcile(&state(&["10.244.1.1:80", "10.244.1.2:80"]));
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 2, "true"));
        assert_eq!(eventually(IpFamily::V6).await, answer(503, 0, "true"));
    });
}

#[test]
fn a_count_changes_without_reopening() {
    run(|| async {
        let world = start();
        world.reconcile(&state(&[]));
        assert_eq!(eventually(IpFamily::V4).await, answer(503, 0, "true"));
        let mut early = TcpStream::connect(at(IpFamily::V4)).await.unwrap();
        early.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        // No `eventually`: the very next answer, also on a connection that was open before, which a new listener would have cut.
        world.apply(&state(&["10.244.1.1:80"]), "default/web");
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
        early.write_all(b"Host: node\r\n\r\n").await.unwrap();
        let mut text = String::new();
        early.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    });
}

#[test]
fn health_is_that_of_the_last_programming() {
    run(|| async {
        let world = start();
        world.reconcile(&state(&["10.244.1.1:80"]));
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
        world.progress.send_modify(|progress| progress.error = Some("no memory".to_owned()));
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(503, 1, "false"));
        world.progress.send_modify(|progress| progress.error = None);
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
    });
}

#[test]
fn a_port_is_closed_with_its_service_and_opens_again() {
    run(|| async {
        let world = start();
        let there = state(&["10.244.1.1:80"]);
        for _ in 0..3 {
            world.apply(&there, "default/web");
            assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
            assert_eq!(eventually(IpFamily::V6).await.status, 503);
            world.apply(&mk_state().build(), "default/web");
            until_refused(IpFamily::V4).await;
            until_refused(IpFamily::V6).await;
        }
    });
}

#[test]
fn a_port_goes_to_the_service_that_is_left() {
    run(|| async {
        let world = start();
        let both = mk_state().service("default/other", web(&[])).service("default/web", web(&["10.244.1.1:80"]));
        world.reconcile(&both.build());
        let other = eventually(IpFamily::V4).await;
        assert!(other.status == 503 && other.body.contains(r#""name":"other""#), "{other:?}");
        world.apply(&state(&["10.244.1.1:80"]), "default/other");
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
    });
}

#[test]
fn a_taken_port_is_opened_when_it_is_free() {
    run(|| async {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.unwrap();
        let world = start();
        world.reconcile(&state(&["10.244.1.1:80"]));
        // The other family does not wait for it.
        assert_eq!(eventually(IpFamily::V6).await.status, 503);
        drop(taken);
        assert_eq!(eventually(IpFamily::V4).await, answer(200, 1, "true"));
    });
}

#[test]
fn nobody_waits_for_a_port_whose_service_has_gone() {
    run(|| async {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.unwrap();
        let world = start();
        world.reconcile(&state(&[]));
        eventually(IpFamily::V6).await;
        world.apply(&mk_state().build(), "default/web");
        until_refused(IpFamily::V6).await;
        drop(taken);
        // Longer than the longest first delay.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(ask(IpFamily::V4).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn silent_clients_are_cut_off_and_others_get_their_turn() {
    run(|| async {
        let world = start();
        world.reconcile(&state(&["10.244.1.1:80"]));
        eventually(IpFamily::V4).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(at(IpFamily::V4)).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            silent.push(stream);
        }
        let begun = Instant::now();
        assert_eq!(ask(IpFamily::V4).await.unwrap(), answer(200, 1, "true"));
        assert!(begun.elapsed() > Duration::from_secs(1), "connections are not bounded: {:?}", begun.elapsed());
        for mut stream in silent {
            let mut nothing = Vec::new();
            let _ = stream.read_to_end(&mut nothing).await;
        }
    });
}

#[test]
fn what_is_no_http_is_refused() {
    run(|| async {
        let world = start();
        world.reconcile(&state(&["10.244.1.1:80"]));
        eventually(IpFamily::V4).await;
        let answer = exchange(IpFamily::V4, "what is this\r\n\r\n").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!(ask(IpFamily::V4).await.unwrap().status, 200);
    });
}
