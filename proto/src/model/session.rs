//! What the two ends of a stream say to each other, as values. `local` passes these on without a wire between.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Batch, Epoch, Revision, ServicePortKey, SourceVersion};
use crate::digest::{Digest, DigestVector};

/// What the sender of a [`Hello`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Programs the node.
    #[default]
    Backend,
    /// Only looks.
    Observer,
    /// Runs on the node as an agent does, but writes nothing.
    Shadow,
}

/// How a stream starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// The changes since the client's revision follow.
    Resume,
    /// The digest buckets that differ follow, possibly none.
    Repair,
    /// Everything follows.
    Snapshot,
}

/// The first thing that a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Node `metadata.name`; never empty.
    pub node: Arc<str>,
    /// What the client is.
    pub role: Role,
    /// `nftables`, `iptables`, `ipvs`, or a third party's name.
    pub backend: String,
    /// Its version.
    pub backend_version: String,
    /// Where the client stopped, when it holds something.
    pub resume: Option<(Epoch, Revision)>,
    /// The digests of what it holds; `None` when it holds nothing or computes none.
    pub digests: Option<Box<DigestVector>>,
    /// What the state that the client holds reflects.
    pub source_version: SourceVersion,
    /// Since when this run of the client lasts; `None` when it does not say.
    pub started: Option<SystemTime>,
}

/// The first thing that a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// This run of the frontend.
    pub epoch: Epoch,
    /// How the stream starts.
    pub mode: SyncMode,
    /// How far this frontend knows what it follows.
    pub source_version: SourceVersion,
}

/// A committed batch has been dealt with, or a bookmark has been seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The batch's target, or the bookmark's revision.
    pub revision: Revision,
    /// What the client holds now; `None` when it computes no digests.
    pub digest: Option<Digest>,
    /// From commit received to kernel programmed.
    pub apply_time: Duration,
    /// What could not be programmed, all of it, each time.
    pub failures: Vec<ServicePortFailure>,
}

/// A service port of which something is not in force on the node. Everything else is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortFailure {
    /// Which one.
    pub key: ServicePortKey,
    /// Why, in words.
    pub reason: String,
    /// Whether the agent goes on trying by itself.
    pub retryable: bool,
    /// What it could not do.
    pub kind: FailureKind,
}

/// What a node could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The service port is not in the kernel.
    #[default]
    Program,
    /// Nobody answers for its Service at `spec.healthCheckNodePort`. Traffic is served.
    HealthCheck,
}

/// From the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// First, once.
    Hello(Hello),
    /// Once for each commit and each bookmark.
    Ack(Ack),
    /// The answer to [`ServerMessage::DigestRequest`].
    DigestResponse(Revision, Box<DigestVector>),
}

/// From the frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// First, once.
    Welcome(Welcome),
    /// Part of a change.
    Batch(Batch),
    /// Up to date with this revision; the digest is what the client must hold.
    Bookmark(Revision, Digest),
    /// Reconnect after a random delay up to this long.
    Drain(Duration),
    /// Send the digest vector.
    DigestRequest,
}
