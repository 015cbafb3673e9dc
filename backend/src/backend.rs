//! The trait that every backend implements: make the kernel equal to a state.

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use proto::model::{IpFamily, ServicePortFailure, ServicePortKey};
use serde::Serialize;

use crate::{Changes, NodeState};

/// Programs one node's kernel.
///
/// The trait is level-triggered: `reconcile` and `apply` both get the whole desired state. A backend never sees a
/// Service, an EndpointSlice or a stream. One method is called at a time and waited for, so a call should not do more
/// than one transaction of limited size, and return what remains.
pub trait Backend: Send + 'static {
    /// Its name on the wire, in metrics and in logs: `nftables`, `iptables`, `ipvs`.
    const NAME: &'static str;
    /// The part of the kernel that translates connections to the programmed endpoints.
    const NAT: Nat = Nat::Netfilter;

    /// Makes the kernel equal to `state`, starting from what the kernel contains. Called at start, after a failure, and
    /// on drift. Writes only differences.
    ///
    /// # Errors
    /// When the kernel could not be read, or rejected a write that belongs to no single service port. The kernel is
    /// then unchanged or partly reconciled, and `reconcile` is called again after a delay.
    fn reconcile(&mut self, state: &NodeState) -> impl Future<Output = Result<SyncReport>> + Send;

    /// Whether the kernel contains anything that an earlier process has programmed. Then it may be newer than the
    /// stored state, and is left as it is until a frontend answers, for up to 10 s. Asked after a second without a
    /// frontend, and after a reboot. By default the answer is no.
    ///
    /// # Errors
    /// When the kernel could not be read. It is then left as it is, too.
    fn is_programmed(&mut self) -> impl Future<Output = Result<bool>> + Send {
        async { Ok(false) }
    }

    /// Applies one commit on top of the last success, or continues it without a change if it is
    /// [unfinished](SyncReport::unfinished). The cost is proportional to the change, and the result is the same as that
    /// of `reconcile`: the contract tests check that.
    ///
    /// # Errors
    /// As for [`Self::reconcile`], which is called next.
    fn apply(&mut self, state: &NodeState, changes: &Changes) -> impl Future<Output = Result<SyncReport>> + Send;

    /// Returns when another process has changed, or may have changed, what was applied last, or when that may be out of
    /// date; [`Self::reconcile`] is called next. Polled while there is nothing else to do, and dropped when there is. A
    /// backend that cannot detect drift never returns.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send {
        std::future::pending()
    }

    /// Removes everything that any version of this backend may have installed, and nothing else.
    ///
    /// # Errors
    /// When something could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The part of the kernel that translates connections to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nat {
    /// The NAT of netfilter, with rules of nftables or iptables.
    Netfilter,
    /// IPVS.
    Ipvs,
}

/// Identifies a backend process to a frontend, and in its metrics and status.
#[derive(Debug)]
pub(crate) struct BackendIdentity {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// [`Backend::NAME`].
    pub(crate) backend: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}

/// The method of a backend to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Reconcile,
    Apply,
}

/// Why the kernel may differ from the state that was applied last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// Another process changed an object of ours.
    Changed {
        /// The kind of one of the changed objects, in netfilter's terms: `rule`, `table`.
        object: String,
        /// The name of the process.
        process: String,
        /// The id of the process or thread.
        pid: u32,
    },
    /// Notifications were lost or are ambiguous, so another process may have changed objects of ours. If so, the
    /// reconcile writes.
    Possible,
    /// No other process, but the node may have changed what is to be programmed: its addresses, or an IP family that
    /// the kernel can program again.
    Outdated,
}

/// Objects of one kind that a backend has installed in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstalledObject {
    /// The kernel subsystem or the program that shows it: `iptables-nft nat`, `ipset`, `nf_tables`.
    pub subsystem: String,
    /// `chain`, `table ip fairlead1`.
    #[serde(rename = "object")]
    pub kind: String,
    /// The number of such objects.
    pub count: usize,
}

/// The result of a successful sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The number of operations written to the kernel. Zero: the kernel was already as desired.
    pub writes: usize,
    /// All service ports that the kernel rejects, including those that earlier syncs reported.
    pub failures: Vec<ServicePortFailure>,
    /// The service ports of this and of earlier calls that are not programmed completely, if [`Backend::apply`] is to
    /// be called again, also without a change. Empty: only objects that no service port needs are left to be removed.
    /// `None`: everything except `failures` is programmed. Facts of the node and the cluster are in the first writes.
    pub unfinished: Option<BTreeSet<ServicePortKey>>,
    /// Whether something is unfinished after the call has read the kernel: what the state lacks may still be in it.
    pub has_read: bool,
    /// The IP families that the kernel cannot program, and why. Everything else describes the other one.
    pub unusable_families: Vec<(IpFamily, String)>,
    /// The time spent waiting for locks that other processes held.
    pub lock_wait: Duration,
}

/// How the kernel differs from a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviewReport {
    /// The writes of a reconcile; empty when the kernel is as desired.
    pub differences: Vec<Difference>,
    /// The service ports that could not be programmed.
    pub failures: Vec<ServicePortFailure>,
}

/// One object that a reconcile would write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The action of a reconcile on the object.
    pub kind: DifferenceKind,
    /// The kernel subsystem or the program that shows the object: `table ip fairlead1`, `ipset`.
    pub subsystem: String,
    /// The object.
    pub object: String,
    /// The service port that the object belongs to, if it belongs to exactly one.
    pub service_port: Option<ServicePortKey>,
}

/// The action of a reconcile on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// Add it.
    Add,
    /// Change it.
    Change,
    /// Remove it.
    Remove,
}

impl Difference {
    /// An object that belongs to no single service port.
    #[must_use]
    pub fn new(kind: DifferenceKind, subsystem: impl Into<String>, object: impl Into<String>) -> Self {
        Self { kind, subsystem: subsystem.into(), object: object.into(), service_port: None }
    }

    /// Assigns the object to a service port.
    #[must_use]
    pub fn of(self, service_port: Option<&ServicePortKey>) -> Self {
        Self { service_port: service_port.cloned(), ..self }
    }
}

impl fmt::Display for DifferenceKind {
    /// The marks of `diff`: `+`, `~`, `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Change => "~",
            Self::Remove => "-",
        })
    }
}
