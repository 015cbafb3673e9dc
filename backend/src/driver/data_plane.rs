//! The trait of a data plane: it reads the kernel, estimates a change, and executes one transaction.

use std::{collections::BTreeSet, future::Future, time::Duration};

use anyhow::Result;
use proto::model::{NodeInfo, ServicePort, ServicePortKey};

use super::{Applied, Change, CommitOutcome, MAX_TRANSACTION_WRITES, UsableFamilies};
use crate::{Difference, Drift, InstalledObject, Nat, NodeState, dataplane::VipOwnership};

/// A part of the kernel that service ports are programmed into.
///
/// The driver calls one method at a time and keeps the applied state between the calls.
pub trait DataPlane: Send + 'static {
    /// See [`Backend::NAME`].
    const NAME: &'static str;
    /// See [`Backend::NAT`](crate::Backend::NAT).
    const NAT: Nat = Nat::Netfilter;

    /// The objects of this backend in the kernel after a successful sync.
    type Applied: Applied;

    /// Prepares the kernel and reads its content. Changes no service port.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn observe(
        &mut self,
        state: &NodeState,
        ownership: &VipOwnership,
    ) -> impl Future<Output = Result<Synced<Self::Applied>>> + Send;

    /// Whether no other process can have changed the kernel since it was read, so that it need not be read again.
    fn is_untouched(&mut self) -> bool {
        false
    }

    /// How many objects the next transaction may write. At most [`MAX_TRANSACTION_WRITES`], unless the kernel would
    /// not serve traffic between two transactions.
    fn budget(&self, _: &Self::Applied) -> usize {
        MAX_TRANSACTION_WRITES
    }

    /// The number of objects that programming one service port would write.
    fn writes(&self, applied: &mut Self::Applied, change: &Change<'_>, key: &ServicePortKey) -> usize;

    /// Programs as much of a change as one transaction may write, on top of what was applied. If it is rejected,
    /// `applied` is as before.
    ///
    /// # Errors
    /// When another transaction would fail as well. The content of the kernel is unknown then.
    fn commit(
        &mut self,
        applied: &mut Self::Applied,
        change: &Change<'_>,
    ) -> impl Future<Output = Result<CommitOutcome>> + Send;

    /// The IP families that are programmed.
    fn families(&self) -> &UsableFamilies;

    /// Whether a family that cannot be programmed is to be tried again now: it is due, and may be usable. A check that
    /// costs less than the attempt, which is a reconcile.
    fn may_be_usable(&mut self) -> impl Future<Output = bool> + Send {
        async { true }
    }

    /// Which other service ports have to be programmed because these have changed between the first state and the
    /// second one.
    fn dependents(
        &self,
        _: &mut Self::Applied,
        _: &NodeState,
        _: &NodeState,
        _: &BTreeSet<ServicePortKey>,
    ) -> BTreeSet<ServicePortKey> {
        BTreeSet::new()
    }

    /// Which service ports have to be programmed again because the node's facts changed; `None`: none of them.
    fn node_dependents(&self, before: &NodeInfo, after: &NodeInfo) -> Option<fn(&ServicePort) -> bool>;

    /// See [`Backend::drifted`]. `applied` is `None` when the content of the kernel is unknown.
    fn drifted(&mut self, applied: &mut Option<Self::Applied>) -> impl Future<Output = Drift> + Send;

    /// See [`Backend::cleanup`].
    ///
    /// # Errors
    /// When an object of ours could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// The objects that [`Self::cleanup`] would remove.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn installed_objects(&mut self) -> impl Future<Output = Result<Vec<InstalledObject>>> + Send;

    /// See [`Backend::is_programmed`](crate::Backend::is_programmed).
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn is_programmed(&mut self) -> impl Future<Output = Result<bool>> + Send {
        async { Ok(!self.installed_objects().await?.is_empty()) }
    }

    /// How long locks of other processes were waited for since the last call.
    fn lock_wait(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// A [`DataPlane`] that can record its writes instead of executing them.
pub trait DryRunPlane: DataPlane {
    /// Writes nothing to the kernel from now on. Discards earlier records.
    ///
    /// # Errors
    /// When the kernel's interface has failed. Nothing may be written then either.
    fn begin_dry_run(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Describes the recorded writes, and discards them.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn differences(
        &mut self,
        state: &NodeState,
        ownership: &VipOwnership,
        applied: &Self::Applied,
    ) -> impl Future<Output = Result<Vec<Difference>>> + Send;
}

/// The kernel as it was read, or prepared.
#[derive(Clone, Debug)]
pub struct Synced<A> {
    /// The objects of this backend in the kernel.
    pub applied: A,
    /// How many objects were written.
    pub writes: usize,
}
