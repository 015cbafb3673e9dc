//! The answers of `Status` and `Endpoints`, which are as large as the cluster: one at a time for each client, for as
//! long as the client reads it.
//!
//! ```text
//!   request ──▶ rate ──▶ turn of the client ──▶ built ──▶ frames ──sent, dropped, unread for long──▶ next turn
//! ```

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use runtime::{ClientSource, Rate, TokenBucket, lock};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, body::Body};

use crate::{identity::Identity, per_client::PerClient};

/// How often a client is answered: each answer may take many milliseconds and 16 MiB.
const ANSWER_RATE: Rate = Rate { burst: 32, every: Duration::from_millis(50) };
/// How often a node is answered: `fairlead check`, `status` and `endpoints` there ask for one each.
const NODE_ANSWER_RATE: Rate = Rate { burst: 8, every: Duration::from_secs(1) };
/// How long a client may take to read an answer while it asks for others.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a waiting request looks whether the answer before it is unread for too long.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The size of a frame in bytes. Of an answer that has given way, two wait for the window of the client.
const FRAME_BYTES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<PerClient<AnswerClient, Arc<ClientAnswers>>>);

/// The client that answers are counted for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnswerClient {
    Identified(Identity),
    /// A client of a listener that identifies none.
    At(ClientSource),
    /// A client of a unix socket, which only trusted processes can open.
    Local,
}

#[derive(Debug)]
struct ClientAnswers {
    /// Locked by the answer that is built or sent.
    turn: Arc<AsyncMutex<()>>,
    rate: Mutex<TokenBucket>,
    /// Notified while a request waits: an answer that is unread for too long gives way.
    waiting: Notify,
}

/// The right to build an answer, until it is sent.
#[derive(Debug)]
pub(crate) struct AnswerPermit {
    client: Arc<ClientAnswers>,
    _turn: OwnedMutexGuard<()>,
}

impl AnswerClient {
    pub(crate) fn new(identity: Identity, address: Option<IpAddr>) -> Self {
        match (identity, address) {
            (Identity::Trusted, Some(address)) => Self::At(address.into()),
            (Identity::Trusted, None) => Self::Local,
            (identity, _) => Self::Identified(identity),
        }
    }

    /// How often it may ask; `None`: it is not limited.
    fn rate(&self) -> Option<Rate> {
        match self {
            Self::Local => None,
            Self::Identified(Identity::Node(_)) => Some(NODE_ANSWER_RATE),
            Self::Identified(_) | Self::At(_) => Some(ANSWER_RATE),
        }
    }
}

impl Answers {
    /// Waits until the client may be sent another answer.
    pub(crate) async fn acquire(&self, client: AnswerClient) -> Arc<AnswerPermit> {
        let rate = client.rate();
        let client = self.client(client);
        while let Some(rate) = rate {
            let taken = lock(&client.rate).take(rate, Instant::now());
            let Err(available_at) = taken else { break };
            sleep_until(available_at).await;
        }
        let turn = client.turn.clone().lock_owned();
        tokio::pin!(turn);
        loop {
            tokio::select! {
                turn = &mut turn => return Arc::new(AnswerPermit { client, _turn: turn }),
                () = sleep(CHECK_INTERVAL) => client.waiting.notify_waiters(),
            }
        }
    }

    fn client(&self, client: AnswerClient) -> Arc<ClientAnswers> {
        let now = Instant::now();
        let is_used = |client: &Arc<ClientAnswers>| Arc::strong_count(client) > 1 || !lock(&client.rate).is_full(now);
        let new = || {
            let rate = Mutex::new(TokenBucket::full(now));
            Arc::new(ClientAnswers { turn: Arc::default(), rate, waiting: Notify::new() })
        };
        lock(&self.0).entry(client, is_used, new).clone()
    }
}

impl AnswerPermit {
    /// A body that is sent in small frames. The permit is held until all are taken, the call has ended, or the answer
    /// gives way to the next one.
    pub(crate) fn hold(self: Arc<Self>, body: Body) -> Body {
        // One frame, and an error, for which there is room even if the client does not read.
        let (frames, held) = mpsc::channel(2);
        let last = frames.clone().try_reserve_owned();
        tokio::spawn(async move {
            let gives_way = async {
                sleep(READ_TIMEOUT).await;
                self.client.waiting.notified().await;
                Err(Status::resource_exhausted(format!("the answer was not read within {READ_TIMEOUT:?}")))
            };
            let sent = tokio::select! {
                sent = send(body, &frames) => sent,
                unread = gives_way => unread,
            };
            if let (Err(error), Ok(last)) = (sent, last) {
                last.send(Err(error));
            }
        });
        Body::new(StreamBody::new(ReceiverStream::new(held)))
    }
}

/// Sends a body in small frames, until the call ends.
async fn send(mut body: Body, frames: &mpsc::Sender<Result<Frame<Bytes>, Status>>) -> Result<(), Status> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(mut data) => {
                while !data.is_empty() {
                    // A copy: a frame that waits must not keep the memory of the whole answer.
                    let part = Bytes::copy_from_slice(&data.split_to(data.len().min(FRAME_BYTES)));
                    if frames.send(Ok(Frame::data(part))).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Err(trailers) => {
                // Fails when the call has ended.
                let _ = frames.send(Ok(trailers)).await;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::Full;
    use tokio::time::timeout;

    use super::*;

    fn client(name: &str) -> AnswerClient {
        AnswerClient::new(Identity::Node(name.into()), None)
    }

    fn large() -> Body {
        Body::new(Full::new(Bytes::from(vec![1; 100_000])).map_err(|never| match never {}))
    }

    #[tokio::test(start_paused = true)]
    async fn client_has_one_answer_until_it_is_read_or_too_old() {
        let answers = Answers::default();
        let mut unread = answers.acquire(client("a")).await.hold(large());
        let first = unread.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), FRAME_BYTES, "what HTTP/2 takes at once");
        let other = answers.acquire(client("b")).await.hold(large());
        let waits = timeout(READ_TIMEOUT - CHECK_INTERVAL, answers.acquire(client("a"))).await;
        assert!(waits.is_err());
        let next = timeout(3 * CHECK_INTERVAL, answers.acquire(client("a"))).await.unwrap().hold(large());
        assert!(unread.collect().await.is_err());
        assert_eq!(next.collect().await.unwrap().to_bytes().len(), 100_000);
        assert_eq!(other.collect().await.unwrap().to_bytes().len(), 100_000, "no other call of this client waits");
        timeout(CHECK_INTERVAL, answers.acquire(client("a"))).await.expect("the answer was read");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn trailers_are_not_lost_when_the_task_ends() {
        let answers = Answers::default();
        for _ in 0..10_000 {
            let data = Full::new(Bytes::from_static(b"x")).map_err(|never| -> Status { match never {} });
            let body = Body::new(data.with_trailers(async { Some(Ok(HeaderMap::new())) }));
            let held = answers.acquire(AnswerClient::Local).await.hold(body);
            assert!(held.collect().await.unwrap().trailers().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_have_a_rate() {
        let (answers, start) = (Answers::default(), Instant::now());
        for _ in 0..132 {
            drop(answers.acquire(AnswerClient::new(Identity::Admin("ops".into()), None)).await);
        }
        assert_eq!(start.elapsed(), ANSWER_RATE.every * 100);
        // An answer to a node costs the same, and there are many nodes.
        let start = Instant::now();
        for _ in 0..18 {
            drop(answers.acquire(client("a")).await);
        }
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }
}
