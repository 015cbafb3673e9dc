//! Flows with the kernel that they read, for tests.

use std::{
    collections::BTreeSet,
    ops::{Deref, DerefMut},
};

use proto::model::{ServicePortFailure, ServicePortKey};
use tokio::sync::watch;

use super::{PendingFlows, Recorded};
use crate::{NodeState, SyncReport, backend::Work, sync::Programmed};

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
        self.0.send_modify(|programmed| programmed.hand(&pending.state, state));
        pending.handed(state, pending.is_confirmed)
    }

    /// The call ends, and the kernel rejects these service ports.
    pub(super) fn report(&self, pending: &mut PendingFlows, work: Work, rejected: &[ServicePortKey]) -> Recorded {
        let failures = rejected.iter().map(|key| ServicePortFailure::rejected(key.clone(), "invalid argument"));
        self.end_call(pending, work, &SyncReport { failures: failures.collect(), ..SyncReport::default() })
    }

    /// The call ends, and these service ports need further ones.
    fn report_unfinished(&self, pending: &mut PendingFlows, work: Work, unfinished: BTreeSet<ServicePortKey>) {
        self.end_call(pending, work, &SyncReport { writes: 1, unfinished: Some(unfinished), ..SyncReport::default() });
    }

    fn end_call(&self, pending: &mut PendingFlows, work: Work, report: &SyncReport) -> Recorded {
        let mut told = Default::default();
        self.0.send_modify(|programmed| told = programmed.report(&pending.state, work, report));
        let (concerns_all, tried) = told;
        pending.programmed(concerns_all, tried.iter())
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

    /// A call ends, and the kernel rejects these service ports.
    pub(super) fn report(&mut self, rejected: &[ServicePortKey]) {
        self.report_of(Work::Apply, rejected);
    }

    pub(super) fn report_of(&mut self, work: Work, rejected: &[ServicePortKey]) {
        self.kernel.report(&mut self.pending, work, rejected);
    }

    /// A call ends, and these service ports need further ones.
    pub(super) fn report_unfinished(&mut self, work: Work, unfinished: BTreeSet<ServicePortKey>) {
        self.kernel.report_unfinished(&mut self.pending, work, unfinished);
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
