//! The messages of the stream, except for batches.

use std::time::Duration;

use super::{
    InvalidMessage, each, enums::WireEnum as _, from_unix_micros, micros, required, service_port::required_key,
    unix_micros, within,
};
use crate::{
    PROTOCOL_VERSION,
    digest::{BUCKETS, Digest, DigestVector},
    model::{
        Ack, Bookmark, ClientMessage, Epoch, FailureKind, Hello, KindVersions, Revision, Role, ServerMessage,
        ServicePortFailure, SourceVersion, SyncMode, Welcome,
    },
    v1,
};

/// The most bytes of the name of a namespace: a label of DNS.
const MAX_NAMESPACE_BYTES: usize = 63;

fn digests(entries: &[u64], field: &str) -> Result<Box<DigestVector>, InvalidMessage> {
    let digests = DigestVector::from_slice(entries).map(Box::new);
    digests.ok_or_else(|| InvalidMessage::new(field, format!("{} entries, expected {}", entries.len(), BUCKETS + 1)))
}

impl From<&ServerMessage> for v1::ServerMessage {
    fn from(message: &ServerMessage) -> Self {
        use v1::server_message::Message;
        let message = match message {
            ServerMessage::Welcome(welcome) => Message::Welcome(welcome.into()),
            ServerMessage::Batch(batch) => Message::Batch(batch.into()),
            ServerMessage::Bookmark(Bookmark { revision, digest, is_outdated }) => {
                Message::Bookmark(v1::Bookmark { revision: revision.0, digest: digest.0, outdated: *is_outdated })
            }
            ServerMessage::Drain(delay) => {
                let max_delay_millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
                Message::Drain(v1::Drain { max_delay_millis })
            }
            ServerMessage::DigestRequest => Message::DigestRequest(v1::DigestRequest {}),
        };
        Self { message: Some(message) }
    }
}

impl TryFrom<v1::ServerMessage> for ServerMessage {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServerMessage) -> Result<Self, InvalidMessage> {
        use v1::server_message::Message;
        Ok(match required(wire.message, "message")? {
            Message::Welcome(welcome) => Self::Welcome(welcome.try_into().map_err(within("welcome"))?),
            Message::Batch(batch) => Self::Batch(batch.try_into().map_err(within("batch"))?),
            Message::Bookmark(v1::Bookmark { revision, digest, outdated }) => {
                Self::Bookmark(Bookmark { revision: Revision(revision), digest: Digest(digest), is_outdated: outdated })
            }
            Message::Drain(drain) => Self::Drain(Duration::from_millis(drain.max_delay_millis.into())),
            Message::DigestRequest(v1::DigestRequest {}) => Self::DigestRequest,
        })
    }
}

impl From<&Welcome> for v1::Welcome {
    fn from(welcome: &Welcome) -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            epoch: welcome.epoch.0,
            mode: welcome.mode.to_wire(),
            source_version: welcome.source_version.0,
            kind_versions: wire_kind_versions(welcome.kind_versions),
            outdated: welcome.is_outdated,
        }
    }
}

impl TryFrom<v1::Welcome> for Welcome {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Welcome) -> Result<Self, InvalidMessage> {
        let version = wire.protocol_version;
        if version != PROTOCOL_VERSION {
            let reason = format!(
                "the frontend chose version {version}, this client supports version {PROTOCOL_VERSION}; upgrade the {}",
                if version < PROTOCOL_VERSION { "frontend" } else { "client" }
            );
            return Err(InvalidMessage::new("protocol_version", reason));
        }

        let mode = SyncMode::from_wire(wire.mode, "mode")?;
        if wire.epoch == 0 {
            return Err(InvalidMessage::new("epoch", "is 0"));
        }

        Ok(Self {
            epoch: Epoch(wire.epoch),
            mode,
            source_version: SourceVersion(wire.source_version),
            kind_versions: wire.kind_versions.unwrap_or_default(),
            is_outdated: wire.outdated,
        })
    }
}

impl From<&ClientMessage> for v1::ClientMessage {
    fn from(message: &ClientMessage) -> Self {
        use v1::client_message::Message;
        let message = match message {
            ClientMessage::Hello(hello) => Message::Hello(hello.into()),
            ClientMessage::Ack(ack) => Message::Ack(ack.into()),
            ClientMessage::DigestResponse(revision, digests) => {
                Message::DigestResponse(v1::DigestResponse { revision: revision.0, digests: digests.to_vec() })
            }
        };
        Self { message: Some(message) }
    }
}

impl TryFrom<v1::ClientMessage> for ClientMessage {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ClientMessage) -> Result<Self, InvalidMessage> {
        use v1::client_message::Message;
        Ok(match required(wire.message, "message")? {
            Message::Hello(hello) => Self::Hello(hello.try_into().map_err(within("hello"))?),
            Message::Ack(ack) => Self::Ack(ack.try_into().map_err(within("ack"))?),
            Message::DigestResponse(response) => Self::DigestResponse(
                Revision(response.revision),
                digests(&response.digests, "digest_response.digests")?,
            ),
        })
    }
}

impl From<&Ack> for v1::Ack {
    fn from(ack: &Ack) -> Self {
        Self {
            digest: ack.digest.map_or(0, |digest| digest.0),
            apply_micros: micros(ack.apply_time),
            failures: ack.failures.iter().map(Into::into).collect(),
            degraded: ack.degraded.clone(),
            unfinished_namespaces: ack.unfinished_namespaces.iter().map(ToString::to_string).collect(),
            received_number: ack.received_number,
            programmed_number: ack.programmed_number,
        }
    }
}

impl TryFrom<v1::Ack> for Ack {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Ack) -> Result<Self, InvalidMessage> {
        let v1::Ack { received_number, programmed_number, unfinished_namespaces, .. } = wire;
        if received_number == 0 {
            let reason = "is 0: count the commits and bookmarks of the stream, from 1";
            return Err(InvalidMessage::new("received_number", reason));
        }
        if programmed_number > received_number {
            let reason = format!("is {programmed_number}, but only {received_number} is received");
            return Err(InvalidMessage::new("programmed_number", reason));
        }
        let is_too_long = |name: &String| name.len() > MAX_NAMESPACE_BYTES;
        if unfinished_namespaces.len() > Self::MAX_UNFINISHED_NAMESPACES
            || unfinished_namespaces.iter().any(is_too_long)
        {
            let reason = format!("has more than {} names of namespaces", Self::MAX_UNFINISHED_NAMESPACES);
            return Err(InvalidMessage::new("unfinished_namespaces", reason));
        }

        Ok(Self {
            received_number,
            programmed_number,
            digest: if wire.digest == 0 { None } else { Some(Digest(wire.digest)) },
            apply_time: Duration::from_micros(wire.apply_micros),
            failures: each(wire.failures, "failures")?,
            degraded: wire.degraded,
            unfinished_namespaces: unfinished_namespaces.into_iter().map(Into::into).collect(),
        })
    }
}

/// Without any version the message is left out.
pub(super) fn wire_kind_versions(versions: KindVersions) -> Option<KindVersions> {
    (versions != KindVersions::default()).then_some(versions)
}

impl From<&Hello> for v1::Hello {
    fn from(hello: &Hello) -> Self {
        let (epoch, revision) = hello.resume.unwrap_or_default();
        Self {
            protocol_version: hello.version,
            node: hello.node.to_string(),
            role: hello.role.to_wire(),
            backend: hello.backend.clone(),
            backend_version: hello.backend_version.clone(),
            epoch: epoch.0,
            revision: revision.0,
            digests: hello.digests.as_deref().map(DigestVector::to_vec).unwrap_or_default(),
            source_version: hello.source_version.0,
            kind_versions: wire_kind_versions(hello.kind_versions),
            started_micros: hello.started.map_or(0, unix_micros),
        }
    }
}

impl TryFrom<v1::Hello> for Hello {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Hello) -> Result<Self, InvalidMessage> {
        if wire.node.is_empty() {
            return Err(InvalidMessage::new("node", "is empty: set the name of the node"));
        }

        Ok(Self {
            version: wire.protocol_version,
            node: wire.node.into(),
            role: Role::from_wire_or(Role::Backend, wire.role, "role")?,
            backend: wire.backend,
            backend_version: wire.backend_version,
            resume: (wire.epoch != 0).then_some((Epoch(wire.epoch), Revision(wire.revision))),
            digests: (!wire.digests.is_empty()).then(|| digests(&wire.digests, "digests")).transpose()?,
            source_version: SourceVersion(wire.source_version),
            kind_versions: wire.kind_versions.unwrap_or_default(),
            started: from_unix_micros(wire.started_micros),
        })
    }
}

impl From<&ServicePortFailure> for v1::ServicePortFailure {
    fn from(failure: &ServicePortFailure) -> Self {
        Self {
            key: Some((&failure.key).into()),
            reason: failure.reason.clone(),
            retryable: failure.retryable,
            kind: failure.kind.to_wire(),
        }
    }
}

impl TryFrom<v1::ServicePortFailure> for ServicePortFailure {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePortFailure) -> Result<Self, InvalidMessage> {
        // A newer client may report other kinds of failures. They are failures all the same.
        let kind = FailureKind::known(wire.kind).unwrap_or_default();
        Ok(Self { key: required_key(wire.key)?, reason: wire.reason, retryable: wire.retryable, kind })
    }
}
