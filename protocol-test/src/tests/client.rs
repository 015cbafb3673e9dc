//! A small client that does everything right but for one thing. It works on bytes, so that it can be strict about them.

use std::time::Duration;

use proto::{
    MAX_MESSAGE_BYTES, PROTOCOL_VERSION,
    digest::{Digest, DigestVector},
    encoded::{EncodedMessage, encode_client_message},
    model::{
        Ack, Batch, ClientMessage, Epoch, FailureKind, Hello, Operation, Protocol, Revision, Role, ServerMessage,
        ServicePortFailure, ServicePortKey, SourceVersion, SyncMode,
    },
    v1,
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Bytes, http::uri::PathAndQuery},
    transport::Endpoint,
};

use crate::state::State;

pub(super) const NODE: &str = "conformance";
/// As rules 7 and 10 have them.
const SILENCE: Duration = Duration::from_secs(30);
const BACKOFF: Duration = Duration::from_millis(300);

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// Nothing, but it computes no digests, and never resumes.
    Minimal,
    AckFirst,
    OtherNode,
    OtherVersion,
    TalksTooEarly,
    SecondHello,
    NoAck,
    OtherRevision,
    OtherDigest,
    Nanoseconds,
    StrangeFailure,
    SecondStream,
    AcksEachBatch,
    KeepsUncommitted,
    ForgetsPools,
    IgnoresReset,
    OnlyOneSnapshot,
    IgnoresBookmarks,
    StaysBehindBookmarks,
    IgnoresBase,
    KeepsDigests,
    OtherDigests,
    DigestsOfNothing,
    RefusesUnknownFields,
    SkipsUnknownOperations,
    SmallMessages,
    ForgetsRevision,
    OneFrontend,
    OtherSourceVersion,
    IgnoresDrain,
    ComesBackAtOnce,
    LeavesEarly,
}

struct Client {
    fault: Fault,
    state: State,
    staged: Vec<Operation>,
    held: Option<(Epoch, Revision)>,
    /// What the next difference starts from, once that is known.
    base: Option<Revision>,
    epoch: Epoch,
    source_version: SourceVersion,
    commits: usize,
}

/// Why a stream is over.
struct Ended;

/// Follows the server for ever.
pub(super) async fn run(address: String, fault: Fault) {
    let mut client = Client {
        fault,
        state: State::new(NODE),
        staged: Vec::new(),
        held: None,
        base: None,
        epoch: Epoch(0),
        source_version: SourceVersion(0),
        commits: 0,
    };
    loop {
        client.follow(&address).await;
        client.base = None;
        if fault != Fault::KeepsUncommitted {
            client.staged.clear();
        }
        if fault != Fault::ComesBackAtOnce {
            sleep(BACKOFF).await;
        }
    }
}

impl Client {
    async fn follow(&mut self, address: &str) -> Option<Ended> {
        let channel = Endpoint::from_shared(format!("http://{address}")).ok()?.connect().await.ok()?;
        let limit = if self.fault == Fault::SmallMessages { 1 << 19 } else { 2 * MAX_MESSAGE_BYTES };
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(limit);
        let (say, said) = mpsc::unbounded_channel();
        self.greet(&say);
        grpc.ready().await.ok()?;
        let path = PathAndQuery::from_static("/fairlead.v1.Fairlead/Watch");
        let request = Request::new(UnboundedReceiverStream::new(said));
        let mut messages = grpc.streaming(request, path, Raw).await.ok()?.into_inner();
        let mut second = Grpc::new(channel);
        let silence = if self.fault == Fault::LeavesEarly { SILENCE / 6 } else { SILENCE };
        loop {
            let bytes = timeout(silence, messages.message()).await.ok()?.ok()??;
            let event = self.read(bytes)?;
            if self.fault == Fault::SecondStream && self.commits == 0 {
                let (say, said) = mpsc::unbounded_channel();
                self.greet(&say);
                second.ready().await.ok()?;
                let path = PathAndQuery::from_static("/fairlead.v1.Fairlead/Watch");
                let _open = second.streaming(Request::new(UnboundedReceiverStream::new(said)), path, Raw).await;
                // Both stay open.
                std::mem::forget((say, _open));
            }
            self.take(event, &say)?;
        }
    }

    fn greet(&self, say: &mpsc::UnboundedSender<Vec<u8>>) {
        let resume = self.held.filter(|_| self.fault != Fault::Minimal);
        let hello = Hello {
            node: if self.fault == Fault::OtherNode { "other" } else { NODE }.into(),
            role: Role::Backend,
            backend: "test".to_owned(),
            backend_version: "1".to_owned(),
            resume,
            digests: resume.map(|_| Box::new(self.state.digests())),
            source_version: match self.fault {
                Fault::Minimal => SourceVersion(0),
                Fault::OtherSourceVersion if self.held.is_some() => SourceVersion(5),
                _ => self.source_version,
            },
            started: None,
        };
        let mut bytes = encode_client_message(&ClientMessage::Hello(hello));
        if self.fault == Fault::OtherVersion {
            // `protocol_version` is the first field of the Hello, of one byte.
            let at = bytes.windows(2).position(|field| field == [8, PROTOCOL_VERSION as u8]).unwrap();
            bytes[at + 1] = 9;
        }
        if self.fault == Fault::AckFirst {
            let _ = say.send(encode_client_message(&ack(Revision(1))));
        }
        let _ = say.send(bytes);
        if self.fault == Fault::TalksTooEarly {
            let _ = say.send(encode_client_message(&ack(Revision(1))));
        }
    }

    fn read(&self, bytes: Bytes) -> Option<ServerMessage> {
        let message = EncodedMessage::from_bytes(bytes.clone()).decode().unwrap();
        let skips = self.fault == Fault::SkipsUnknownOperations;
        let message = if skips { without_unknown(message) } else { message };
        let event = ServerMessage::try_from(message).ok()?;
        let is_strict = self.fault == Fault::RefusesUnknownFields;
        (!is_strict || EncodedMessage::new(&event).len() == bytes.len()).then_some(event)
    }

    fn take(&mut self, event: ServerMessage, say: &mpsc::UnboundedSender<Vec<u8>>) -> Option<()> {
        let reply = |event: ClientMessage| drop(say.send(encode_client_message(&event)));
        match event {
            ServerMessage::Welcome(welcome) => {
                if self.fault == Fault::OneFrontend && self.epoch != Epoch(0) && self.epoch != welcome.epoch {
                    return None;
                }
                self.epoch = welcome.epoch;
                self.base = self.held.filter(|_| welcome.mode == SyncMode::Resume).map(|(_, revision)| revision);
                if self.fault == Fault::SecondHello {
                    self.greet(say);
                }
            }
            ServerMessage::Batch(batch) => self.batch(batch, say)?,
            ServerMessage::Bookmark(revision, _) => match self.fault {
                Fault::IgnoresBookmarks => {}
                Fault::StaysBehindBookmarks => reply(self.ack(revision)),
                Fault::ForgetsRevision => {
                    self.base = Some(revision);
                    reply(self.ack(revision));
                }
                _ => {
                    (self.base, self.held) = (Some(revision), Some((self.epoch, revision)));
                    reply(self.ack(revision));
                }
            },
            ServerMessage::Drain(_) if self.fault == Fault::IgnoresDrain => {}
            ServerMessage::Drain(_) => return None,
            ServerMessage::DigestRequest => {
                let mut digests = self.state.digests();
                let mut revision = self.held.map_or(Revision(0), |(_, revision)| revision);
                match self.fault {
                    Fault::KeepsDigests => return Some(()),
                    Fault::OtherDigests => digests[7].add(Digest(1)),
                    Fault::DigestsOfNothing => (digests, revision) = (DigestVector::default(), Revision(0)),
                    _ => {}
                }
                reply(ClientMessage::DigestResponse(revision, Box::new(digests)));
            }
        }
        Some(())
    }

    fn batch(&mut self, batch: Batch, say: &mpsc::UnboundedSender<Vec<u8>>) -> Option<()> {
        let is_other = self.base.is_some_and(|base| base != batch.base);
        if is_other && self.fault != Fault::IgnoresBase {
            return None;
        }
        let resets = batch.operations.iter().filter(|operation| matches!(operation, Operation::ResetBucket(_)));
        if self.fault == Fault::OnlyOneSnapshot && self.base.is_some() && resets.count() > 1 {
            return None;
        }
        self.staged.extend(batch.operations);
        if !batch.commit {
            if self.fault == Fault::AcksEachBatch && self.base.is_some() {
                let _ = say.send(encode_client_message(&self.ack(batch.target)));
            }
            return Some(());
        }
        for operation in std::mem::take(&mut self.staged) {
            match operation {
                Operation::ResetBucket(_) if self.fault == Fault::IgnoresReset && self.base.is_some() => {}
                Operation::PutServicePort(port) if self.fault == Fault::ForgetsPools => {
                    self.state.apply(&Operation::RemoveServicePort(port.key.clone()));
                    self.state.apply(&Operation::PutServicePort(port));
                }
                operation => self.state.apply(&operation),
            }
        }
        self.commits += 1;
        self.source_version = batch.source_version;
        (self.base, self.held) = (Some(batch.target), Some((self.epoch, batch.target)));
        if self.fault != Fault::NoAck {
            let _ = say.send(encode_client_message(&self.ack(batch.target)));
        }
        Some(())
    }

    fn ack(&self, revision: Revision) -> ClientMessage {
        let mut digest = self.state.digests().total();
        if self.fault == Fault::OtherDigest {
            digest.add(Digest(1));
        }
        let strange = ServicePortFailure {
            key: ServicePortKey::new("elsewhere", "nothing", "", Protocol::Tcp),
            reason: "no reason".to_owned(),
            retryable: false,
            kind: FailureKind::Program,
        };
        ClientMessage::Ack(Ack {
            revision: if self.fault == Fault::OtherRevision { Revision(revision.0 + 1) } else { revision },
            digest: (self.fault != Fault::Minimal).then_some(digest),
            apply_time: Duration::from_secs(if self.fault == Fault::Nanoseconds { 1000 } else { 0 }),
            failures: if self.fault == Fault::StrangeFailure { vec![strange] } else { Vec::new() },
        })
    }
}

/// Of somebody who holds nothing.
fn ack(revision: Revision) -> ClientMessage {
    ClientMessage::Ack(Ack { revision, digest: None, apply_time: Duration::ZERO, failures: Vec::new() })
}

fn without_unknown(mut message: v1::ServerMessage) -> v1::ServerMessage {
    if let Some(v1::server_message::Message::Batch(batch)) = &mut message.message {
        batch.operations.retain(|operation| operation.operation.is_some());
    }
    message
}

/// Messages as bytes.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = bytes::Buf::remaining(buffer);
        Ok(Some(bytes::Buf::copy_to_bytes(buffer, length)))
    }
}
