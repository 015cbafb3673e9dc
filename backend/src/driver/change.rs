//! The input of a transaction, and its outcome.
//!
//! A VIP moves from service port A to B without two service ports having it in the kernel:
//!
//! ```text
//!   the owner changes ─▶ held: VIP ─▶ A ─┬─ A and B fit into one transaction ──▶ it moves
//!                                        ├─ they do not, or B comes first ─────▶ B waits until A has lost it
//!                                        └─ the kernel rejects A ─▶ evicted ───▶ B waits until A has lost all its VIPs
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};

use proto::model::{IpFamily, ServicePortKey};

use super::Rejection;
use crate::{
    NodeState,
    dataplane::{Vip, VipOwnership},
};

/// The input of the next transaction.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The state to reach.
    pub state: &'a NodeState,
    /// Which service port each VIP belongs to.
    pub ownership: &'a VipOwnership,
    pub(super) held: &'a HeldVips,
    /// Rejected service ports that give up their VIPs, because others own some of them.
    pub(super) evicted: &'a BTreeSet<ServicePortKey>,
    /// Whether a VIP may wait for its release by another service port, so that [`Self::owns`] depends on the
    /// transaction.
    pub is_contested: bool,
    /// Whether a VIP is released in an earlier transaction than the one in which its owner gets it, since both do not
    /// fit into this one.
    pub(super) releases_first: bool,
    /// The service ports to program.
    pub service_ports: Vec<ServicePortKey>,
    /// The same, so that each can be found at once.
    pub(super) members: HashSet<ServicePortKey>,
    /// Whether the facts of the node or the cluster changed, from which the base ruleset follows.
    pub facts: bool,
    /// Whether no other service port is to be programmed, so that objects which none needs can be removed.
    pub is_last: bool,
    /// How many objects the transaction may write.
    pub budget: usize,
}

/// The VIPs that have got another owner, and the service ports that still have them in the kernel.
pub(super) type HeldVips = HashMap<(IpFamily, Vip), BTreeSet<ServicePortKey>>;

/// The outcome of a transaction.
#[derive(Clone, Debug)]
pub enum CommitOutcome {
    /// The kernel accepted it.
    Committed {
        /// How many objects were written.
        writes: usize,
        /// The service ports of the change that need further transactions.
        unfinished: Vec<ServicePortKey>,
    },
    /// The kernel rejected it, and nothing has changed that a later transaction would not find.
    Rejected(Rejection),
    /// The kernel rejected objects that an IP family needs. It has to be read again, to program the other family alone.
    UnusableFamily,
    /// The kernel rejected a part of it for this reason, and has to be read again.
    Unknown(String),
}

// === impl Change ===

impl Change<'_> {
    /// Whether a VIP belongs to this service port, and no service port outside of the transaction has it in the kernel.
    #[must_use]
    pub fn owns(&self, key: &ServicePortKey, family: IpFamily, vip: &Vip) -> bool {
        self.ownership.owns(key, family, vip) && !self.evicted.contains(key) && !self.waits_for(family, vip)
    }

    /// Whether the transaction programs this service port.
    #[must_use]
    pub fn contains(&self, key: &ServicePortKey) -> bool {
        self.members.contains(key)
    }

    fn waits_for(&self, family: IpFamily, vip: &Vip) -> bool {
        self.held.get(&(family, *vip)).is_some_and(|holders| self.waits_for_any(holders))
    }

    /// Whether a VIP has to wait because one of its holders releases it in an earlier transaction, or in a later one.
    fn waits_for_any(&self, holders: &BTreeSet<ServicePortKey>) -> bool {
        self.releases_first || !holders.iter().all(|holder| self.contains(holder))
    }

    /// The service ports of the transaction that own a VIP which another one still has in the kernel.
    pub(super) fn waiting(&self) -> BTreeSet<ServicePortKey> {
        let waiting = self.held_and_owned().filter(|(_, holders)| self.waits_for_any(holders));
        waiting.map(|(owner, _)| owner.clone()).collect()
    }

    /// Whether a VIP moves from one service port of the transaction to another.
    pub(super) fn moves_vips(&self) -> bool {
        self.held_and_owned().any(|(_, holders)| holders.iter().any(|holder| self.contains(holder)))
    }

    /// The owner and the holders of each held VIP that a service port of the transaction owns.
    fn held_and_owned(&self) -> impl Iterator<Item = (&ServicePortKey, &BTreeSet<ServicePortKey>)> {
        let owned = self.held.iter().filter_map(|((family, vip), holders)| {
            let owner = self.ownership.owner(*family, vip)?;
            Some((owner, holders))
        });
        owned.filter(|(owner, _)| self.contains(owner))
    }
}
