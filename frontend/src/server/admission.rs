//! Which connections a listener keeps. Clients that are not identified have small shares of their own, one for the
//! sources of nodes and one for all others, so that they never take the connection of a node.
//!
//! ```text
//!   accepted ──▶ source of a node? ──yes──▶ node_sources ──┐
//!                       └──────no────────▶ unknown_sources ─┴──identified──▶ identified, counted by identity
//!                         full: the oldest of the source with the most is closed      full: the same, by identity
//! ```

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use runtime::{ClientSource, ConnectionBounds, ConnectionPermit, ConnectionTable, failure::CountedLog, lock};
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit};

use crate::{config::ConnectionLimits, context::FrontendContext, identity::Identity};

/// TLS handshakes of sources of nodes that progress at the same time at each listener; others wait. One CPU core
/// performs about a thousand a second.
const MAX_HANDSHAKES: usize = 1024;

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    context: Arc<FrontendContext>,
    /// All clients are trusted, and have one identity.
    is_trusted: bool,
    pub(super) limits: ConnectionLimits,
    /// TLS handshakes of `node_sources` that may still begin.
    handshakes: Semaphore,
    node_sources: ConnectionTable<ClientSource>,
    unknown_sources: ConnectionTable<ClientSource>,
    identified: ConnectionTable<Identity>,
    /// By source: clients that were rejected.
    rejections: Mutex<CountedLog<Option<ClientSource>>>,
}

/// The part of the bounds that a connection takes.
#[derive(Debug)]
pub(super) enum Admitted {
    /// Clients of a unix socket, which only trusted processes can open.
    Unbounded,
    Unidentified(#[expect(dead_code, reason = "held until it is dropped")] ConnectionPermit<ClientSource>),
    Identified(#[expect(dead_code, reason = "held until it is dropped")] ConnectionPermit<Identity>),
}

impl Admission {
    pub(super) fn new(context: Arc<FrontendContext>, is_trusted: bool) -> Self {
        let limits = context.config.connections;
        let ConnectionBounds { total, per_key } = limits.identified;
        let identified = ConnectionBounds { total, per_key: if is_trusted { total } else { per_key } };
        Self {
            context,
            is_trusted,
            limits,
            handshakes: Semaphore::new(MAX_HANDSHAKES),
            node_sources: ConnectionTable::new("unidentified clients at sources of nodes", limits.node_sources),
            unknown_sources: ConnectionTable::new("unidentified clients", limits.unknown_sources),
            identified: ConnectionTable::new("identified clients", identified),
            rejections: Mutex::default(),
        }
    }

    /// Admits a new connection; `None`: of a unix socket. `evicted` is notified if it must be closed for another one.
    pub(super) fn admit(&self, address: Option<IpAddr>, evicted: Arc<Notify>) -> Admitted {
        let Some(address) = address else { return Admitted::Unbounded };
        if self.is_trusted {
            return self.admit_identity(&Identity::Trusted, None, evicted);
        }

        let table = if self.is_node_source(address) { &self.node_sources } else { &self.unknown_sources };
        Admitted::Unidentified(table.admit_as(address.into(), evicted))
    }

    /// Admits a client that was identified.
    pub(super) fn admit_identity(
        &self,
        identity: &Identity,
        address: Option<IpAddr>,
        evicted: Arc<Notify>,
    ) -> Admitted {
        if *identity != Identity::Trusted
            && let Some(address) = address
        {
            lock(&self.context.node_sources).remember(address);
        }
        Admitted::Identified(self.identified.admit_as(identity.clone(), evicted))
    }

    /// Waits until a TLS handshake may begin. Handshakes of unknown sources are few, and take no permit of nodes.
    pub(super) async fn start_handshake(&self, address: IpAddr) -> Result<Option<SemaphorePermit<'_>>, AcquireError> {
        if self.is_node_source(address) { self.handshakes.acquire().await.map(Some) } else { Ok(None) }
    }

    /// Whether nodes connect from this address.
    pub(super) fn is_node_source(&self, address: IpAddr) -> bool {
        lock(&self.context.node_sources).contains(address)
    }

    /// Counts a connection that is closed for another one.
    pub(super) fn count_eviction(&self, admitted: &Admitted) {
        self.context.metrics.evicted(matches!(admitted, Admitted::Identified(_)));
    }

    /// Counts a rejected client. `Some` when it should be logged: how many were rejected at its source since the last
    /// line.
    pub(super) fn count_rejection(&self, address: Option<IpAddr>) -> Option<u64> {
        lock(&self.rejections).record(address.map(ClientSource::from))
    }
}
