//! Flows with the kernel that they read, for tests.

use std::{
    collections::BTreeSet,
    ops::{Deref, DerefMut},
};

use proto::model::ServicePortKey;
use tokio::sync::watch;

use super::{PendingFlows, Recorded};
use crate::{Changes, NodeState, backend::Work, sync::Programmed};

/// What the programmer publishes and records.
#[derive(Debug, Default)]
pub(super) struct TestKernel(pub(super) watch::Sender<Programmed>);

/// Flows without a thread.
#[derive(Debug)]
pub(super) struct TestFlows {
    kernel: TestKernel,
    pending: PendingFlows,
}

impl TestKernel {
    /// A call begins.
    pub(super) fn hand(&self, pending: &mut PendingFlows, state: &NodeState) -> Recorded {
        let changed = Changes::between(&pending.state, state).service_ports;
        self.0.send_modify(|programmed| programmed.add_outdated(changed));
        pending.handed(state, pending.is_confirmed)
    }

    /// The call ends, and the kernel lacks these service ports.
    pub(super) fn report(&self, pending: &mut PendingFlows, work: Work, outdated: &[ServicePortKey]) -> Recorded {
        let mut programmed = Programmed::default();
        programmed.add_outdated(outdated.iter().cloned());
        let tried: BTreeSet<_> = self.0.send_replace(programmed).outdated().cloned().collect();
        pending.programmed(work, tried.iter())
    }
}

impl TestFlows {
    /// With a kernel that has a state, which is confirmed.
    pub(super) fn new(state: &NodeState) -> Self {
        let kernel = TestKernel::default();
        let mut pending = PendingFlows::new(state.clone(), kernel.0.subscribe());
        pending.handed(state, true);
        Self { kernel, pending }
    }

    /// A call begins.
    pub(super) fn hand(&mut self, state: &NodeState) {
        self.kernel.hand(&mut self.pending, state);
    }

    /// A call ends, and the kernel lacks these service ports.
    pub(super) fn report(&mut self, outdated: &[ServicePortKey]) {
        self.report_of(Work::Apply, outdated);
    }

    pub(super) fn report_of(&mut self, work: Work, outdated: &[ServicePortKey]) {
        self.kernel.report(&mut self.pending, work, outdated);
    }

    /// Whether a frontend has confirmed the state is known without a call.
    pub(super) fn set_confirmed(&mut self, is_confirmed: bool) -> Recorded {
        let state = self.pending.state.clone();
        self.pending.handed(&state, is_confirmed)
    }
}

impl Deref for TestFlows {
    type Target = PendingFlows;

    fn deref(&self) -> &PendingFlows {
        &self.pending
    }
}

impl DerefMut for TestFlows {
    fn deref_mut(&mut self) -> &mut PendingFlows {
        &mut self.pending
    }
}
