//! What the follower and the programmer record, and what follows for the flows: from the difference of the states that
//! are handed to the backend one after the other, and from commits, which say what departed.
//!
//! ```text
//!   commit ────────▶ Departed: absent for seconds ──┐                              ┌─▶ connections to be reset
//!   handed state ──▶ half_open, withdrawn ──────────┼─ not outdated in the kernel ─┼─▶ half-open connections, and
//!   call succeeds ─▶ is_udp_due, is_half_open_due ──┘                              └─▶ UDP flows to be deleted
//! ```

use std::{collections::BTreeSet, mem, sync::Arc, time::Instant};

use proto::{
    model::{Endpoint, Protocol, ServicePortKey},
    state::ServicePortChange,
};
use runtime::{Excess, failure::CountedLog};
use tokio::sync::watch;
use tracing::warn;

use super::{
    Recorded,
    half_open::{ChangedPorts, HalfOpenPorts, MAX_DEPARTED},
    resets::{Departed, Due},
    udp::{WithdrawnVips, lost_vips},
};
use crate::{Changes, DepartedEndpoints, NodeState, ServicePortState, dataplane::all_vips, sync::Programmed};

/// The most VIPs that were withdrawn and wait for a cleanup; the namespaces with the most give way. Flows to others
/// stay until their clients end them.
const MAX_WITHDRAWN: usize = 65_536;

/// How many of them remain when there were more, because not each further one may cost a pass over all of them.
const KEPT_WITHDRAWN: usize = MAX_WITHDRAWN / 8 * 7;

/// The most endpoints that departed and wait for a cleanup; the namespaces with the most give way. Half-open
/// connections to others stay.
const MAX_WAITING: usize = 16_384;

/// What the follower and the programmer have told the thread, and what of it is not done yet: UDP flows and half-open
/// connections to be deleted, and connections to be reset.
#[derive(Debug)]
pub(crate) struct PendingFlows {
    /// The newest state, which is programmed or about to be.
    pub(super) state: NodeState,
    /// What the kernel lacks of it. What concerns a service port that is outdated in the kernel waits.
    kernel: watch::Receiver<Programmed>,
    /// The TCP service ports whose half-open connections may be misled by a change, and are deleted when that is
    /// programmed.
    half_open: ChangedPorts,
    /// The VIPs that UDP service ports have lost, and whose flows were not deleted yet.
    withdrawn: WithdrawnVips,
    /// The namespaces with changes of which something finds no room.
    overflows: CountedLog<Arc<str>>,
    /// The endpoints whose connections may have to be reset.
    pub(super) departed: Departed,
    /// Whether UDP flows may be stale since the last cleanup.
    is_udp_due: bool,
    /// Whether a change that is programmed may mislead half-open connections since the last cleanup.
    is_half_open_due: bool,
    /// Changes with what UDP flows are compared with.
    udp_version: u64,
    /// Whether a frontend has confirmed the state. Until then no flow is touched, because a state from the file, or of
    /// a frontend that is behind, may lack endpoints that exist.
    pub(super) is_confirmed: bool,
}

/// What UDP flows are compared with: the newest state, and the service ports that the kernel may have otherwise.
#[derive(Debug)]
pub(super) struct UdpState {
    pub(super) state: NodeState,
    pub(super) except: BTreeSet<ServicePortKey>,
}

impl PendingFlows {
    /// `state`: what the kernel may have.
    pub(super) fn new(state: NodeState, kernel: watch::Receiver<Programmed>) -> Self {
        Self {
            state,
            kernel,
            half_open: ChangedPorts::new(),
            withdrawn: WithdrawnVips::new(),
            overflows: CountedLog::default(),
            departed: Departed::default(),
            is_udp_due: false,
            is_half_open_due: false,
            udp_version: 0,
            is_confirmed: false,
        }
    }

    // === what is recorded ===

    /// A commit, at a cost proportional to the change. `state` is the committed one. `departed`: the endpoints that
    /// left service ports; `None`: the commit before is not comparable, and what departed until then is not to be
    /// reset.
    pub(crate) fn committed(
        &mut self,
        departed: Option<DepartedEndpoints>,
        changes: &Changes,
        state: &NodeState,
    ) -> Recorded {
        let next_reset = self.next_reset();
        self.departed.committed(departed, changes, state, Instant::now());

        let has_revoked = !self.departed.revoked.is_empty();
        if has_revoked || self.next_reset() != next_reset { Recorded::Due } else { Recorded::NotDue }
    }

    /// A state is handed to the backend, which is called next if it differs from the one before. `kernel` says already
    /// that it lacks the difference. `is_confirmed`: a frontend has committed or confirmed the state.
    pub(crate) fn handed(&mut self, state: &NodeState, is_confirmed: bool) -> Recorded {
        let before = mem::replace(&mut self.state, state.clone());
        self.udp_version += u64::from(before.node() != state.node());

        let mut departed = DepartedEndpoints::new();
        for change in before.diff(state) {
            match change.key.protocol {
                Protocol::Udp => self.udp_changed(&change),
                Protocol::Tcp => {
                    // A connection may be older than a new VIP, and is not translated.
                    if changes_vips(&change) {
                        self.half_open.entry(change.key.clone()).or_default();
                    }
                    departed.extend(change.departed());
                }
                Protocol::Sctp => {}
            }
        }
        self.add_half_open(departed);

        let was_confirmed = mem::replace(&mut self.is_confirmed, is_confirmed);
        if is_confirmed && !was_confirmed { Recorded::Due } else { Recorded::NotDue }
    }

    /// A call of the backend has succeeded. `tried`: the service ports that it has programmed, if `kernel` does not say
    /// otherwise. `concerns_all`: flows to others may be stale, too, or `kernel` says of others that they are outdated.
    pub(crate) fn programmed<'a>(
        &mut self,
        concerns_all: bool,
        tried: impl Iterator<Item = &'a ServicePortKey>,
    ) -> Recorded {
        let kernel = self.kernel.borrow();
        let mut concerns_udp = concerns_all;
        for key in tried.filter(|key| !kernel.is_outdated(key)) {
            concerns_udp |= key.protocol == Protocol::Udp;
            if self.state.service_port(key).is_none() {
                self.half_open.remove(key);
            }
            self.is_half_open_due |= self.half_open.contains_key(key);
        }

        self.is_udp_due |= concerns_udp;
        self.udp_version += u64::from(concerns_udp);
        Recorded::Due
    }

    /// A UDP service port changes.
    fn udp_changed(&mut self, change: &ServicePortChange<'_>) {
        let lost = lost_vips(change).into_iter();
        self.add_withdrawn(lost.map(|vip| (vip, change.key.clone())));
        self.udp_version += 1;
    }

    /// Adds endpoints that departed, and forgets those beyond [`MAX_WAITING`].
    pub(super) fn add_half_open(&mut self, departed: DepartedEndpoints) {
        if departed.is_empty() {
            return;
        }
        for (key, endpoints) in departed {
            add_departed(&mut self.half_open, key, endpoints);
        }

        let waiting = self.half_open.iter().map(|(key, endpoints)| (key.namespace.clone(), endpoints.len()));
        let mut excess = Excess::beyond(MAX_WAITING, waiting);
        excess.owners().for_each(|namespace| self.log_overflow(namespace));
        for (key, endpoints) in &mut self.half_open {
            endpoints.retain(|_| !excess.take(&key.namespace));
        }
    }

    /// Adds VIPs to those that were withdrawn.
    fn add_withdrawn(&mut self, vips: impl IntoIterator<Item = <WithdrawnVips as IntoIterator>::Item>) {
        self.withdrawn.extend(vips);
        if self.withdrawn.len() <= MAX_WITHDRAWN {
            return;
        }

        let namespaces = self.withdrawn.values().map(|key| (key.namespace.clone(), 1));
        let mut excess = Excess::beyond(KEPT_WITHDRAWN, namespaces);
        excess.owners().for_each(|namespace| self.log_overflow(namespace));
        self.withdrawn.retain(|_, key| !excess.take(&key.namespace));
    }

    /// Something of a change of this namespace finds no room.
    fn log_overflow(&mut self, namespace: &Arc<str>) {
        if let Some(changes) = self.overflows.record(namespace.clone()) {
            let event = "too many changes of a namespace at once: some of its UDP flows and half-open connections stay";
            warn!(%namespace, changes, "{event}");
        }
    }

    // === what follows ===

    /// Whether UDP flows may be stale.
    pub(super) fn is_udp_due(&self) -> bool {
        self.is_confirmed && self.is_udp_due
    }

    /// Whether a change that is programmed may mislead half-open connections.
    pub(super) fn is_half_open_due(&self) -> bool {
        self.is_confirmed && self.is_half_open_due
    }

    /// Takes the VIPs whose flows are to be deleted, if UDP flows may be stale. Those that are withdrawn meanwhile wait
    /// for the next cleanup: this one has missed flows to them. During a reconcile they are kept for the next one, too,
    /// because the kernel may have their old rules, and translate further packets, until it ends.
    pub(super) fn take_udp(&mut self) -> Option<WithdrawnVips> {
        if !self.is_udp_due() {
            return None;
        }
        self.is_udp_due = false;
        let kernel = self.kernel.borrow();
        let taken: WithdrawnVips = self.withdrawn.extract_if(.., |_, key| !kernel.is_outdated(key)).collect();
        if kernel.is_reconciling() {
            self.withdrawn.extend(taken.clone());
        }
        Some(taken)
    }

    /// A cleanup with these VIPs has failed. Those that were withdrawn again meanwhile had another owner.
    pub(super) fn put_back_udp(&mut self, mut withdrawn: WithdrawnVips) {
        withdrawn.retain(|vip, _| !self.withdrawn.contains_key(vip));
        self.add_withdrawn(withdrawn);
        self.is_udp_due = true;
    }

    /// Which version of [`Self::udp`] there is; `None` while the state is not confirmed.
    pub(super) fn udp_version(&self) -> Option<u64> {
        self.is_confirmed.then_some(self.udp_version)
    }

    /// What UDP flows are compared with now.
    pub(super) fn udp(&self) -> UdpState {
        let kernel = self.kernel.borrow();
        let except = kernel.outdated().filter(|key| key.protocol == Protocol::Udp).cloned();
        UdpState { state: self.state.clone(), except: except.collect() }
    }

    /// Takes the TCP service ports whose half-open connections are to be deleted. Without a change that misleads any
    /// there are none.
    pub(super) fn take_half_open(&mut self) -> Option<HalfOpenPorts> {
        if !self.is_half_open_due() {
            return None;
        }
        self.is_half_open_due = false;
        let kernel = self.kernel.borrow();
        let ports = self.half_open.extract_if(.., |key, _| !kernel.is_outdated(key)).collect();
        Some(HalfOpenPorts { ports, state: self.state.clone() })
    }

    /// A pass over the connections has failed.
    pub(super) fn put_back_half_open(&mut self, ports: ChangedPorts) {
        ports.into_iter().for_each(|(key, departed)| add_departed(&mut self.half_open, key, departed));
        self.is_half_open_due = true;
    }

    /// When the next connections are due to be reset. None are while the kernel may lead clients to their endpoint.
    pub(super) fn next_reset(&self) -> Option<Instant> {
        if !self.is_confirmed {
            return None;
        }
        let kernel = self.kernel.borrow();
        self.departed.next_due(|key| !kernel.is_outdated(key))
    }

    pub(super) fn due_resets(&mut self, now: Instant) -> Due {
        let kernel = self.kernel.borrow();
        self.departed.due(&self.state, |key| !kernel.is_outdated(key), now)
    }

    /// Leaves out what is not due any more: all of it without a state that is confirmed.
    pub(super) fn retain_due(&self, due: &mut Due) {
        if self.is_confirmed { self.departed.retain_due(due) } else { due.ports.clear() }
    }
}

/// Whether a service port gets or loses a VIP.
fn changes_vips(change: &ServicePortChange<'_>) -> bool {
    let vips = |service: &ServicePortState| all_vips(&service.port).collect::<Vec<_>>();
    change.before.map(vips) != change.after.map(vips)
}

/// Adds endpoints, up to [`MAX_DEPARTED`] of each service port.
fn add_departed(ports: &mut ChangedPorts, key: ServicePortKey, departed: impl IntoIterator<Item = Endpoint>) {
    let known = ports.entry(key).or_default();
    let room = MAX_DEPARTED.saturating_sub(known.len());
    known.extend(departed.into_iter().take(room).map(|endpoint| Endpoint { terminating: false, ..endpoint }));
}

#[cfg(test)]
mod tests;
