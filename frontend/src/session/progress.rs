//! How much a client has received and programmed of what it was sent. Commits and bookmarks of a stream are numbered
//! from 1, and an Ack names the last number that was received and the last one that is programmed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::model::Revision;

use crate::streams::PartlyProgrammed;

use super::state::NO_REVISION;

/// The most commits and bookmarks whose revisions are kept until they are programmed. A node rarely lags more than one.
const MAX_REVISIONS: usize = 64;

/// The progress of one client.
#[derive(Debug, Default)]
pub(super) struct ClientProgress {
    /// The number of the last commit or bookmark that the client has acknowledged; 0: none.
    acked: u64,
    /// The number of the newest commit or bookmark that the client has programmed, according to its last Ack.
    programmed: u64,
    /// The revisions of the commits and bookmarks by number, from the newest one that is programmed on.
    revisions: BTreeMap<u64, Revision>,
    /// The last revision that the client has acknowledged, and what it has not programmed of it.
    partly: PartlyProgrammed,
    /// The first commit or bookmark of this stream, or since a mismatch: a client that has programmed it has had
    /// everything. `None`: none was sent, so that a mismatch that is not repaired keeps the node from counting as
    /// programmed.
    first: Option<u64>,
}

impl ClientProgress {
    /// Records that a commit or bookmark is sent, which brings the client to this revision.
    pub(super) fn sent(&mut self, revision: Revision) {
        let number = self.next_number();
        if self.revisions.len() == MAX_REVISIONS {
            // The node counts as having less, until it has programmed the new one.
            self.revisions.pop_last();
        }
        self.revisions.insert(number, revision);
        self.first.get_or_insert(number);
    }

    /// Records that the client has acknowledged the commit or bookmark in flight.
    pub(super) fn acknowledged(&mut self, revision: Revision) {
        self.acked += 1;
        self.partly.revision = revision;
    }

    /// Records what an Ack says about the kernel.
    pub(super) fn programmed(&mut self, number: u64, unfinished_namespaces: BTreeSet<Arc<str>>) {
        self.programmed = number;
        self.partly.unfinished_namespaces = unfinished_namespaces;
    }

    /// What the client has does not count as everything, until it has programmed what is sent next.
    pub(super) fn distrust(&mut self) {
        self.first = None;
    }

    /// What the client has acknowledged counts as everything.
    pub(super) fn trust_acked(&mut self) {
        self.first = Some(self.acked);
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// The last revision that the client has acknowledged.
    pub(super) fn acked_revision(&self) -> Revision {
        self.partly.revision
    }

    /// The number of the commit or bookmark in flight, or of the next one.
    pub(super) fn next_number(&self) -> u64 {
        self.acked + 1
    }

    /// Whether this number in an Ack says for the first time that everything is programmed.
    pub(super) fn is_completed_by(&self, programmed: u64) -> bool {
        programmed == self.acked && self.programmed < self.acked
    }

    /// Whether everything that the client has acknowledged is programmed, and nothing is missing in it.
    pub(super) fn is_complete(&self) -> bool {
        self.programmed == self.acked && self.first.is_some()
    }

    /// Whether the client has programmed everything at some time on this stream, and since the last mismatch.
    pub(super) fn had_everything(&self) -> bool {
        self.first.is_some_and(|first| self.programmed >= first)
    }

    /// The newest revision that is programmed as a whole. The ones before it are forgotten.
    pub(super) fn programmed_revision(&mut self) -> Revision {
        let known = self.revisions.range(..=self.programmed).next_back();
        let (number, revision) = known.map_or((0, NO_REVISION), |(number, revision)| (*number, *revision));

        self.revisions.retain(|kept, _| *kept >= number);
        revision
    }

    /// What is programmed of the last acknowledged revision; nothing if it does not have everything.
    pub(super) fn partly_programmed(&self) -> PartlyProgrammed {
        match self.first {
            Some(first) if self.acked >= first => self.partly.clone(),
            _ => PartlyProgrammed::default(),
        }
    }
}
