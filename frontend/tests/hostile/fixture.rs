//! A frontend on a loopback port, and what its clients of either kind have in common.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use fairlead_frontend::{Config, Frontend, Listener, StreamStats, object::SourceUpdate};
use proto::v1::{self, client_message::Message as Said, fairlead_client::FairleadClient, server_message::Message};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    PATIENCE,
    client::Client,
    cluster::{cluster, slice},
};

/// So many changes are told to a good client in one round.
pub(crate) const CHANGES: u16 = 50;
/// How much longer a round may take beside bad clients: many times as long, since tests share the processors with each other,
/// and still less than any time that a bad client could have made the good one wait for.
const FACTOR: u32 = 20;
/// A round that is shorter than this says nothing about the next.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

/// A frontend.
pub(crate) struct Server {
    pub(crate) frontend: Frontend,
    pub(crate) updates: mpsc::Sender<SourceUpdate>,
    pub(crate) address: SocketAddr,
    _trigger: Trigger,
}

/// A client's end of a stream.
pub(crate) struct Stream {
    pub(crate) messages: mpsc::Sender<v1::ClientMessage>,
    pub(crate) answers: Streaming<v1::ServerMessage>,
}

/// What a round of changes took without anybody bad.
pub(crate) struct Alone(Duration);

impl Server {
    /// A frontend that knows a cluster of so many Services.
    pub(crate) async fn start(config: Config, services: u8) -> Self {
        let frontend = Frontend::new(config);
        let (trigger, shutdown) = Shutdown::channel();
        let (updates, receiver) = mpsc::channel(16);
        let ready = Ready::new();
        let guard = ready.guard("cluster");
        let (running, stop) = (frontend.clone(), shutdown.clone());
        tokio::spawn(async move { running.run(receiver, guard, stop).await });
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.tcp_address().unwrap();
        let serving = frontend.clone();
        tokio::spawn(async move { serving.serve(listener, shutdown).await });
        for update in cluster(services) {
            updates.send(update).await.unwrap();
        }
        ready.wait().await;
        Self { frontend, updates, address, _trigger: trigger }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::try_from(format!("http://{}", self.address)).unwrap()
    }

    /// A connection of one's own, as nodes have.
    pub(crate) async fn channel(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    /// Says Hello on a connection of its own.
    pub(crate) async fn hello(&self, hello: v1::Hello) -> Stream {
        Stream::hello(self.channel().await, hello).await.unwrap()
    }

    pub(crate) async fn status(&self) -> v1::StatusResponse {
        let mut client = FairleadClient::new(self.channel().await);
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner()
    }

    /// Tells 50 changes, each of which the good client must have before the next is made.
    pub(crate) async fn round(&self, good: &mut Client) -> Duration {
        let begun = Instant::now();
        for number in 0..CHANGES {
            // Each differs from the one before, also from the last one of an earlier round.
            self.updates.send(SourceUpdate::Apply(slice(1, 900 - number))).await.unwrap();
            assert_eq!(good.change().await, 1, "one pool");
        }
        begun.elapsed()
    }

    /// A round without anybody bad.
    pub(crate) async fn alone(&self, good: &mut Client) -> Alone {
        Alone(self.round(good).await.max(SHORTEST_ROUND))
    }

    /// A round beside bad clients.
    pub(crate) async fn beside(&self, good: &mut Client, alone: &Alone) {
        let took = self.round(good).await;
        assert!(took < alone.0 * FACTOR, "{took:?} instead of {:?}", alone.0);
    }

    /// Waits until the figures are as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(StreamStats) -> bool) -> StreamStats {
        let come = async {
            while !wanted(self.frontend.stream_stats()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let come = timeout(PATIENCE, come).await;
        come.unwrap_or_else(|_| panic!("{:?}", self.frontend.stream_stats()));
        self.frontend.stream_stats()
    }

    /// Waits until there are so many streams.
    pub(crate) async fn until_streams(&self, wanted: usize) {
        let come = async {
            while self.status().await.nodes.len() != wanted {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, come).await.expect("the streams stay");
    }
}

impl Stream {
    pub(crate) async fn hello(channel: Channel, hello: v1::Hello) -> Result<Self, Status> {
        let (messages, receiver) = mpsc::channel(4);
        let said = v1::ClientMessage { message: Some(Said::Hello(hello)) };
        messages.send(said).await.unwrap();
        let answers = FairleadClient::new(channel).watch(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { messages, answers })
    }

    /// Says something, unless the stream has ended.
    pub(crate) async fn say(&self, message: Said) -> bool {
        self.messages.send(v1::ClientMessage { message: Some(message) }).await.is_ok()
    }

    pub(crate) async fn ack(&self, revision: u64) -> bool {
        self.say(Said::Ack(v1::Ack { revision, ..v1::Ack::default() })).await
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        let answer = timeout(PATIENCE, self.answers.message()).await.expect("no answer");
        Ok(answer?.and_then(|answer| answer.message))
    }

    /// Takes everything up to a commit, without acknowledging it, and gives its revision.
    pub(crate) async fn commit(&mut self) -> Result<u64, Status> {
        loop {
            match self.next().await?.expect("the stream has ended") {
                Message::Batch(batch) if batch.commit => return Ok(batch.target_revision),
                _ => {}
            }
        }
    }

    /// How the stream ends, whatever is said before.
    pub(crate) async fn ends(&mut self) -> Result<(), Status> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

/// Of an agent that holds nothing and computes no digests.
pub(crate) fn hello(node: &str) -> v1::Hello {
    v1::Hello {
        protocol_version: proto::PROTOCOL_VERSION,
        node: node.to_owned(),
        backend: "nft".to_owned(),
        ..v1::Hello::default()
    }
}
