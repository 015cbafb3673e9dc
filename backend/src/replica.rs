//! The node's side of the protocol: how each message changes the state, and the answer to it.
//!
//! ```text
//!   Welcome ──▶ where the stream starts: at the committed revision (resume), or anywhere (repair, snapshot)
//!   Batch   ──▶ a staged state; with commit: the committed one, and the one to program
//!   Bookmark, DigestRequest ──▶ an answer
//! ```

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::{
    PROTOCOL_VERSION,
    digest::{BUCKETS, Digest},
    model::{
        Batch, ClientMessage, ClusterInfo, Epoch, Hello, KindVersions, NodeInfo, Operation, Revision, Role,
        ServerMessage, SourceVersion, SyncMode, Welcome,
    },
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::{
    ChangeCounts, DepartedEndpoints, Loss, NodeState, ProtocolCounters, RejectedOperation, STOP_TIMEOUT, Store,
    StoredState,
    backend::BackendIdentity,
    loss::{Commit, Decision, LossGuard},
};

/// How long a state that is older than the one before may lack endpoints that exist: the frontend is behind.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the state of a node is from: only a confirmed state is known to have all endpoints that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The state file, and the node has restarted since a frontend confirmed it.
    EarlierBoot,
    /// The state file, of an earlier process in the same boot.
    Stored,
    /// A frontend, which has committed or confirmed it in this process.
    Confirmed,
    /// A frontend that was behind another one, and has caught up by this time.
    Behind { until: Instant },
}

/// The node's replica of the state that the frontend decided for it.
#[derive(Debug)]
pub(crate) struct Replica {
    identity: Arc<BackendIdentity>,
    store: Option<Store>,
    /// The state to program: the committed one, except for the losses that are withheld.
    state: NodeState,
    committed_state: NodeState,
    staged: Option<Staged>,
    /// The revision of `committed_state`, once anything has been committed.
    committed: Option<(Epoch, Revision)>,
    /// The version of the cluster that `committed_state` reflects, from any frontend.
    source_version: SourceVersion,
    kind_versions: KindVersions,
    session: Option<SessionPosition>,
    pub(crate) losses: LossGuard,
    role: Role,
    /// The next commit is a snapshot, from any frontend, that confirms or voids the withheld losses.
    snapshot_pending: bool,
    /// The origin of the committed state.
    pub(crate) origin: Origin,
    pub(crate) counters: ProtocolCounters,
}

/// The state that the next commit leads to.
#[derive(Debug)]
struct Staged {
    state: NodeState,
    counts: ChangeCounts,
    /// The operations that could not be applied. The digests then differ from the frontend's, and a repair follows.
    rejected: u64,
    first_rejected: Option<RejectedOperation>,
}

/// The position of a session in the history of its frontend.
#[derive(Clone, Copy, Debug)]
struct SessionPosition {
    epoch: Epoch,
    /// The base that the next batch must have; `None` before the first commit of a repair or snapshot.
    base: Option<Revision>,
    /// Whether anything has been committed or confirmed in this session.
    has_committed: bool,
}

/// The reaction to a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    None,
    /// Program the state, then ack the revision.
    Commit(Committed),
    /// Send this at once.
    Reply(ClientMessage),
}

/// A commit, or a bookmark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) epoch: Epoch,
    pub(crate) revision: Revision,
    /// Of the committed state.
    pub(crate) digest: Digest,
    /// When the oldest change was made in the cluster, if known.
    pub(crate) trigger: Option<SystemTime>,
    pub(crate) counts: ChangeCounts,
    /// The loss that begins to be withheld.
    pub(crate) loss: Option<Loss>,
    /// The endpoints that departed since the commit before; `None` if that was another frontend's or a newer one, so
    /// that the difference is no event in the cluster.
    pub(crate) departed: Option<DepartedEndpoints>,
}

/// A violation of the protocol by the frontend. The session is ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the first message is not a Welcome")]
    NoWelcome,
    #[error("second Welcome in a session")]
    SecondWelcome,
    #[error("cannot resume epoch {0}: this node has no committed state of that epoch")]
    NothingToResume(Epoch),
    #[error("batch with base revision {base}, but revision {committed} is committed")]
    Base { base: Revision, committed: Revision },
    #[error("bookmark before the first commit")]
    NothingToMark,
    #[error("revision {target} is lower than the committed revision {committed}")]
    Backwards { target: Revision, committed: Revision },
}

impl Replica {
    pub(crate) fn new(
        identity: Arc<BackendIdentity>,
        store: Option<Store>,
        stored: Option<StoredState>,
        mut losses: LossGuard,
        role: Role,
    ) -> Self {
        let is_after_boot = store.as_ref().is_some_and(Store::is_of_earlier_boot);
        let (committed_state, committed, source_version, kind_versions) = match stored {
            Some(StoredState { state, epoch, revision, source_version, kind_versions, is_outdated, boot: _ }) => {
                // After a boot the kernel serves nothing that could be kept.
                if is_outdated && !is_after_boot {
                    losses.continue_withholding();
                }
                (state, Some((epoch, revision)), source_version, kind_versions)
            }
            None => {
                let state = NodeState::new(NodeInfo::unknown(identity.node.clone()));
                (state, None, SourceVersion::default(), KindVersions::default())
            }
        };

        let mut state = committed_state.clone();
        if is_after_boot {
            state = losses.restarted(&committed_state);
            let service_ports = losses.unconfirmed_service_ports();
            if service_ports > 0 {
                warn!(
                    service_ports,
                    "the node has restarted, its former endpoints are left out until a frontend confirms them"
                );
            }
        }

        Self {
            identity,
            store,
            state,
            committed_state,
            staged: None,
            committed,
            source_version,
            kind_versions,
            session: None,
            losses,
            role,
            snapshot_pending: false,
            origin: if is_after_boot { Origin::EarlierBoot } else { Origin::Stored },
            counters: ProtocolCounters::default(),
        }
    }

    /// The state to program: the committed one, except for withheld losses.
    pub(crate) fn state(&self) -> &NodeState {
        &self.state
    }

    /// The revision of the committed state; `None` before the first commit.
    pub(crate) fn committed(&self) -> Option<(Epoch, Revision)> {
        self.committed
    }

    /// The first message of the next session. To confirm a loss it claims no state, so a snapshot follows.
    pub(crate) fn hello(&self) -> Hello {
        let BackendIdentity { node, backend, version, started } = &*self.identity;
        let claimed = if self.snapshot_pending { None } else { self.committed };
        Hello {
            version: PROTOCOL_VERSION,
            node: node.clone(),
            role: self.role,
            backend: (*backend).to_owned(),
            backend_version: version.clone(),
            resume: claimed,
            digests: claimed.map(|_| Box::new(self.committed_state.digests().clone())),
            source_version: self.source_version,
            kind_versions: self.kind_versions,
            started: Some(*started),
        }
    }

    /// When a snapshot is due that confirms a withheld loss.
    pub(crate) fn confirm_at(&self) -> Option<Instant> {
        if self.snapshot_pending { None } else { self.losses.confirm_at() }
    }

    /// Requests a snapshot at the start of the next session, which confirms or voids the withheld losses.
    pub(crate) fn request_snapshot(&mut self) {
        self.snapshot_pending = true;
    }

    /// The session has ended. Uncommitted batches are discarded.
    pub(crate) fn session_ended(&mut self) {
        self.session = None;
        self.staged = None;
    }

    /// Stores the committed state in its file, or the one before a loss that is withheld. Returns why the file is out
    /// of date.
    pub(crate) fn flush(&self) -> Option<String> {
        let store = self.store.as_ref()?;
        // A restart must not apply a loss that is not confirmed.
        if let Some((epoch, revision)) = self.committed
            && !self.losses.is_withholding()
        {
            store.put(StoredState {
                revision,
                epoch,
                source_version: self.source_version,
                kind_versions: self.kind_versions,
                boot: None,
                is_outdated: self.losses.continues(),
                state: self.committed_state.clone(),
            });
        } else if self.losses.withheld_service_ports() > 0 {
            store.mark_outdated();
        }
        store.error()
    }

    /// Writes the committed state to its file, if the disk answers in time.
    pub(crate) async fn finish(mut self) {
        self.flush();
        if let Some(store) = self.store.take() {
            store.finish(STOP_TIMEOUT).await;
        }
    }

    pub(crate) fn handle(&mut self, message: ServerMessage) -> Result<Reaction, Violation> {
        match (message, self.session) {
            (ServerMessage::Welcome(welcome), None) => self.welcome(welcome).map(|()| Reaction::None),
            (ServerMessage::Welcome(_), Some(_)) => Err(Violation::SecondWelcome),
            (_, None) => Err(Violation::NoWelcome),
            (ServerMessage::Batch(batch), Some(position)) => self.batch(batch, position),
            (ServerMessage::Bookmark(bookmark), Some(position)) => {
                self.bookmark(bookmark.revision, bookmark.digest, position)
            }
            (ServerMessage::DigestRequest, Some(_)) => Ok(Reaction::Reply(self.digests())),
            // The stream follower handles it.
            (ServerMessage::Drain(_), Some(_)) => Ok(Reaction::None),
        }
    }

    fn welcome(&mut self, welcome: Welcome) -> Result<(), Violation> {
        let Welcome { epoch, mode, source_version, kind_versions, is_outdated: _ } = welcome;
        for (kind, version, committed) in kind_versions.older_kinds(self.kind_versions) {
            warn!(kind, %version, %committed, "the frontend's objects of this kind are older than this node's");
        }
        if is_older(source_version, self.source_version) {
            let committed = self.source_version;
            warn!(%source_version, %committed, "the frontend has an older version of the cluster than this node");
        }

        let base = match (mode, self.committed) {
            (SyncMode::Resume, Some((committed, revision))) if committed == epoch => Some(revision),
            (SyncMode::Resume, _) => return Err(Violation::NothingToResume(epoch)),
            (SyncMode::Repair, _) => None,
            (SyncMode::Snapshot, _) => {
                self.stage_reset();
                None
            }
        };

        info!(%epoch, ?mode, "following a frontend");
        self.session = Some(SessionPosition { epoch, base, has_committed: false });
        Ok(())
    }

    /// Removes everything that the snapshot does not contain.
    fn stage_reset(&mut self) {
        let mut operations: Vec<_> = (0..=u8::MAX).take(BUCKETS).map(Operation::ResetBucket).collect();
        operations.push(Operation::PutNode(NodeInfo::unknown(self.identity.node.clone())));
        operations.push(Operation::PutCluster(ClusterInfo::default()));
        self.stage(operations);
    }

    fn stage(&mut self, operations: Vec<Operation>) {
        let staged = self.staged.get_or_insert_with(|| Staged {
            state: self.committed_state.clone(),
            counts: ChangeCounts::default(),
            rejected: 0,
            first_rejected: None,
        });
        staged.counts += ChangeCounts::of(&operations);
        let rejected = staged.state.apply(operations);
        staged.rejected += rejected.len() as u64;
        staged.first_rejected = staged.first_rejected.take().or(rejected.into_iter().next());
    }

    fn batch(
        &mut self,
        batch: Batch,
        SessionPosition { epoch, base: expected, has_committed }: SessionPosition,
    ) -> Result<Reaction, Violation> {
        let Batch { base, target, operations, commit, oldest_trigger: trigger, source_version, kind_versions } = batch;
        if let Some(committed) = expected {
            if base != committed {
                return Err(Violation::Base { base, committed });
            }
            if target < committed {
                return Err(Violation::Backwards { target, committed });
            }
        }

        self.stage(operations);
        let Some(Staged { state: staged, counts, rejected, first_rejected }) = self.staged.take_if(|_| commit) else {
            return Ok(Reaction::None);
        };

        let is_confirmed = self.committed.is_none() || self.snapshot_pending;
        let commit = Commit { before: &self.committed_state, after: &staged, is_confirmed };
        let Decision { state, departed, loss } = self.losses.commit(&commit, &self.state);
        self.state = state;
        self.committed_state = staged;
        self.snapshot_pending = false;

        let older: Vec<_> = kind_versions.older_kinds(self.kind_versions).collect();
        let is_rollback = is_older(source_version, self.source_version) || !older.is_empty();
        if is_rollback {
            let committed = self.source_version;
            warn!(
                revision = %target, %source_version, %committed, ?older,
                "rolled back to an older version of the cluster"
            );
            self.counters.rollbacks += 1;
            self.origin = Origin::Behind { until: Instant::now() + ROLLBACK_TIMEOUT };
        }
        // A frontend that does not know the version leaves it as it is.
        if source_version != SourceVersion::default() {
            self.source_version = source_version;
            self.kind_versions = self.kind_versions.updated(kind_versions);
        }

        if let Some(first) = first_rejected {
            warn!(revision = %target, count = rejected, %first, "operations rejected");
            self.counters.rejected_operations += rejected;
        }

        self.advance(SessionPosition { epoch, base: Some(target), has_committed: true });
        let departed = if has_committed && !is_rollback { Some(departed) } else { None };
        let digest = self.total();
        Ok(Reaction::Commit(Committed { epoch, revision: target, digest, trigger, counts, loss, departed }))
    }

    fn bookmark(
        &mut self,
        revision: Revision,
        digest: Digest,
        SessionPosition { epoch, base, has_committed }: SessionPosition,
    ) -> Result<Reaction, Violation> {
        if self.staged.is_some() {
            debug!(%revision, "ignored a bookmark between batches of one commit");
            return Ok(Reaction::None);
        }
        if self.committed.is_none() {
            return Err(Violation::NothingToMark);
        }
        if let Some(committed) = base
            && revision < committed
        {
            return Err(Violation::Backwards { target: revision, committed });
        }

        let is_refuted = digest != self.total();
        if is_refuted {
            warn!(%revision, "digest differs from the frontend's, a repair follows");
            self.counters.digest_mismatches += 1;
        } else if self.losses.confirmed() {
            self.state = self.committed_state.clone();
        }

        // The difference that a repair makes is no event in the cluster.
        self.advance(SessionPosition { epoch, base: Some(revision), has_committed: !is_refuted });
        let departed = if has_committed && !is_refuted { Some(DepartedEndpoints::new()) } else { None };
        let digest = self.total();
        Ok(Reaction::Commit(Committed { epoch, revision, digest, departed, ..Committed::default() }))
    }

    fn digests(&self) -> ClientMessage {
        let revision = self.committed.map_or(Revision(0), |(_, revision)| revision);
        ClientMessage::DigestResponse(revision, Box::new(self.committed_state.digests().clone()))
    }

    /// A state that is committed or confirmed in a session is confirmed in this boot, too.
    fn advance(&mut self, position: SessionPosition) {
        self.committed = position.base.map(|revision| (position.epoch, revision));
        self.session = Some(position);
        if position.has_committed {
            self.origin.confirm();
            self.store.iter_mut().for_each(Store::confirmed);
        }
    }

    fn total(&self) -> Digest {
        self.committed_state.digests().total()
    }
}

impl Origin {
    /// A frontend has committed the state, or confirmed it. One that was behind may still be.
    fn confirm(&mut self) {
        if !matches!(self, Self::Behind { until } if Instant::now() < *until) {
            *self = Self::Confirmed;
        }
    }
}

/// Whether a version is known to be older than another one.
fn is_older(version: SourceVersion, than: SourceVersion) -> bool {
    version != SourceVersion::default() && version < than
}

#[cfg(test)]
mod tests;
