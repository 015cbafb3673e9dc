//! The changes that the follower and the programmer record, and the work for the flows that follows from them. Changes
//! are the differences of the states that are handed to the backend one after the other, and the endpoints that depart
//! with a commit.
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

/// The most VIPs that were withdrawn and wait for a cleanup. Beyond it the namespaces with most of them lose some;
/// flows to these stay until their clients end them.
const MAX_WITHDRAWN: usize = 65_536;

/// The VIPs that remain when [`MAX_WITHDRAWN`] is exceeded: fewer, because not each further VIP may cost a pass over
/// all of them.
const KEPT_WITHDRAWN: usize = MAX_WITHDRAWN / 8 * 7;

/// The most endpoints that departed and wait for a cleanup. Beyond it the namespaces with most of them lose some;
/// half-open connections to these stay.
const MAX_WAITING: usize = 16_384;

/// The work that the thread has not done yet: UDP flows and half-open connections to be deleted, and connections to be
/// reset.
#[derive(Debug)]
pub(crate) struct PendingFlows {
    /// The newest state, which is programmed or about to be.
    pub(super) state: NodeState,
    /// What the kernel lacks of `state`. Work on a service port that is outdated in the kernel waits.
    kernel: watch::Receiver<Programmed>,
    /// The TCP service ports whose half-open connections may be misled by a change, and are deleted when that is
    /// programmed.
    half_open: ChangedPorts,
    /// The VIPs that UDP service ports have lost, and to which flows are not deleted yet.
    withdrawn: WithdrawnVips,
    /// The namespaces that exceed one of the limits.
    overflows: CountedLog<Arc<str>>,
    /// The endpoints whose connections may have to be reset.
    pub(super) departed: Departed,
    /// Whether UDP flows may be stale since the last cleanup.
    is_udp_due: bool,
    /// Whether a change that is programmed may mislead half-open connections since the last cleanup.
    is_half_open_due: bool,
    /// Counts the changes of the state that UDP flows are compared with.
    udp_version: u64,
    /// Whether a frontend has confirmed the state. Until then no flow is touched, because a state from the file, or of
    /// a frontend that is behind, may lack endpoints that exist.
    pub(super) is_confirmed: bool,
}

/// The newest state, with which UDP flows are compared, except for service ports that the kernel may have otherwise.
#[derive(Debug)]
pub(super) struct UdpState {
    pub(super) state: NodeState,
    pub(super) except: BTreeSet<ServicePortKey>,
}

/// The newest [`UdpState`], beside a version of it.
#[derive(Debug)]
pub(super) enum NewestUdp {
    /// No frontend has confirmed the state: no flow is stale.
    Unconfirmed,
    Unchanged,
    Changed {
        version: u64,
        state: UdpState,
    },
}

impl PendingFlows {
    /// Nothing to do, with a kernel that may have this state.
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

    // === changes ===

    /// Records a commit, which leads to `state`, at a cost proportional to the change. `departed` are the endpoints
    /// that left service ports; `None` if the commit before is not comparable, so that no earlier departure is to be
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

    /// Records that a state is handed to the backend, which is called next if the state differs from the last one.
    /// `kernel` says already that it lacks the difference. `is_confirmed`: a frontend has committed or confirmed the
    /// state.
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

    /// Records that a call of the backend has succeeded. It has programmed the service ports in `tried`, except for
    /// those that `kernel` says are outdated. `concerns_all`: flows to other service ports may be stale, too, or
    /// `kernel` says that others are outdated now.
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

    /// Adds endpoints that departed, and forgets the endpoints beyond [`MAX_WAITING`].
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

    /// Adds withdrawn VIPs.
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

    /// A change of this namespace exceeds a limit.
    fn log_overflow(&mut self, namespace: &Arc<str>) {
        if let Some(changes) = self.overflows.record(namespace.clone()) {
            let event = "too many changes of a namespace at once: some of its UDP flows and half-open connections stay";
            warn!(%namespace, changes, "{event}");
        }
    }

    // === work ===

    /// Whether UDP flows may be stale.
    pub(super) fn is_udp_due(&self) -> bool {
        self.is_confirmed && self.is_udp_due
    }

    /// Whether a change that is programmed may mislead half-open connections.
    pub(super) fn is_half_open_due(&self) -> bool {
        self.is_confirmed && self.is_half_open_due
    }

    /// Takes the withdrawn VIPs to which flows are to be deleted, if UDP flows may be stale. VIPs that are withdrawn
    /// during the cleanup wait for the next one, because this cleanup may have missed flows to them. During a reconcile
    /// all VIPs are kept for the next cleanup, too, because the kernel may have their old rules, and translate further
    /// packets, until the reconcile ends.
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

    /// A cleanup with these VIPs has failed. A VIP that was withdrawn again meanwhile had another owner.
    pub(super) fn put_back_udp(&mut self, mut withdrawn: WithdrawnVips) {
        withdrawn.retain(|vip, _| !self.withdrawn.contains_key(vip));
        self.add_withdrawn(withdrawn);
        self.is_udp_due = true;
    }

    /// The state that UDP flows are compared with now, unless that is the version with which they were `compared`.
    pub(super) fn newest_udp(&self, compared: Option<u64>) -> NewestUdp {
        if !self.is_confirmed {
            NewestUdp::Unconfirmed
        } else if compared == Some(self.udp_version) {
            NewestUdp::Unchanged
        } else {
            NewestUdp::Changed { version: self.udp_version, state: self.udp() }
        }
    }

    /// The state that UDP flows are compared with now.
    pub(super) fn udp(&self) -> UdpState {
        let kernel = self.kernel.borrow();
        let except = kernel.outdated().filter(|key| key.protocol == Protocol::Udp).cloned();
        UdpState { state: self.state.clone(), except: except.collect() }
    }

    /// Takes the TCP service ports whose half-open connections are to be deleted; `None` if no change misleads any.
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

    /// When the next connections are due to be reset: not while the kernel may lead clients to their endpoint.
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

    /// Leaves out the endpoints that are not due any more: all of them without a confirmed state.
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
