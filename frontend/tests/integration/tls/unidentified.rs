//! What clients without an identity can cost: bytes, memory and connections.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fairlead_frontend::{Config, ConnectionLimits, identity::AuthnOptions};
use proto::v1::{self, Role, fairlead_client::FairleadClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tonic::{Code, Request, transport::Channel};

use super::server::{Server, TIMEOUT};

/// The body of a request.
const BODY: usize = 1 << 20;
/// The most that a call transfers before its client is identified: the window that HTTP/2 has before the SETTINGS of
/// the server arrive, headers, and frames.
const MAX_CALL_BYTES: u64 = 68 << 10;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// A PING frame.
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

async fn connect(source: Ipv4Addr, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

/// 127.1.x.y.
fn loopback(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// How many connections the server has not closed.
pub(crate) async fn open(streams: &[TcpStream]) -> usize {
    let is_open = |stream: &&TcpStream| {
        let mut byte = [0];
        matches!(stream.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // Lets the runtime read the state of the sockets.
    sleep(Duration::from_millis(10)).await;
    streams.iter().filter(is_open).count()
}

/// Makes handshakes and streams of seven nodes, all of which must succeed.
async fn seven_nodes(server: &Server) {
    for number in 0..7 {
        let name = format!("node-{number}");
        let node = server.client(Some(server.authority.node(&name))).await;
        node.watch(&name, Role::Backend).await.unwrap().commit().await;
    }
}

/// The memory that this process has written to, in bytes. Pages of the executable are not counted: the first call of
/// their code reads them, in any test, and a test executable has many.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    anonymous.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn bodies_of_unidentified_clients_are_not_read() {
    let server = Server::plain().await;
    let body = "x".repeat(BODY);
    let mut channels: Vec<(Channel, Arc<AtomicU64>)> = Vec::new();
    for clients in [60, 200] {
        let before = resident();
        while channels.len() < clients {
            let source = loopback(channels.len() as u16);
            let (channel, transferred) = server.counting_channel(connect(source, server.address).await).await;
            let request = v1::StatusRequest { node: body.clone(), ..v1::StatusRequest::default() };
            let answer = timeout(TIMEOUT, FairleadClient::new(channel.clone()).status(request)).await.unwrap();
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
            channels.push((channel, transferred));
        }
        let most = channels.iter().map(|(_, transferred)| transferred.load(Ordering::Relaxed)).max().unwrap();
        let grown = resident().saturating_sub(before) / clients as u64;
        println!("{clients} clients: at most {most} bytes transferred for each, {grown} bytes of memory for each");
        assert!(most <= MAX_CALL_BYTES, "{most} bytes were transferred");
        // Client and server together; a body would be 1 MiB for each.
        assert!(grown < BODY as u64 / 4, "{grown} bytes for each client");
    }
}

#[tokio::test]
async fn unary_request_beyond_its_maximum_is_rejected() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    admin.status().await.unwrap();
    let request = v1::StatusRequest { node: "x".repeat(5000), ..v1::StatusRequest::default() };
    let status = FairleadClient::new(admin.channel).status(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

/// Also those with a token, which no other bound limits.
#[tokio::test]
async fn headers_beyond_their_maximum_are_rejected() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    let mut request = Request::new(v1::StatusRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {}", "x".repeat(16 << 10)).parse().unwrap());

    let status = FairleadClient::new(admin.channel).status(request).await.unwrap_err();

    assert!(status.message().contains("431"), "{status}");
}

#[tokio::test]
async fn frames_of_unidentified_clients_are_bounded() {
    let server = Server::plain().await;
    let mut stream = server.tls_stream(connect(Ipv4Addr::LOCALHOST, server.address).await, None).await;
    stream.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let pings = PING.repeat(100);
    let mut sent = 0;
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move { read.read_to_end(&mut Vec::new()).await });
    while write.write_all(&pings).await.is_ok() && write.flush().await.is_ok() {
        sent += pings.len();
        assert!(sent < 64 << 20, "the connection is not closed");
    }
    let _ = timeout(TIMEOUT, reading).await.expect("the connection is not closed");
}

#[tokio::test]
async fn client_that_is_not_identified_in_time_is_disconnected() {
    let connections = ConnectionLimits { identification: Duration::from_secs(3), ..ConnectionLimits::default() };
    let server = Server::with(Config { connections, ..Config::default() }, AuthnOptions::default()).await;
    let node = server.client(Some(server.authority.node("node-a"))).await;
    let mut stream = node.watch("node-a", Role::Backend).await.unwrap();
    stream.commit().await;
    let mut silent = server.tls_stream(connect(Ipv4Addr::LOCALHOST, server.address).await, None).await;
    silent.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let _ = timeout(TIMEOUT, silent.read_to_end(&mut Vec::new())).await.expect("the connection is not closed");
    node.watch("node-a", Role::Backend).await.unwrap().commit().await;
}

#[tokio::test]
async fn silent_connections_do_not_prevent_handshakes_of_nodes() {
    type Source = fn(u16) -> Ipv4Addr;
    runtime::raise_file_limit().unwrap();
    let server = Server::plain().await;
    seven_nodes(&server).await;
    // From one address that is no node's, from that of the nodes, and from many addresses.
    let sources: [(Source, usize); 3] =
        [(|_| Ipv4Addr::new(127, 0, 0, 2), 64), (|_| Ipv4Addr::LOCALHOST, 64), (loopback, 512)];
    for (source, most) in sources {
        let mut silent = Vec::new();
        for number in 0..1500 {
            silent.push(connect(source(number), server.address).await);
            if number % 500 == 499 {
                seven_nodes(&server).await;
            }
        }
        let closed = async { while open(&silent).await > most {} };
        timeout(TIMEOUT, closed).await.expect("too many silent connections are open");
        assert!(open(&silent).await <= most);
    }
}

#[tokio::test]
async fn half_handshakes_do_not_prevent_those_of_nodes() {
    // The beginning of a ClientHello.
    const HALF: [u8; 10] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];
    runtime::raise_file_limit().unwrap();
    let server = Server::plain().await;
    let mut half = Vec::new();
    for number in 0..1500 {
        let mut stream = connect(loopback(number), server.address).await;
        stream.write_all(&HALF).await.unwrap();
        half.push(stream);
    }
    seven_nodes(&server).await;
}

#[tokio::test]
async fn connections_of_one_identity_are_bounded() {
    let server = Server::plain().await;
    let other = server.client(Some(server.authority.node("node-b"))).await;
    let mut other = other.watch("node-b", Role::Backend).await.unwrap();
    other.commit().await;
    let most = ConnectionLimits::default().identified.per_key;
    let mut streams = Vec::new();
    for _ in 0..most + 8 {
        let mut stream = server
            .tls_stream(connect(Ipv4Addr::LOCALHOST, server.address).await, Some(server.authority.node("node-a")))
            .await;
        stream.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
        streams.push(stream);
    }
    for mut oldest in streams.drain(..8) {
        let _ = timeout(TIMEOUT, oldest.read_to_end(&mut Vec::new())).await.expect("the connection is not closed");
    }
    timeout(Duration::from_millis(300), other.next()).await.expect_err("the stream of the other node ended");
}

/// Counts events at INFO and above.
#[derive(Clone, Default)]
struct LineCounter(Arc<AtomicU64>);

impl tracing::Subscriber for LineCounter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn rejections_are_counted_in_the_log_and_not_repeated() {
    let lines = LineCounter::default();
    let connections = ConnectionLimits { identification: Duration::from_secs(600), ..ConnectionLimits::default() };
    let server = Server::with(Config { connections, ..Config::default() }, AuthnOptions::default()).await;
    let _subscriber = tracing::subscriber::set_default(lines.clone());
    let client = server.client(None).await;
    for _ in 0..1000 {
        let status = client.status().await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    }
    let lines = lines.0.load(Ordering::Relaxed);
    assert!((1..=4).contains(&lines), "{lines} lines");
}
