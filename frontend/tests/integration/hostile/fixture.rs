//! A frontend on a loopback port, and streams to it.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use fairlead_frontend::{
    Config, Frontend, Listener, StreamStats,
    object::{ParsedObject, SourceUpdate},
};
use proto::v1::{self, fairlead_client::FairleadClient};
use runtime::Trigger;
use tokio::{
    net::TcpSocket,
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::transport::{Channel, Endpoint};

use super::{
    TIMEOUT,
    client::Client,
    cluster::{cluster_on, slice_on},
    running::RunningFrontend,
    transport::{self, ReadRate},
};
pub(crate) use crate::{cluster::hello, stream::Stream};

/// The node of all endpoints, which no misbehaving client follows.
const ENDPOINT_NODE: &str = "elsewhere";
/// The number of changes in a round.
pub(crate) const CHANGES: u16 = 50;
/// How many times longer a round may take beside misbehaving clients. Tests share the CPU, so it is large; a client
/// that was made to wait for another would take longer still.
const FACTOR: u32 = 20;
/// The duration assumed for rounds that are shorter than this.
const MIN_ROUND: Duration = Duration::from_secs(1);

/// As small as the kernel allows, so that unread data stays with the sender.
const RECEIVE_BUFFER: u32 = 4096;

/// A frontend.
pub(crate) struct Server {
    pub(crate) frontend: Frontend,
    pub(crate) updates: mpsc::Sender<SourceUpdate>,
    pub(crate) address: SocketAddr,
    _trigger: Trigger,
}

/// How long a round took without misbehaving clients.
pub(crate) struct Baseline(Duration);

/// A slice of one of the cluster's Services.
pub(crate) fn slice(number: u8, endpoints: u16) -> ParsedObject {
    slice_on(ENDPOINT_NODE, number, endpoints)
}

impl Server {
    /// A frontend with a cluster of this many Services.
    pub(crate) async fn start(config: Config, services: u8) -> Self {
        let running = RunningFrontend::start(config);
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let Listener::Tcp(_, address) = listener else { panic!("{listener}") };
        running.serve(listener);
        running.send(cluster_on(ENDPOINT_NODE, services)).await;
        running.ready.wait().await;
        let RunningFrontend { frontend, updates, trigger, .. } = running;
        Self { frontend, updates, address, _trigger: trigger }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::try_from(format!("http://{}", self.address)).unwrap()
    }

    /// A new connection, as each node has.
    pub(crate) async fn channel(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    /// A new connection that is read at this rate. The counter is that of the bytes in both directions.
    pub(crate) async fn throttled_channel(&self, rate: ReadRate) -> (Channel, Arc<AtomicU64>) {
        let socket = TcpSocket::new_v4().unwrap();
        if !matches!(rate, ReadRate::Full) {
            socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        }
        let stream = socket.connect(self.address).await.unwrap();
        transport::channel(self.endpoint(), stream, rate).await.unwrap()
    }

    /// Starts a stream on a new connection.
    pub(crate) async fn hello(&self, hello: v1::Hello) -> Stream {
        Stream::hello(self.channel().await, hello).await.unwrap()
    }

    pub(crate) async fn status(&self) -> v1::StatusResponse {
        let mut client = FairleadClient::new(self.channel().await);
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner()
    }

    /// Makes [`CHANGES`] changes; each waits until the well-behaved client has received the previous one.
    pub(crate) async fn round(&self, good: &mut Client) -> Duration {
        let begun = Instant::now();
        for number in 0..CHANGES {
            // Every change differs from the previous one, also across rounds.
            self.updates.send(SourceUpdate::Apply(slice(1, 900 - number))).await.unwrap();
            assert_eq!(good.change().await, 1, "one pool");
        }
        begun.elapsed()
    }

    /// Measures a round without misbehaving clients.
    pub(crate) async fn measure_baseline(&self, good: &mut Client) -> Baseline {
        Baseline(self.round(good).await.max(MIN_ROUND))
    }

    /// Checks that a round beside misbehaving clients is not much slower.
    pub(crate) async fn check_round(&self, good: &mut Client, baseline: &Baseline) {
        let took = self.round(good).await;
        assert!(took < baseline.0 * FACTOR, "{took:?} instead of {:?}", baseline.0);
    }

    /// Waits until the statistics are as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(StreamStats) -> bool) -> StreamStats {
        let reached = async {
            while !wanted(self.frontend.stream_stats()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let reached = timeout(TIMEOUT, reached).await;
        reached.unwrap_or_else(|_| panic!("{:?}", self.frontend.stream_stats()));
        self.frontend.stream_stats()
    }

    /// Waits until there are this many streams.
    pub(crate) async fn until_streams(&self, wanted: usize) {
        let reached = async {
            while self.status().await.nodes.len() != wanted {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, reached).await.expect("wrong number of streams");
    }
}
