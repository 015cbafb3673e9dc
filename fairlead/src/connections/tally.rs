//! Counts of connections by group, in bounded memory.

use std::{collections::HashMap, hash::Hash};

use netlink::conntrack::{Entry, Stage, Traffic};
use serde::{Deserialize, Serialize};

/// The most groups of a tally: a Service that is open to the internet may have a client for each connection. The
/// connections of further groups are counted together.
const MAX_GROUPS: usize = 100_000;

/// The connections of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Established connections, and UDP flows that were answered.
    pub(crate) open: u64,
    /// Connections whose handshake is not complete, and UDP flows without an answer.
    pub(crate) half_open: u64,
    /// Connections that a peer has closed or reset. The kernel keeps them for a while, those that only one peer has
    /// closed for up to an hour.
    pub(crate) closing: u64,
    /// Packets in both directions; `None` if the kernel counts none.
    pub(crate) packets: Option<u64>,
    /// Their bytes.
    pub(crate) bytes: Option<u64>,
}

/// The connections of each group.
#[derive(Debug)]
pub(super) struct Tally<G> {
    pub(super) groups: HashMap<G, Counts>,
    /// The connections of groups that are not counted one by one.
    pub(super) others: Counts,
}

impl<G> Default for Tally<G> {
    fn default() -> Self {
        Self { groups: HashMap::new(), others: Counts::default() }
    }
}

impl<G: Eq + Hash> Tally<G> {
    pub(super) fn add(&mut self, group: G, entry: &Entry) {
        let counts = if self.groups.len() < MAX_GROUPS {
            self.groups.entry(group).or_default()
        } else {
            self.groups.get_mut(&group).unwrap_or(&mut self.others)
        };
        counts.add_entry(entry);
    }
}

impl Counts {
    fn add_entry(&mut self, entry: &Entry) {
        match entry.stage {
            Stage::Open => self.open += 1,
            Stage::HalfOpen => self.half_open += 1,
            Stage::Closing => self.closing += 1,
        }
        if let Some(Traffic { packets, bytes }) = entry.traffic {
            *self.packets.get_or_insert_default() += packets;
            *self.bytes.get_or_insert_default() += bytes;
        }
    }

    /// Adds the connections of the same group on another node.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { open, half_open, closing, packets, bytes } = other;
        self.open += open;
        self.half_open += half_open;
        self.closing += closing;
        self.packets = sum(self.packets, *packets);
        self.bytes = sum(self.bytes, *bytes);
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> u64 {
        self.open + self.half_open + self.closing
    }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
