//! A frontend that a scenario scripts. It sends messages, and in every scenario checks each message of the client
//! against all rules.
//!
//! ```text
//!   connect ──▶ Hello ──▶ Welcome ──▶ sync | commit | bookmark ──▶ one Ack each ──▶ end of stream, drain
//! ```

mod expect;
mod send;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{Ack, Epoch, Hello, Revision, SourceVersion, SyncMode, Welcome},
    state::NodeState,
};
use tokio::time::Instant;

use crate::{
    Scenario,
    backend_process::BackendProcess,
    samples,
    server::{ClientStream, Server},
    state::cluster_endpoints,
};

pub(crate) use self::send::{batch, sync_mode};

/// The result of a step or of a scenario, which returns a description of what the client did.
pub(crate) type Outcome<T = String> = Result<T, Deviation>;

/// Why a scenario ends early. The text continues "the backend ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deviation {
    /// The client violates a rule.
    Violation(String),
    /// The client does not support an optional part of the protocol, or its contents cannot be compared.
    Unsupported(String),
}

impl Deviation {
    /// Appends to the text of a violation.
    pub(crate) fn append(self, suffix: impl fmt::Display) -> Self {
        match self {
            Self::Violation(what) => Self::Violation(format!("{what}{suffix}")),
            Self::Unsupported(_) => self,
        }
    }
}

/// How long to wait for messages that a client must not send.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(700);
/// The longest delay before a client reconnects.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// The first revision of an epoch, and the lowest source version.
const FIRST_REVISION: u64 = 1000;

/// The frontend of one scenario.
pub(crate) struct ScriptedFrontend<'a> {
    server: &'a mut Server,
    pub(crate) backend: &'a mut BackendProcess,
    pub(crate) node: Arc<str>,
    pub(crate) patience: Duration,
    stream: Option<ClientStream>,
    epoch: Epoch,
    /// The current revision.
    pub(crate) revision: Revision,
    /// The state that the client must have committed.
    pub(crate) state: NodeState,
    /// What the client acked last in this scenario.
    last_ack: Option<(Epoch, Revision)>,
    /// The number that the client acked last on this stream, 0 if none. It may repeat this Ack.
    acked_number: u64,
    /// How often it has repeated an Ack on this stream.
    repeated_acks: u64,
    /// When the commit or bookmark in flight was sent.
    sent_at: Instant,
    /// Whether the client has sent a digest.
    pub(crate) has_digests: bool,
}

impl<'a> ScriptedFrontend<'a> {
    pub(crate) fn new(
        server: &'a mut Server,
        backend: &'a mut BackendProcess,
        node: Arc<str>,
        patience: Duration,
    ) -> Self {
        Self {
            server,
            backend,
            patience,
            stream: None,
            epoch: random_epoch(),
            revision: Revision(FIRST_REVISION),
            state: samples::state(&node, &[]),
            last_ack: None,
            acked_number: 0,
            repeated_acks: 0,
            sent_at: Instant::now(),
            has_digests: false,
            node,
        }
    }

    pub(crate) async fn run(mut self, scenario: &Scenario) -> Outcome {
        // A client that is not restarted between scenarios may have opened streams in the meantime.
        while self.server.try_accept().is_some() {}
        while self.server.try_accept_drains().is_some() {}

        let observed = match (scenario.run)(&mut self).await {
            Ok(observed) => observed,
            Err(deviation) => {
                let exit = self.backend.exit_status().map(|exit| format!("; {exit}"));
                return Err(deviation.append(exit.unwrap_or_default()));
            }
        };
        if self.stream.is_some() && self.server.try_accept().is_some() {
            return violation("opened a second stream while the first was open");
        }
        Ok(observed)
    }

    /// Continues as another frontend, as after a restart: with a new epoch.
    pub(crate) fn start_new_epoch(&mut self) {
        self.epoch = random_epoch();
        self.revision = Revision(FIRST_REVISION);
    }

    /// Whether the Hello resumes in the current epoch.
    pub(crate) fn resumes(&self, hello: &Hello) -> bool {
        hello.resume.is_some_and(|(epoch, _)| epoch == self.epoch)
    }

    /// Drops the stream, because the client process is about to stop.
    pub(crate) fn drop_stream(&mut self) {
        self.stream = None;
    }

    pub(crate) fn welcome(&self, mode: SyncMode) -> Welcome {
        Welcome {
            epoch: self.epoch,
            mode,
            source_version: self.source_version(),
            kind_versions: proto::model::KindVersions::default(),
            is_outdated: false,
        }
    }

    /// The source version of the current revision.
    pub(crate) fn source_version(&self) -> SourceVersion {
        SourceVersion(self.revision.0 + FIRST_REVISION)
    }

    /// The digest of the state that the client must have committed.
    pub(crate) fn digest(&self) -> Digest {
        self.state.digests().total()
    }

    /// The result of a scenario that requires certain contents, where all messages were correct.
    pub(crate) fn pass_if_compared(&self, observed: impl fmt::Display) -> Outcome {
        if self.has_digests || self.backend.has_state_command() {
            Ok(observed.to_string())
        } else {
            unsupported(format!("{observed}; contents not compared, for lack of digests and --state-command"))
        }
    }

    /// Compares what the backend has programmed with the committed state, if there is a state command.
    pub(crate) async fn check_programmed(&self, ack: &Ack) -> Outcome<()> {
        let mut programmed = match self.backend.programmed().await {
            Ok(Some(programmed)) => programmed,
            Ok(None) => return Ok(()),
            Err(error) => return violation(format!("cannot be inspected: {error:#}")),
        };

        let mut committed = cluster_endpoints(&self.state);
        for failure in &ack.failures {
            // A service port that failed may be programmed in part.
            programmed.remove(&failure.key.to_string());
            committed.remove(&failure.key.to_string());
        }

        for (key, endpoints) in &programmed {
            let Some(desired) = committed.remove(key) else {
                return violation(format!("has programmed {key}, which is not in the committed state"));
            };
            if let Some(endpoints) = endpoints
                && *endpoints != desired
            {
                return violation(format!(
                    "has programmed {key} with other endpoints than committed: missing {}; not committed {}",
                    describe_difference(&desired, endpoints),
                    describe_difference(endpoints, &desired)
                ));
            }
        }

        // A service port without endpoints need not be programmed.
        match committed.into_iter().find(|(_, endpoints)| !endpoints.is_empty()) {
            Some((key, _)) => violation(format!("has not programmed {key}, which is in the committed state")),
            None => Ok(()),
        }
    }
}

/// The entries that only the first set has.
fn describe_difference(one: &BTreeSet<String>, other: &BTreeSet<String>) -> String {
    let only: Vec<_> = one.difference(other).map(String::as_str).collect();
    if only.is_empty() { "none".to_owned() } else { only.join(", ") }
}

/// Reports that the client violates a rule.
pub(crate) fn violation<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Deviation::Violation(what.into()))
}

/// Reports that the client does not support an optional part of the protocol, or that its contents cannot be compared.
pub(crate) fn unsupported<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Deviation::Unsupported(what.into()))
}

fn random_epoch() -> Epoch {
    Epoch(fastrand::u64(1..))
}
