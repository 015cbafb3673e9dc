//! The node's side of the protocol, without any IO: what each event of a session does to the state, and what is to be answered.
//!
//! ```text
//!   Welcome ──▶ where the stream starts: at what we hold (resume), or anywhere (repair, snapshot)
//!   Batch   ──▶ stage; with commit: NodeState, Changes
//!   Bookmark, DigestRequest ──▶ an answer
//! ```

use std::time::SystemTime;

use proto::{
    digest::{BUCKETS, Digest, DigestVector},
    model::{
        Batch, ClientMessage, ClusterInfo, Epoch, Hello, NodeInfo, Operation, Revision, Role, ServerMessage,
        SourceVersion, SyncMode, Welcome,
    },
};
use tracing::{debug, info, warn};

use crate::{ChangeCounts, Changes, CommitResult, Loss, LossLimit, NodeState, RunMode, Stage, Store, StoredState};

/// The node's copy of what the frontend says.
#[derive(Debug)]
pub(crate) struct Replica {
    state: NodeState,
    stage: Stage,
    /// What `state` is, once anything has been committed.
    held: Option<(Epoch, Revision)>,
    /// What it reflects, of whichever frontend.
    source_version: SourceVersion,
    session: Option<Position>,
    limit: LossLimit,
    /// What the frontend is told that this is.
    role: Role,
    trust: Trust,
    /// Operations that were left out, and digests that were not as they should be, since the start.
    pub(crate) refused: u64,
    pub(crate) mismatches: u64,
    /// Commits that reflect less than what was held before.
    pub(crate) backwards: u64,
}

/// Where a session is.
#[derive(Clone, Copy, Debug)]
struct Position {
    epoch: Epoch,
    /// What the next batch must start from; `None` until the first commit of a repair or snapshot.
    base: Option<Revision>,
}

/// Whether the frontend is believed when it takes away more than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Not at once.
    Usual,
    /// A change was held back: only a snapshot, of whichever frontend comes next, can say the same again.
    Doubted,
}

/// What follows from an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing to be done.
    Nothing,
    /// Ack this revision when everything is in force, which these changes are not yet.
    Ack(Revision, Digest, Changes, Origin),
    /// Say this at once.
    Reply(ClientMessage),
    /// The commit takes away too much to be believed at once. Nothing of it was taken in, and the session must be given up.
    HeldBack(Revision, Loss),
}

/// Where the changes of a commit come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// When the oldest of them was made in the cluster, as far as that is known.
    pub(crate) trigger: Option<SystemTime>,
    /// The operations that told of them.
    pub(crate) tally: ChangeCounts,
}

/// Something that a frontend must not do. The session is given up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("it did not begin with a welcome")]
    NoWelcome,
    #[error("a second welcome")]
    SecondWelcome,
    #[error("it resumes epoch {0}, of which nothing is held")]
    NothingToResume(Epoch),
    #[error("a batch starts from revision {base}, but {held} is held")]
    Base { base: Revision, held: Revision },
    #[error("a bookmark before the first commit")]
    NothingToMark,
    #[error("it goes back to revision {target} from {held}")]
    Backwards { target: Revision, held: Revision },
}

impl Replica {
    /// Holds what was stored, or nothing.
    pub(crate) fn new(node: &str, stored: Option<StoredState>, limit: LossLimit) -> Self {
        let (state, held, source_version) = match stored {
            Some(StoredState { state, epoch, revision, source_version }) => {
                (state, Some((epoch, revision)), source_version)
            }
            None => (NodeState::new(NodeInfo::unknown(node)), None, SourceVersion::default()),
        };
        let (stage, trust) = (Stage::default(), Trust::Usual);
        Self {
            state,
            stage,
            held,
            source_version,
            session: None,
            limit,
            role: Role::Backend,
            trust,
            refused: 0,
            mismatches: 0,
            backwards: 0,
        }
    }

    /// The frontend is told what the backend is there for.
    pub(crate) fn on(self, run_mode: RunMode) -> Self {
        let role = match run_mode {
            RunMode::Program => Role::Backend,
            RunMode::Shadow => Role::Shadow,
        };
        Self { role, ..self }
    }

    /// All that was committed.
    pub(crate) fn state(&self) -> &NodeState {
        &self.state
    }

    /// At which revision that is; `None` before the first commit.
    pub(crate) fn held(&self) -> Option<(Epoch, Revision)> {
        self.held
    }

    /// What to say first in the next session. One that doubts says that it holds nothing, and so is sent everything.
    pub(crate) fn hello(&self, backend: &str, backend_version: &str, started: SystemTime) -> Hello {
        let held = self.held.filter(|_| self.trust == Trust::Usual);
        Hello {
            node: self.state.node().name.clone(),
            role: self.role,
            backend: backend.to_owned(),
            backend_version: backend_version.to_owned(),
            resume: held,
            digests: held.map(|_| Box::new(self.state.digests().clone())),
            source_version: self.source_version,
            started: Some(started),
        }
    }

    /// The session is over. Parts of a change whose commit did not come are forgotten.
    pub(crate) fn lost(&mut self) {
        self.session = None;
        self.stage.clear();
    }

    /// Takes in the next event. A commit is recorded in `store` as well.
    pub(crate) fn take(&mut self, event: ServerMessage, store: Option<&mut Store>) -> Result<Outcome, Violation> {
        match (event, self.session) {
            (ServerMessage::Welcome(welcome), None) => self.welcome(welcome).map(|()| Outcome::Nothing),
            (ServerMessage::Welcome(_), Some(_)) => Err(Violation::SecondWelcome),
            (_, None) => Err(Violation::NoWelcome),
            (ServerMessage::Batch(batch), Some(position)) => self.batch(batch, position, store),
            (ServerMessage::Bookmark(revision, digest), Some(position)) => self.bookmark(revision, digest, position),
            (ServerMessage::DigestRequest, Some(_)) => Ok(Outcome::Reply(self.digests())),
            // The stream keeps this to itself.
            (ServerMessage::Drain(_), Some(_)) => Ok(Outcome::Nothing),
        }
    }

    fn welcome(&mut self, Welcome { epoch, mode, source_version }: Welcome) -> Result<(), Violation> {
        if is_behind(source_version, self.source_version) {
            let held = self.source_version;
            warn!(%source_version, %held, "this frontend knows less of the cluster than what is held");
        }
        let base = match (mode, self.held) {
            (SyncMode::Resume, Some((held, revision))) if held == epoch => Some(revision),
            (SyncMode::Resume, _) => return Err(Violation::NothingToResume(epoch)),
            (SyncMode::Repair, _) => None,
            (SyncMode::Snapshot, _) => {
                // What is held and does not come again is to be gone.
                let name = self.state.node().name.clone();
                self.stage.extend((0..=u8::MAX).take(BUCKETS).map(Operation::ResetBucket));
                self.stage.extend([Operation::PutNode(NodeInfo::unknown(name))]);
                self.stage.extend([Operation::PutCluster(ClusterInfo::default())]);
                None
            }
        };
        info!(%epoch, ?mode, "following a frontend");
        self.session = Some(Position { epoch, base });
        Ok(())
    }

    fn batch(
        &mut self,
        batch: Batch,
        Position { epoch, base: position }: Position,
        store: Option<&mut Store>,
    ) -> Result<Outcome, Violation> {
        let Batch { base, target, operations, commit, oldest_trigger: trigger, source_version } = batch;
        if let Some(held) = position {
            if base != held {
                return Err(Violation::Base { base, held });
            }
            if target < held {
                return Err(Violation::Backwards { target, held });
            }
        }
        self.stage.extend(operations);
        if !commit {
            return Ok(Outcome::Nothing);
        }
        // One that does not know takes nothing back.
        let reflected = if source_version == SourceVersion::default() { self.source_version } else { source_version };
        let mut store = store.map(|store| (store.staged(), store));
        if let Some((_, store)) = &mut store {
            store.stage(epoch, (base, target), reflected, self.stage.operations());
        }
        let tally = ChangeCounts::of(self.stage.operations());
        let limit = match (self.held, self.trust) {
            (Some(_), Trust::Usual) => self.limit,
            (None, _) | (_, Trust::Doubted) => LossLimit::NONE,
        };
        let CommitResult { changes, refused } = match self.stage.commit_within(&mut self.state, limit) {
            Ok(committed) => committed,
            Err(loss) => {
                if let Some((staged, store)) = store {
                    store.unstage(staged);
                }
                self.trust = Trust::Doubted;
                return Ok(Outcome::HeldBack(target, loss));
            }
        };
        self.trust = Trust::Usual;
        if is_behind(source_version, self.source_version) {
            let held = self.source_version;
            warn!(revision = %target, %source_version, %held, "going back to an older state of the cluster");
            self.backwards += 1;
        }
        self.source_version = reflected;
        if let Some(first) = refused.first() {
            warn!(revision = %target, count = refused.len(), %first, "operations refused");
            self.refused += refused.len() as u64;
        }
        self.advance(epoch, target);
        Ok(Outcome::Ack(target, self.total(), changes, Origin { trigger, tally }))
    }

    fn bookmark(
        &mut self,
        revision: Revision,
        digest: Digest,
        Position { epoch, base }: Position,
    ) -> Result<Outcome, Violation> {
        if !self.stage.operations().is_empty() {
            debug!(%revision, "bookmark within a change");
            return Ok(Outcome::Nothing);
        }
        if self.held.is_none() {
            return Err(Violation::NothingToMark);
        }
        if let Some(held) = base
            && revision < held
        {
            return Err(Violation::Backwards { target: revision, held });
        }
        if digest != self.total() {
            warn!(%revision, "digest differs from the frontend's, a repair will follow");
            self.mismatches += 1;
        }
        self.advance(epoch, revision);
        Ok(Outcome::Ack(revision, self.total(), Changes::default(), Origin::default()))
    }

    fn digests(&self) -> ClientMessage {
        let revision = self.held.map_or(Revision(0), |(_, revision)| revision);
        let digests: &DigestVector = self.state.digests();
        ClientMessage::DigestResponse(revision, Box::new(digests.clone()))
    }

    fn advance(&mut self, epoch: Epoch, revision: Revision) {
        self.held = Some((epoch, revision));
        self.session = Some(Position { epoch, base: Some(revision) });
    }

    fn total(&self) -> Digest {
        self.state.digests().total()
    }
}

/// Whether one has seen less than the other, as far as that is known.
fn is_behind(one: SourceVersion, other: SourceVersion) -> bool {
    one != SourceVersion::default() && one < other
}
