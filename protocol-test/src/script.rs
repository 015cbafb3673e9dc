//! What a scripted frontend can say, and how a client is heard: each answer is held against the rules, whatever the scenario is about.
//!
//! ```text
//!   connect ──▶ Hello ──▶ welcome ──▶ rebuild | commit | bookmark ──▶ one Ack each ──▶ end, drain
//! ```

mod hearing;
mod saying;

use std::{sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{Ack, Epoch, Hello, Revision, SourceVersion, SyncMode, Welcome},
};
use tokio::time::Instant;

use crate::{
    Scenario,
    server::{Peer, Server},
    state::State,
    subject::Subject,
};

pub(crate) use self::{hearing::Digested, saying::batch};

/// What a scenario shows: what was seen, or why it stopped.
pub(crate) type Played<T = String> = Result<T, Stop>;

/// Why a scenario stops early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The client breaks a rule.
    Broken(String),
    /// The client does not do what it may leave out.
    Missing(String),
}

/// For so long nothing must happen where nothing must.
pub(crate) const QUIET: Duration = Duration::from_millis(700);
/// The longest that a client may wait before it connects again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);
/// What is taken for the present version of the objects; each commit is one further.
const FIRST_VERSION: u64 = 1000;

/// The frontend in one scenario.
pub(crate) struct Script<'a> {
    server: &'a mut Server,
    pub(crate) subject: &'a mut Subject,
    pub(crate) node: Arc<str>,
    pub(crate) patience: Duration,
    peer: Option<Peer>,
    epoch: Epoch,
    /// The present one.
    pub(crate) revision: Revision,
    /// What was committed, which is what the client must hold.
    pub(crate) state: State,
    /// What the client has acked last, in this scenario.
    pub(crate) held: Option<(Epoch, Revision)>,
    /// The last Ack on this stream, which may be repeated.
    acked: Option<Revision>,
    /// When the commit or bookmark was sent that is not acked.
    sent: Instant,
    /// Whether the client has sent a digest.
    pub(crate) digests: bool,
}

impl<'a> Script<'a> {
    pub(crate) fn new(server: &'a mut Server, subject: &'a mut Subject, node: Arc<str>, patience: Duration) -> Self {
        Self {
            server,
            subject,
            patience,
            peer: None,
            epoch: new_epoch(),
            revision: Revision(FIRST_VERSION),
            state: State::new(&node),
            held: None,
            acked: None,
            sent: Instant::now(),
            digests: false,
            node,
        }
    }

    /// Plays a scenario to its end.
    pub(crate) async fn play(mut self, scenario: &Scenario) -> Played {
        // Of the last scenario, where nobody ends the client in between.
        while self.server.waiting().is_some() {}
        let played = (scenario.play)(&mut self).await;
        let seen = played.map_err(|stop| match (stop, self.subject.ended()) {
            (Stop::Broken(what), Some(ended)) => Stop::Broken(format!("{what}; {ended}")),
            (stop, _) => stop,
        })?;
        if self.peer.is_some() && self.server.waiting().is_some() {
            return broken("a second stream of the same agent beside the one that is open");
        }
        Ok(seen)
    }

    /// From now on this is another frontend, as after a restart.
    pub(crate) fn become_another(&mut self) {
        self.epoch = new_epoch();
        self.revision = Revision(FIRST_VERSION);
    }

    /// Whether the Hello resumes what was acked last from this frontend.
    pub(crate) fn resumes(&self, hello: &Hello) -> bool {
        hello.resume.is_some_and(|(epoch, _)| epoch == self.epoch)
    }

    /// The client is gone, or will be.
    pub(crate) fn forget_stream(&mut self) {
        self.peer = None;
    }

    /// What a Welcome says of this frontend.
    pub(crate) fn present(&self, mode: SyncMode) -> Welcome {
        Welcome { epoch: self.epoch, mode, source_version: self.source_version() }
    }

    /// What the present revision reflects.
    pub(crate) fn source_version(&self) -> SourceVersion {
        SourceVersion(self.revision.0 + FIRST_VERSION)
    }

    /// The digest of what the client must hold.
    pub(crate) fn digest(&self) -> Digest {
        self.state.digests().total()
    }

    /// Compares what the backend has programmed with what was committed, where somebody can tell.
    pub(crate) async fn compare(&self, acked: &Ack) -> Played<()> {
        let told = self.subject.holdings().await.map_err(|error| Stop::Broken(format!("{error:#}")))?;
        let Some(mut told) = told else { return Ok(()) };
        let mut committed = self.state.described();
        for failure in &acked.failures {
            // What it could not program it may have in part.
            told.remove(&failure.key.to_string());
            committed.remove(&failure.key.to_string());
        }
        for (key, endpoints) in &told {
            let Some(wanted) = committed.remove(key) else {
                return broken(format!("has programmed {key}, which was not committed"));
            };
            if endpoints.as_ref().is_some_and(|endpoints| *endpoints != wanted) {
                return broken(format!("has programmed {key} with {endpoints:?}, but {wanted:?} was committed"));
            }
        }
        // Where nobody serves there may be nothing to be programmed.
        match committed.into_iter().find(|(_, endpoints)| !endpoints.is_empty()) {
            Some((key, _)) => broken(format!("has not programmed {key}, which was committed")),
            None => Ok(()),
        }
    }
}

/// The client breaks a rule.
pub(crate) fn broken<T>(what: impl Into<String>) -> Played<T> {
    Err(Stop::Broken(what.into()))
}

/// The client leaves out what it may.
pub(crate) fn missing<T>(what: impl Into<String>) -> Played<T> {
    Err(Stop::Missing(what.into()))
}

fn new_epoch() -> Epoch {
    Epoch(fastrand::u64(1..))
}
