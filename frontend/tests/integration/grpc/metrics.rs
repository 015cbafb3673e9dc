//! Metrics over HTTP, parsed as by a scraper.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairlead_frontend::{
    Config, Frontend,
    object::{ObjectKind, SourceUpdate},
};
use proto::v1::{self, client_message, fairlead_client::FairleadClient};
use runtime::Shutdown;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};
use tonic::{codec::CompressionEncoding, metadata::MetadataMap};

use super::{RunningFrontend, Server, Stream, TIMEOUT, Transport, cluster, hello, slice};

struct HttpResponse {
    status: String,
    head: String,
    body: String,
}

async fn get(address: SocketAddr, path: &str) -> HttpResponse {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let text = timeout(TIMEOUT, exchange).await.expect("no response");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().to_owned();
    HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Serves the metrics of a frontend, and returns the address.
async fn serve_metrics(frontend: &Frontend, shutdown: Shutdown) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let frontend = frontend.clone();
    tokio::spawn(async move { frontend.serve_metrics(listener, Vec::new(), shutdown).await });
    address
}

/// Every sample by its name and labels. All other lines must be comments.
async fn samples(address: SocketAddr) -> BTreeMap<String, f64> {
    let response = get(address, "/metrics").await;
    assert_eq!(response.status, "200");
    assert!(response.head.contains("content-type: application/openmetrics-text"), "{}", response.head);
    assert!(response.body.ends_with("# EOF\n"));
    let lines = response.body.lines().filter(|line| !line.starts_with("# "));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let of_process = name.starts_with("process_").then_some(name);
        let name = name.strip_prefix("fairlead_frontend_").or(of_process).unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

#[tokio::test]
async fn scrape_reflects_activity() {
    let server = Server::start(Transport::Unix, Config::default(), cluster(3)).await;
    let (_trigger, shutdown) = Shutdown::channel();
    let address = serve_metrics(&server.frontend, shutdown).await;
    let mut streams = Vec::new();
    for node in ["node-1", "node-2"] {
        let mut stream = server.hello(hello(node)).await;
        stream.commit().await;
        streams.push(stream);
    }
    server.updates.send(SourceUpdate::Apply(slice(1, 5))).await.unwrap();
    for stream in &mut streams {
        stream.commit().await;
    }
    // The next change is sent only after the Ack of the previous one was received.
    server.updates.send(SourceUpdate::Apply(slice(1, 6))).await.unwrap();
    streams[0].commit().await;
    streams[1].commit().await;
    server.hello(v1::Hello { protocol_version: 99, ..hello("node-3") }).await.rejected().await;
    server.hello(hello("node_4")).await.rejected().await;
    streams[1].send(client_message::Message::Hello(hello("node-2"))).await;
    streams.pop().unwrap().rejected().await;

    let samples = samples(address).await;
    let value = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name} in {samples:#?}"));
    assert_eq!(value("service_ports"), 3.0);
    assert_eq!(value("endpoints"), 2006.0);
    assert_eq!((value("objects{kind=\"Service\"}"), value("objects{kind=\"Node\"}")), (3.0, 0.0));
    assert_eq!((value("ready"), value("problems")), (1.0, 0.0));
    assert_eq!(value("stream_starts_total{mode=\"snapshot\"}"), 2.0);
    assert_eq!(value("streams{role=\"backend\",mode=\"snapshot\"}"), 1.0);
    // No common version, an invalid name, and a second Hello.
    assert_eq!(value("rejections_total{reason=\"protocol\"}"), 3.0);
    assert!(value("ack_duration_seconds_count") >= 2.0);
    assert!(value("commit_duration_seconds_count") >= 3.0);
    assert!(value("commit_duration_seconds_sum") > 0.0);
    assert!(value("sent_bytes_total") > 1000.0);
    assert!(value("chunks_sent_total") > value("chunks_encoded_total"), "two nodes share encoded chunks");
    assert!(value("node_lag_seconds{quantile=\"1\"}") < TIMEOUT.as_secs_f64());
    assert!(value("process_cpu_seconds_total") > 0.0 && value("process_resident_memory_bytes") > 1e6);
}

#[tokio::test]
async fn large_batches_are_compressed_for_clients_that_accept_it() {
    let mut snapshots = Vec::new();
    for accepts_gzip in [false, true] {
        let server = Server::start(Transport::Tcp, Config::default(), cluster(20)).await;
        let (_trigger, shutdown) = Shutdown::channel();
        let address = serve_metrics(&server.frontend, shutdown).await;
        let client = FairleadClient::new(server.channel.clone());
        let client = if accepts_gzip { client.accept_compressed(CompressionEncoding::Gzip) } else { client };
        let mut stream = Stream::of(client, MetadataMap::new(), hello("node-1")).await.unwrap();
        let operations: Vec<_> = stream.commit().await.into_iter().flat_map(|batch| batch.operations).collect();
        snapshots.push((operations, samples(address).await["sent_bytes_total"]));
    }
    let [(plain, plain_bytes), (compressed, compressed_bytes)] = &snapshots[..] else { unreachable!() };
    assert_eq!(plain, compressed);
    assert!(compressed_bytes * 2.0 < *plain_bytes, "{compressed_bytes} of {plain_bytes} bytes");
}

#[tokio::test]
async fn scrapes_within_a_second_are_equal() {
    const MAX_AGE: Duration = Duration::from_secs(1);
    let server = Server::start(Transport::Unix, Config::default(), cluster(3)).await;
    let (_trigger, shutdown) = Shutdown::channel();
    let address = serve_metrics(&server.frontend, shutdown).await;
    loop {
        let begun = Instant::now();
        let first = get(address, "/metrics").await.body;
        server.hello(v1::Hello { protocol_version: 99, ..hello("node-1") }).await.rejected().await;
        let second = get(address, "/metrics").await.body;
        let is_in_time = begun.elapsed() < MAX_AGE;
        sleep(MAX_AGE).await;
        // Otherwise the machine was too slow, and the next scrape is a new one.
        if is_in_time {
            assert_eq!(first, second);
            assert!(samples(address).await["rejections_total{reason=\"protocol\"}"] >= 1.0);
            return;
        }
    }
}

#[tokio::test]
async fn frontend_is_ready_when_every_kind_has_been_listed() {
    let running = RunningFrontend::start(Config::default());
    let address = serve_metrics(&running.frontend, running.shutdown.clone()).await;
    assert_eq!(get(address, "/healthz").await.status, "200", "alive, though not ready");
    let response = get(address, "/readyz").await;
    assert_eq!(response.status, "503");
    assert_eq!(response.body, "not listed yet: Node, Service, EndpointSlice, ServiceCIDR\n");
    assert_eq!(samples(address).await["ready"], 0.0);
    running.send(ObjectKind::ALL.map(|kind| SourceUpdate::Replace(kind, Vec::new()))).await;
    running.ready.wait().await;
    let response = get(address, "/readyz").await;
    assert_eq!((response.status.as_str(), response.body.as_str()), ("200", "ready\n"));
    assert_eq!(get(address, "/").await.status, "404");
}
