//! A client's end of a stream.

use std::time::Duration;

use proto::v1::{
    Batch, ClientMessage, Hello, ServerMessage, client_message, fairlead_client::FairleadClient,
    server_message::Message,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, metadata::MetadataMap, transport::Channel};

use crate::cluster::{ack, is_numbered};

/// How long to wait for a message that normally arrives at once.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A stream.
pub(crate) struct Stream {
    messages: mpsc::Sender<ClientMessage>,
    answers: Streaming<ServerMessage>,
    /// The number of the last commit or bookmark.
    pub(crate) number: u64,
}

impl Stream {
    /// Starts a stream with a Hello.
    pub(crate) async fn hello(channel: Channel, hello: Hello) -> Result<Self, Status> {
        Self::of(FairleadClient::new(channel), MetadataMap::new(), hello).await
    }

    /// Starts a stream without a message.
    pub(crate) async fn open(channel: Channel) -> Self {
        let (messages, receiver) = mpsc::channel(4);
        let answers = FairleadClient::new(channel).watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { messages, answers, number: 0 }
    }

    pub(crate) async fn of(
        mut client: FairleadClient<Channel>,
        metadata: MetadataMap,
        hello: Hello,
    ) -> Result<Self, Status> {
        let (messages, receiver) = mpsc::channel(4);
        let hello = ClientMessage { message: Some(client_message::Message::Hello(hello)) };
        messages.send(hello).await.unwrap();

        let mut request = Request::new(ReceiverStream::new(receiver));
        *request.metadata_mut() = metadata;
        let answers = client.watch(request).await?.into_inner();
        Ok(Self { messages, answers, number: 0 })
    }

    /// Sends a message. Returns whether the stream is still open.
    pub(crate) async fn send(&self, message: client_message::Message) -> bool {
        self.messages.send(ClientMessage { message: Some(message) }).await.is_ok()
    }

    /// Acknowledges the last commit or bookmark. Returns whether the stream is still open.
    pub(crate) async fn ack(&self) -> bool {
        self.send(client_message::Message::Ack(ack(self.number))).await
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        let answer = timeout(TIMEOUT, self.answers.message()).await.expect("no answer");
        let message = answer?.and_then(|answer| answer.message);
        self.number += u64::from(message.as_ref().is_some_and(is_numbered));
        Ok(message)
    }

    /// Receives everything up to a commit, without acknowledging it.
    pub(crate) async fn receive(&mut self) -> Result<Vec<Batch>, Status> {
        let mut batches: Vec<Batch> = Vec::new();
        while batches.last().is_none_or(|batch| !batch.commit) {
            if let Message::Batch(batch) = self.next().await?.expect("the stream ended") {
                batches.push(batch);
            }
        }
        Ok(batches)
    }

    /// Receives everything up to a commit, and acknowledges it.
    pub(crate) async fn commit(&mut self) -> Vec<Batch> {
        let batches = self.receive().await.unwrap();
        self.ack().await;
        batches
    }

    /// Discards messages until the stream ends with an error.
    pub(crate) async fn rejected(&mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    }
}
