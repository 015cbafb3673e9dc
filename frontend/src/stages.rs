//! The stages of a change in the frontend, one by one, for benchmarks that count the instructions of each:
//! [`decode`], [`Stages::commit`], [`Stages::encode`].

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use proto::model::{Batch, ClusterInfo, Epoch, Revision};

use crate::{
    HistoryLimits,
    cluster::ClusterState,
    index::{Index, ServicePolicy},
    log::ChangeLog,
    metrics::Metrics,
    object::{ObjectKind, ParsedObject, SourceUpdate},
    session::OutgoingMessage,
};

pub use crate::source::decode_event as decode;

/// A cluster, and one node that has received its revisions up to `sent`.
#[derive(Debug)]
pub struct Stages {
    cluster: ClusterState,
    metrics: Metrics,
    node: String,
    sent: Revision,
}

impl Stages {
    /// A cluster that has listed these objects, and a node that has received them.
    #[must_use]
    pub fn new(objects: &[ParsedObject], node: &str) -> Self {
        let index = Index::new(UNIX_EPOCH, ClusterInfo::default(), ServicePolicy::default());
        let log = ChangeLog::new(HistoryLimits::default());
        let cluster = ClusterState::new(Epoch::default(), index, log);

        for kind in ObjectKind::ALL {
            let of_kind = objects.iter().filter(|object| object.kind == kind).cloned();
            cluster.index().apply(SourceUpdate::Replace(kind, of_kind.collect()));
        }
        let mut stages =
            Self { cluster, metrics: Metrics::default(), node: node.to_owned(), sent: Revision::default() };
        stages.commit_dirty();
        stages.sent = stages.cluster.log().revision();
        stages
    }

    /// Applies an object to the index, and commits the views that change.
    pub fn commit(&mut self, object: ParsedObject) {
        self.cluster.index().apply(SourceUpdate::Apply(object));
        self.commit_dirty();
    }

    /// The commits since the last call, as the message that gRPC sends to the node. `None`: there is none.
    #[must_use]
    pub fn encode(&mut self) -> Option<Vec<Bytes>> {
        let since = self.cluster.log().commits_since(&self.node, self.sent)?;
        let update = since.difference(&self.node)?;
        let header = Batch { base: self.sent, target: update.target, commit: true, ..Batch::default() };

        self.sent = update.target;
        Some(OutgoingMessage::Batch { header, chunks: update.chunks }.into_frame(false, &self.metrics))
    }

    fn commit_dirty(&self) {
        if let Some(commit) = self.cluster.commit(|_| ()) {
            self.cluster.publish(commit.revision, commit.kind_versions);
        }
    }
}
