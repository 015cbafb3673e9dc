//! The messages of a stream. `fairlead local` passes them within the process, without encoding.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Batch, Epoch, KindVersions, Revision, ServicePortKey, SourceVersion};
use crate::{
    PROTOCOL_VERSION,
    digest::{Digest, DigestVector},
};

/// The role of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Programs the node.
    #[default]
    Backend,
    /// Only reads the stream.
    Observer,
    /// Runs on the node and computes what a backend would write, but writes nothing.
    Shadow,
}

/// How a frontend brings a client up to date at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Sends the changes since the client's revision.
    Resume,
    /// Sends the digest buckets that differ, possibly none.
    Repair,
    /// Sends everything.
    Snapshot,
}

impl SyncMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Resume, Self::Repair, Self::Snapshot];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Repair => "repair",
            Self::Snapshot => "snapshot",
        }
    }
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol version that the client supports.
    pub version: u32,
    /// Node `metadata.name`; never empty.
    pub node: Arc<str>,
    /// The role of the client.
    pub role: Role,
    /// `nftables`, `iptables`, `ipvs`, or the name of another implementation.
    pub backend: String,
    /// The version of the backend.
    pub backend_version: String,
    /// The revision of the committed state, if there is one.
    pub resume: Option<(Epoch, Revision)>,
    /// The digest vector of the committed state; `None` if there is no state or the client computes no digests.
    pub digests: Option<Box<DigestVector>>,
    /// The source version of the committed state.
    pub source_version: SourceVersion,
    /// The source version of each kind.
    pub kind_versions: KindVersions,
    /// The start of the client process; `None` if unknown.
    pub started: Option<SystemTime>,
}

impl Hello {
    /// Whether this build can serve the client.
    ///
    /// # Errors
    /// If it supports another protocol version: both versions, and what to upgrade.
    pub fn check_version(&self) -> Result<(), String> {
        let Self { version, .. } = self;
        let outdated = match version.cmp(&PROTOCOL_VERSION) {
            Ordering::Equal => return Ok(()),
            Ordering::Less => "client",
            Ordering::Greater => "frontend",
        };
        Err(format!(
            "the client supports version {version}, this frontend version {PROTOCOL_VERSION}; upgrade the {outdated}"
        ))
    }
}

/// The first message of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Identifies this run of the frontend.
    pub epoch: Epoch,
    /// How the client is brought up to date.
    pub mode: SyncMode,
    /// The newest object version that the frontend has seen.
    pub source_version: SourceVersion,
    /// The same for each kind.
    pub kind_versions: KindVersions,
    /// Whether the frontend does not follow the API, so that another one may be better.
    pub is_outdated: bool,
}

/// Tells a client that it is up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// The revision of the client.
    pub revision: Revision,
    /// The sum of its digest vector.
    pub digest: Digest,
    /// See [`Welcome::is_outdated`].
    pub is_outdated: bool,
}

impl Bookmark {
    /// One of a frontend that follows the API.
    #[must_use]
    pub fn new(revision: Revision, digest: Digest) -> Self {
        Self { revision, digest, is_outdated: false }
    }
}

/// Acknowledges a commit or a bookmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The number of the newest one among the commits and bookmarks of the stream, from 1.
    pub received_number: u64,
    /// The number of the newest one up to which everything is in the kernel, except for the failures; 0 if there is
    /// none.
    pub programmed_number: u64,
    /// The digest of the committed state; `None` if the client computes no digests.
    pub digest: Option<Digest>,
    /// The time from receiving the commit until the kernel was programmed.
    pub apply_time: Duration,
    /// All current failures, including those of earlier commits.
    pub failures: Vec<ServicePortFailure>,
    /// Which VIPs are not served as a whole, for people: an IP family that has VIPs and that the kernel cannot program.
    pub degraded: Vec<String>,
    /// The namespaces of the service ports of which something that was received is not in the kernel, at most
    /// [`Ack::MAX_UNFINISHED_NAMESPACES`]; empty if that is not known, or if everything is programmed.
    pub unfinished_namespaces: BTreeSet<Arc<str>>,
}

impl Ack {
    /// The most namespaces with unfinished service ports that an Ack names.
    pub const MAX_UNFINISHED_NAMESPACES: usize = 16;

    /// The most bytes of failures that a backend sends in an Ack, and that a frontend keeps of one: with the texts of a
    /// node on which nothing can be programmed, an Ack would not fit into a message.
    pub const MAX_FAILURE_BYTES: usize = 256 << 10;

    /// Of a client on whose node everything is programmed.
    #[must_use]
    pub const fn complete(number: u64, digest: Option<Digest>) -> Self {
        Self {
            received_number: number,
            programmed_number: number,
            digest,
            apply_time: Duration::ZERO,
            failures: Vec::new(),
            degraded: Vec::new(),
            unfinished_namespaces: BTreeSet::new(),
        }
    }

    /// The first failures, up to [`Self::MAX_FAILURE_BYTES`].
    #[must_use]
    pub fn first_failures(failures: &[ServicePortFailure]) -> &[ServicePortFailure] {
        let mut bytes = 0;
        let fits = |failure: &&ServicePortFailure| {
            bytes += failure.size();
            bytes <= Self::MAX_FAILURE_BYTES
        };
        let count = failures.iter().take_while(fits).count();
        &failures[..count]
    }
}

/// A service port that the node could not program completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortFailure {
    /// The service port.
    pub key: ServicePortKey,
    /// The reason, for people.
    pub reason: String,
    /// Whether the backend retries on its own.
    pub retryable: bool,
    /// What failed.
    pub kind: FailureKind,
}

impl ServicePortFailure {
    /// The service port is not in the kernel, and the backend retries on its own.
    #[must_use]
    pub fn rejected(key: ServicePortKey, reason: impl Into<String>) -> Self {
        Self { key, reason: reason.into(), retryable: true, kind: FailureKind::Program }
    }

    /// The backend does not retry on its own.
    #[must_use]
    pub fn permanent(self) -> Self {
        Self { retryable: false, ..self }
    }

    /// About how many bytes it takes in memory, which are more than in a message.
    fn size(&self) -> usize {
        let ServicePortKey { namespace, name, port_name, .. } = &self.key;
        size_of::<Self>() + namespace.len() + name.len() + port_name.len() + self.reason.len()
    }
}

/// What failed on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// The service port is not in the kernel.
    #[default]
    Program,
    /// The health-check node port is not served; traffic is.
    HealthCheck,
}

/// A message from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// The first message, exactly once.
    Hello(Hello),
    /// Of each commit and bookmark, and when more is programmed.
    Ack(Ack),
    /// The digest vector at a revision, in response to [`ServerMessage::DigestRequest`].
    DigestResponse(Revision, Box<DigestVector>),
}

/// A message from the frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// The first message, exactly once.
    Welcome(Welcome),
    /// Part of a change.
    Batch(Batch),
    /// The client is up to date with this revision.
    Bookmark(Bookmark),
    /// Asks the client to reconnect after a random delay of at most this duration.
    Drain(Duration),
    /// Asks for the digest vector.
    DigestRequest,
}
