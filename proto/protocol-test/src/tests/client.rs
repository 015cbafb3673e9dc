//! A small client of the protocol that is correct except for one fault.

use std::{convert::Infallible, fs, path::PathBuf, time::Duration};

use proto::{
    MAX_MESSAGE_BYTES, PROTOCOL_VERSION,
    digest::{Digest, DigestVector},
    encoded::{self, EncodedMessage},
    model::{
        Ack, Batch, Bookmark, ClientMessage, Epoch, Hello, Operation, Protocol, Revision, Role, ServerMessage,
        ServicePortFailure, ServicePortKey, SourceVersion, SyncMode,
    },
    state::NodeState,
    v1::{self, fairlead_client::FairleadClient},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;

use crate::{samples, state::cluster_endpoints};

pub(super) const NODE: &str = "test-node";
/// Rule 7.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Rule 10: the shortest delay. The longest is twice that.
const BACKOFF: Duration = Duration::from_millis(300);

/// How long the kernel takes for a change, if the client does not wait for it.
const PROGRAMMING: Duration = Duration::from_millis(500);

/// How the client violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No fault.
    None,
    /// No fault, but the client computes no digests and never resumes.
    Minimal,
    /// No fault, but the client acks what it has received, and again when it is programmed.
    ProgramsLater,
    AckFirst,
    OtherNode,
    OtherVersion,
    AckBeforeWelcome,
    SecondHello,
    NoAck,
    OtherNumber,
    /// Does not begin anew on another stream.
    CountsOn,
    OtherDigest,
    WrongApplyTimeUnit,
    UnknownFailure,
    SecondStream,
    RepeatsAcks,
    RejectsEmptyBatches,
    /// Takes the target revision of the first batch of a commit.
    CommitsFirstTarget,
    AcksEachBatch,
    AcksBeforeKernel,
    KeepsUncommitted,
    ForgetsPools,
    /// Adds the endpoints of a change, then removes the others.
    AddsFirst,
    /// Keeps the pools of unknown service ports until these are put.
    KeepsUnknownPools,
    /// Applies all resets of a commit first, then all removals, and all additions last.
    GroupsOperations,
    /// Applies all removals of a commit last.
    RemovesLast,
    IgnoresEstablishedPools,
    IgnoresReset,
    RejectsSecondSnapshot,
    IgnoresBookmarks,
    KeepsBaseAtBookmarks,
    IgnoresBase,
    IgnoresDigestRequests,
    OtherDigests,
    EmptyDigests,
    RejectsUnknownFields,
    SkipsUnknownOperations,
    RejectsLargeMessages,
    ForgetsRevision,
    RejectsOtherEpochs,
    OtherSourceVersion,
    IgnoresDrain,
    ReconnectsAtOnce,
    ReconnectsInStep,
    EndsStreamEarly,
    DrainsOfOtherNode,
    SecondDrains,
    RejectsUnknownStates,
    RepeatsDrainsAtOnce,
    NeverRepeatsDrains,
}

struct Client {
    fault: Fault,
    state: NodeState,
    staged: Vec<Operation>,
    /// The target revision of the first batch since the last commit.
    first_target: Option<Revision>,
    committed: Option<(Epoch, Revision)>,
    /// The base of the next difference, if it is known.
    base: Option<Revision>,
    epoch: Epoch,
    /// That of the last commit or bookmark of the stream.
    number: u64,
    source_version: SourceVersion,
    commits: usize,
    /// Pools of unknown service ports.
    unknown_pools: Vec<Operation>,
    /// Stands for the kernel.
    state_file: PathBuf,
}

type ClientSender = mpsc::UnboundedSender<v1::ClientMessage>;

/// Follows the state of the node, and how far its pods are drained.
pub(super) async fn run(address: String, fault: Fault, state_file: PathBuf) {
    let follows_drains = fault != Fault::Minimal;
    tokio::join!(follow_again(&address, fault, state_file), async {
        if follows_drains {
            follow_drains(&address, fault).await;
        }
    });
}

async fn follow_drains(address: &str, fault: Fault) {
    loop {
        // The server may not listen yet.
        let _ = drains_once(address, fault).await;
        match fault {
            Fault::NeverRepeatsDrains => return,
            Fault::RepeatsDrainsAtOnce => {}
            _ => sleep(BACKOFF).await,
        }
    }
}

async fn drains_once(address: &str, fault: Fault) -> Option<()> {
    let node = if fault == Fault::DrainsOfOtherNode { "other" } else { NODE };
    let request = v1::DrainsRequest { node: node.to_owned() };
    let mut client = FairleadClient::connect(format!("http://{address}")).await.ok()?;
    let mut levels = client.drains(request.clone()).await.ok()?.into_inner();
    let _second = if fault == Fault::SecondDrains { Some(client.drains(request).await.ok()?) } else { None };
    while let Some(message) = levels.message().await.ok()? {
        let is_unknown = |level: &v1::DrainLevel| v1::DrainState::try_from(level.state).is_err();
        if fault == Fault::RejectsUnknownStates && message.levels.iter().any(is_unknown) {
            return None;
        }
    }
    Some(())
}

/// Connects to the server again and again.
async fn follow_again(address: &str, fault: Fault, state_file: PathBuf) {
    let mut client = Client {
        fault,
        state: samples::state(NODE, &[]),
        staged: Vec::new(),
        first_target: None,
        committed: None,
        base: None,
        epoch: Epoch(0),
        number: 0,
        source_version: SourceVersion(0),
        commits: 0,
        unknown_pools: Vec::new(),
        state_file,
    };
    loop {
        client.follow(address).await;
        client.base = None;
        if fault != Fault::CountsOn {
            client.number = 0;
        }
        if fault != Fault::KeepsUncommitted {
            client.staged.clear();
        }
        match fault {
            Fault::ReconnectsAtOnce => {}
            Fault::ReconnectsInStep => sleep(BACKOFF).await,
            _ => sleep(BACKOFF.mul_f64(1.0 + fastrand::f64())).await,
        }
    }
}

impl Client {
    /// Follows one stream, and returns `None` at its end.
    async fn follow(&mut self, address: &str) -> Option<Infallible> {
        let channel = Endpoint::from_shared(format!("http://{address}")).ok()?.connect().await.ok()?;
        let limit = if self.fault == Fault::RejectsLargeMessages { 1 << 19 } else { 2 * MAX_MESSAGE_BYTES };
        let (sender, receiver) = mpsc::unbounded_channel();
        self.send_hello(&sender);
        let request = UnboundedReceiverStream::new(receiver);
        let mut messages = encoded::watch(channel.clone(), request, limit, None).await.ok()?.into_inner();
        let silence = if self.fault == Fault::EndsStreamEarly { SILENCE_TIMEOUT / 6 } else { SILENCE_TIMEOUT };
        loop {
            let wire = timeout(silence, messages.message()).await.ok()?.ok()??;
            let message = self.decode(&wire)?;
            if self.fault == Fault::SecondStream && self.commits == 0 {
                let (second, receiver) = mpsc::unbounded_channel();
                self.send_hello(&second);
                let open = encoded::watch(channel.clone(), UnboundedReceiverStream::new(receiver), limit, None).await;
                // Both streams stay open.
                std::mem::forget((second, open));
            }
            self.handle(message, &sender)?;
        }
    }

    fn send_hello(&self, sender: &ClientSender) {
        let resume = self.committed.filter(|_| self.fault != Fault::Minimal);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            node: if self.fault == Fault::OtherNode { "other" } else { NODE }.into(),
            role: Role::Backend,
            backend: "test".to_owned(),
            backend_version: "1".to_owned(),
            resume,
            digests: resume.map(|_| Box::new(self.state.digests().clone())),
            kind_versions: proto::model::KindVersions::default(),
            source_version: match self.fault {
                Fault::Minimal => SourceVersion(0),
                Fault::OtherSourceVersion if self.committed.is_some() => SourceVersion(5),
                _ => self.source_version,
            },
            started: None,
        };
        let mut hello = v1::ClientMessage::from(&ClientMessage::Hello(hello));
        if let (Fault::OtherVersion, Some(v1::client_message::Message::Hello(hello))) = (self.fault, &mut hello.message)
        {
            hello.protocol_version = 9;
        }
        if self.fault == Fault::AckFirst {
            send(sender, &empty_ack());
        }
        let _ = sender.send(hello);
        if self.fault == Fault::AckBeforeWelcome {
            send(sender, &empty_ack());
        }
    }

    fn decode(&self, wire: &EncodedMessage) -> Option<ServerMessage> {
        let message = wire.decode().unwrap();
        let skips = self.fault == Fault::SkipsUnknownOperations;
        let message = if skips { without_unknown(message) } else { message };
        let message = ServerMessage::try_from(message).ok()?;
        let is_strict = self.fault == Fault::RejectsUnknownFields;
        (!is_strict || EncodedMessage::new(&message).size() == wire.size()).then_some(message)
    }

    fn handle(&mut self, message: ServerMessage, sender: &ClientSender) -> Option<()> {
        let reply = |message: ClientMessage| send(sender, &message);
        match message {
            ServerMessage::Welcome(welcome) => {
                if self.fault == Fault::RejectsOtherEpochs && self.epoch != Epoch(0) && self.epoch != welcome.epoch {
                    return None;
                }
                self.epoch = welcome.epoch;
                self.base = self.committed.filter(|_| welcome.mode == SyncMode::Resume).map(|(_, revision)| revision);
                if self.fault == Fault::SecondHello {
                    self.send_hello(sender);
                }
            }
            ServerMessage::Batch(batch) => self.handle_batch(batch, sender)?,
            ServerMessage::Bookmark(Bookmark { revision, .. }) => match self.fault {
                Fault::IgnoresBookmarks => {}
                Fault::KeepsBaseAtBookmarks => reply(self.ack()),
                Fault::ForgetsRevision => {
                    self.base = Some(revision);
                    reply(self.ack());
                }
                _ => {
                    self.base = Some(revision);
                    self.committed = Some((self.epoch, revision));
                    reply(self.ack());
                }
            },
            ServerMessage::Drain(_) if self.fault == Fault::IgnoresDrain => {}
            ServerMessage::Drain(_) => return None,
            ServerMessage::DigestRequest => {
                let mut digests = self.state.digests().clone();
                let mut revision = self.committed.map_or(Revision(0), |(_, revision)| revision);
                match self.fault {
                    Fault::IgnoresDigestRequests => return Some(()),
                    Fault::OtherDigests => digests[7].add(Digest(1)),
                    Fault::EmptyDigests => {
                        digests = DigestVector::default();
                        revision = Revision(0);
                    }
                    _ => {}
                }
                reply(ClientMessage::DigestResponse(revision, Box::new(digests)));
            }
        }
        Some(())
    }

    fn handle_batch(&mut self, batch: Batch, sender: &ClientSender) -> Option<()> {
        let wrong_base = self.base.is_some_and(|base| base != batch.base);
        if wrong_base && self.fault != Fault::IgnoresBase {
            return None;
        }
        let resets = batch.operations.iter().filter(|operation| matches!(operation, Operation::ResetBucket(_)));
        if self.fault == Fault::RejectsSecondSnapshot && self.base.is_some() && resets.count() > 1 {
            return None;
        }
        if self.fault == Fault::RejectsEmptyBatches && batch.operations.is_empty() && !batch.commit {
            return None;
        }
        let first_target = *self.first_target.get_or_insert(batch.target);
        self.staged.extend(batch.operations);
        if !batch.commit {
            if self.fault == Fault::AcksEachBatch && self.base.is_some() {
                send(sender, &self.ack());
            }
            return Some(());
        }
        let mut operations = std::mem::take(&mut self.staged);
        match self.fault {
            Fault::GroupsOperations => operations.sort_by_key(group),
            Fault::RemovesLast => operations.sort_by_key(is_removal),
            _ => {}
        }
        for operation in operations {
            if self.fault == Fault::KeepsUnknownPools
                && let Operation::ReplacePool { pool, .. } = &operation
                && self.state.service_port(&pool.key).is_none()
            {
                self.unknown_pools.push(operation);
                continue;
            }
            match operation {
                Operation::ResetBucket(_) if self.fault == Fault::IgnoresReset && self.base.is_some() => {}
                Operation::PutServicePort(port) if self.fault == Fault::ForgetsPools => {
                    self.state.apply([Operation::RemoveServicePort(port.key.clone())]);
                    self.state.apply([Operation::PutServicePort(port)]);
                }
                Operation::ChangePool { pool, add, remove } if self.fault == Fault::AddsFirst => {
                    self.state.apply([Operation::ChangePool { pool: pool.clone(), add, remove: Vec::new() }]);
                    self.state.apply([Operation::ChangePool { pool, add: Vec::new(), remove }]);
                }
                Operation::ReplacePool { pool, .. }
                    if self.fault == Fault::IgnoresEstablishedPools && !pool.class.is_selectable() => {}
                operation => drop(self.state.apply([operation])),
            }
        }
        self.state.apply(self.unknown_pools.iter().cloned());
        self.first_target = None;
        let target = if self.fault == Fault::CommitsFirstTarget { first_target } else { batch.target };
        self.commits += 1;
        self.source_version = batch.source_version;
        self.base = Some(target);
        self.committed = Some((self.epoch, target));
        let ack = self.ack();
        match (self.fault, &ack) {
            (Fault::AcksBeforeKernel, _) => self.program_later(None),
            (Fault::ProgramsLater, ClientMessage::Ack(complete)) => {
                self.program_later(Some((sender.clone(), ack.clone())));
                send(sender, &ClientMessage::Ack(Ack { programmed_number: 0, ..complete.clone() }));
                return Some(());
            }
            _ => fs::write(&self.state_file, self.programmed()).unwrap(),
        }
        let count = match self.fault {
            Fault::NoAck => 0,
            Fault::RepeatsAcks => 300,
            _ => 1,
        };
        for _ in 0..count {
            send(sender, &ack);
        }
        Some(())
    }

    fn program_later(&self, ack: Option<(ClientSender, ClientMessage)>) {
        let (path, programmed) = (self.state_file.clone(), self.programmed());
        tokio::spawn(async move {
            sleep(PROGRAMMING).await;
            // The test may have ended.
            let _ = fs::write(path, programmed);
            if let Some((sender, ack)) = ack {
                send(&sender, &ack);
            }
        });
    }

    /// In the format of `--state-command`.
    fn programmed(&self) -> String {
        let service_ports = cluster_endpoints(&self.state).into_iter();
        let service_ports = service_ports.map(|(key, to)| json!({"service_port": key, "endpoints": to}));
        service_ports.collect::<Value>().to_string()
    }

    /// The next one.
    fn ack(&mut self) -> ClientMessage {
        self.number += 1;
        let mut digest = self.state.digests().total();
        if self.fault == Fault::OtherDigest {
            digest.add(Digest(1));
        }
        let number = if self.fault == Fault::OtherNumber { self.number + 1 } else { self.number };
        let unknown = ServicePortKey::new("elsewhere", "nothing", "", Protocol::Tcp);
        let unknown = ServicePortFailure::rejected(unknown, "no reason").permanent();
        ClientMessage::Ack(Ack {
            digest: (self.fault != Fault::Minimal).then_some(digest),
            apply_time: Duration::from_secs(if self.fault == Fault::WrongApplyTimeUnit { 1000 } else { 0 }),
            failures: if self.fault == Fault::UnknownFailure { vec![unknown] } else { Vec::new() },
            ..Ack::complete(number, None)
        })
    }
}

/// The ack of a client that has no state.
fn empty_ack() -> ClientMessage {
    ClientMessage::Ack(Ack::complete(1, None))
}

fn send(sender: &ClientSender, message: &ClientMessage) {
    let _ = sender.send(message.into());
}

/// Resets, removals and puts of service ports, removals of endpoints, additions of endpoints.
fn group(operation: &Operation) -> u8 {
    match operation {
        Operation::ResetBucket(_) => 0,
        Operation::RemoveServicePort(_) => 1,
        Operation::ChangePool { add, .. } if add.is_empty() => 3,
        Operation::ChangePool { .. } | Operation::ReplacePool { .. } => 4,
        _ => 2,
    }
}

fn is_removal(operation: &Operation) -> bool {
    group(operation) == 1 || group(operation) == 3
}

fn without_unknown(mut message: v1::ServerMessage) -> v1::ServerMessage {
    if let Some(v1::server_message::Message::Batch(batch)) = &mut message.message {
        batch.operations.retain(|operation| operation.operation.is_some());
    }
    message
}
