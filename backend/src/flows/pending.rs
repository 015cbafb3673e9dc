//! What the follower and the programmer record, and what follows for the flows: from the difference of the states that
//! are programmed one after the other, and from commits, which say what departed.
//!
//! ```text
//!   commit ─▶ departed ──────────────┬────────────────▶ Departed: absent for seconds ─▶ connections to be reset
//!   state ─▶ diff to the one before ─┴─▶ changed ─ programmed ─▶ UDP is due, VIPs withdrawn, half_open ─▶ cleanup
//! ```

use std::{
    collections::{BTreeSet, btree_map::Entry},
    mem,
    sync::Arc,
    time::Instant,
};

use proto::model::{Endpoint, Protocol, ServicePortKey};
use runtime::{Excess, failure::CountedLog};
use tracing::warn;

use super::{
    half_open::{ChangedPorts, HalfOpenPorts, MAX_DEPARTED},
    resets::{Departed, Due},
    udp::{WithdrawnVips, lost_vips},
};
use crate::{Changes, DepartedEndpoints, NodeState, ServicePortState, ascending::ascending, dataplane::all_vips};

/// The most VIPs that were withdrawn and wait for a cleanup; the namespaces with the most give way. Flows to others
/// stay until their clients end them.
const MAX_WITHDRAWN: usize = 65_536;

/// How many of them remain when there were more, because not each further one may cost a pass over all of them.
const KEPT_WITHDRAWN: usize = MAX_WITHDRAWN / 8 * 7;

/// The most endpoints that departed and wait until that is programmed; the namespaces with the most give way. Half-open
/// connections to others stay.
const MAX_WAITING: usize = 16_384;

/// What the follower and the programmer have told the thread, and what of it is not done yet: UDP flows and half-open
/// connections to be deleted, and connections to be reset.
#[derive(Debug)]
pub(crate) struct PendingFlows {
    /// The newest state, which is programmed or about to be.
    pub(super) state: NodeState,
    /// The service ports that the kernel may still have as they were: those of UDP that changed, and those of TCP whose
    /// change may mislead connections, with the endpoints that departed.
    changed: ChangedPorts,
    /// Those of TCP whose change is programmed.
    half_open: ChangedPorts,
    /// The VIPs that UDP service ports have lost, and whose flows were not deleted yet.
    withdrawn: WithdrawnVips,
    /// The namespaces with changes of which something finds no room.
    overflows: CountedLog<Arc<str>>,
    /// The endpoints whose connections may have to be reset.
    pub(super) departed: Departed,
    is_node_changed: bool,
    /// Whether UDP flows may be stale since the last cleanup.
    is_udp_due: bool,
    /// Changes with what UDP flows are compared with.
    udp_version: u64,
    /// Whether a frontend has confirmed the state that is programmed. Until then no flow is touched: a state from the
    /// file, or of a frontend that is behind, may lack endpoints that exist.
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
    pub(super) fn new(state: NodeState) -> Self {
        Self {
            state,
            changed: ChangedPorts::new(),
            half_open: ChangedPorts::new(),
            withdrawn: WithdrawnVips::new(),
            overflows: CountedLog::default(),
            departed: Departed::default(),
            is_node_changed: false,
            is_udp_due: false,
            udp_version: 0,
            is_confirmed: false,
        }
    }

    // === what is recorded; each returns whether the thread may have something to do ===

    /// A commit, at a cost proportional to the change. `state` is the committed one. `departed`: the endpoints that
    /// left service ports; `None`: the commit before is not comparable, and what departed until then is not to be
    /// reset.
    pub(crate) fn committed(
        &mut self,
        departed: Option<DepartedEndpoints>,
        changes: &Changes,
        state: &NodeState,
    ) -> bool {
        let next = self.next_reset();
        let is_waiting = departed.as_ref().is_some_and(|departed| !departed.is_empty());
        for (key, endpoints) in departed.iter().flatten() {
            let waiting = self.changed.entry(key.clone()).or_default();
            waiting.extend(endpoints.iter().map(|endpoint| Endpoint { terminating: false, ..*endpoint }));
        }
        for key in &changes.service_ports {
            let Entry::Occupied(mut known) = self.changed.entry(key.clone()) else { continue };
            let service = state.service_port(key);
            known.get_mut().retain(|endpoint| service.is_some_and(|service| !service.has_endpoint(endpoint)));
        }
        self.departed.committed(departed, changes, state, Instant::now());
        if is_waiting {
            self.limit_waiting();
        }
        !self.departed.revoked.is_empty() || self.next_reset() != next
    }

    /// Forgets endpoints beyond [`MAX_WAITING`]. Their connections are not reset: it would not be known when their
    /// departure is programmed.
    fn limit_waiting(&mut self) {
        let waiting = self.changed.iter().map(|(key, endpoints)| (key.namespace.clone(), endpoints.len()));
        let mut excess = Excess::beyond(MAX_WAITING, waiting);
        excess.owners().for_each(|namespace| self.log_overflow(namespace));

        for (key, endpoints) in &mut self.changed {
            for endpoint in endpoints.extract_if(.., |_| excess.take(&key.namespace)) {
                self.departed.forget(key, &endpoint);
            }
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

    /// The state that is about to be programmed, at a cost proportional to the change.
    pub(crate) fn prepare(&mut self, state: &NodeState) -> bool {
        let before = mem::replace(&mut self.state, state.clone());
        self.is_node_changed = before.node() != state.node();
        self.udp_version += u64::from(self.is_node_changed);
        for change in before.diff(state) {
            let key = change.key;
            let vips = |service: &ServicePortState| all_vips(&service.port).collect::<Vec<_>>();
            match key.protocol {
                Protocol::Udp => {
                    let lost = lost_vips(&change).into_iter().map(|vip| (vip, key.clone()));
                    self.add_withdrawn(lost);
                    self.udp_version += 1;
                }
                Protocol::Tcp if change.before.map(vips) != change.after.map(vips) => {}
                _ => continue,
            }
            self.changed.entry(key.clone()).or_default();
        }
        false
    }

    /// A call has programmed what was recorded last, except for these service ports: some that cannot be, and some that
    /// will be.
    pub(crate) fn programmed<'a>(
        &mut self,
        is_reconcile: bool,
        failed: impl Iterator<Item = &'a ServicePortKey>,
    ) -> bool {
        let Self { state, changed, half_open, .. } = self;
        let failed: BTreeSet<_> = failed.collect();
        // A large change has many transactions: each costs one pass over what is unfinished.
        let mut is_failed = ascending(failed.iter().copied());
        // Those that departed from a state that is not programmed yet are in this one.
        let has_any = |key: &ServicePortKey, departed: &BTreeSet<Endpoint>| {
            let service = state.service_port(key);
            service.is_some_and(|service| departed.iter().any(|endpoint| service.has_endpoint(endpoint)))
        };
        let is_programmed =
            |key: &ServicePortKey, departed: &mut BTreeSet<Endpoint>| !is_failed(key) && !has_any(key, departed);
        self.is_udp_due |= is_reconcile || self.is_node_changed;
        for (key, departed) in changed.extract_if(.., is_programmed) {
            match key.protocol {
                Protocol::Udp => {
                    self.is_udp_due = true;
                    self.udp_version += 1;
                }
                _ if state.service_port(&key).is_none() => {}
                _ => add_departed(half_open, key, departed),
            }
        }
        for key in failed.iter().copied().filter(|key| key.protocol == Protocol::Udp) {
            if changed.insert(key.clone(), BTreeSet::new()).is_none() {
                self.udp_version += 1;
            }
        }
        self.is_confirmed
    }

    /// A frontend has confirmed the state, which is programmed.
    pub(crate) fn confirmed(&mut self) -> bool {
        let is_new = !mem::replace(&mut self.is_confirmed, true);
        self.is_udp_due |= is_new;
        is_new
    }

    /// The state is older than what was programmed before.
    pub(crate) fn rolled_back(&mut self) -> bool {
        self.is_confirmed = false;
        false
    }

    // === what follows ===

    /// Whether UDP flows may be stale.
    pub(super) fn is_udp_due(&self) -> bool {
        self.is_confirmed && self.is_udp_due
    }

    /// Whether a change that is programmed may mislead half-open connections.
    pub(super) fn is_half_open_due(&self) -> bool {
        self.is_confirmed && self.half_open.keys().any(|key| !self.changed.contains_key(key))
    }

    /// Takes the VIPs whose flows are to be deleted, if UDP flows may be stale. Those that are withdrawn meanwhile wait
    /// for the next cleanup: this one has missed flows to them.
    pub(super) fn take_udp(&mut self) -> Option<WithdrawnVips> {
        if !self.is_udp_due() {
            return None;
        }
        self.is_udp_due = false;
        let Self { changed, withdrawn, .. } = self;
        Some(withdrawn.extract_if(.., |_, key| !changed.contains_key(key)).collect())
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
        let except = self.changed.keys().filter(|key| key.protocol == Protocol::Udp).cloned();
        UdpState { state: self.state.clone(), except: except.collect() }
    }

    /// Takes the TCP service ports whose half-open connections are to be deleted. Without a change that misleads any
    /// there are none.
    pub(super) fn take_half_open(&mut self) -> Option<HalfOpenPorts> {
        if !self.is_half_open_due() {
            return None;
        }
        let Self { changed, half_open, .. } = self;
        let ports = half_open.extract_if(.., |key, _| !changed.contains_key(key)).collect();
        Some(HalfOpenPorts { ports, state: self.state.clone() })
    }

    /// A pass over the connections has failed.
    pub(super) fn put_back_half_open(&mut self, ports: ChangedPorts) {
        ports.into_iter().for_each(|(key, departed)| add_departed(&mut self.half_open, key, departed));
    }

    /// When the next connections are due to be reset. None are while the kernel may lead clients to their endpoint.
    pub(super) fn next_reset(&self) -> Option<Instant> {
        let next = || self.departed.next_due(|key| !self.changed.contains_key(key));
        self.is_confirmed.then(next).flatten()
    }

    pub(super) fn due_resets(&mut self, now: Instant) -> Due {
        self.departed.due(&self.state, |key| !self.changed.contains_key(key), now)
    }

    /// Leaves out what is not due any more: all of it without a state that is confirmed.
    pub(super) fn retain_due(&self, due: &mut Due) {
        if self.is_confirmed { self.departed.retain_due(due) } else { due.ports.clear() }
    }
}

/// Adds endpoints, up to [`MAX_DEPARTED`] of each service port.
fn add_departed(ports: &mut ChangedPorts, key: ServicePortKey, departed: impl IntoIterator<Item = Endpoint>) {
    let known = ports.entry(key).or_default();
    let room = MAX_DEPARTED.saturating_sub(known.len());
    known.extend(departed.into_iter().take(room).map(|endpoint| Endpoint { terminating: false, ..endpoint }));
}

#[cfg(test)]
mod tests;
