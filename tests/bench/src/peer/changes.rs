//! Changes of endpoints, written to the API server.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;

use super::{api_connection::ApiConnection, control_plane::put_slice};
use crate::scale::cluster::{Cluster, SliceId};

/// Of [`Changes::replace_for`].
pub(super) const CHANGES_PER_SECOND: u32 = 20;

/// What changes the cluster in the API. Each change, or sequence of changes, has a connection of its own, because the
/// API server closes those that were idle for 90 s.
pub(super) struct Changes<'a> {
    cluster: &'a mut Cluster,
    made: usize,
}

impl<'a> Changes<'a> {
    pub(super) fn new(cluster: &'a mut Cluster) -> Self {
        Self { cluster, made: 0 }
    }

    /// The number of Services.
    pub(super) fn services(&self) -> usize {
        self.cluster.services()
    }

    /// Replaces an endpoint of the next Service.
    pub(super) fn replace_one(&mut self, connection: &mut ApiConnection) -> Result<()> {
        // Services without zone hints: with them, a change may not concern this node.
        let service = (self.made * 7_919 * 10 + 2) % self.cluster.services();
        self.made += 1;
        let id = SliceId { service, slice: 0 };
        let reach = self.cluster.remove(id);
        self.cluster.add(id, reach);
        put_slice(connection, self.cluster, id, now())
    }

    /// Replaces one endpoint after the other.
    pub(super) fn replace_for(&mut self, mut connection: ApiConnection, duration: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut next = begun;
        while begun.elapsed() < duration {
            self.replace_one(&mut connection)?;
            next += Duration::from_secs(1) / CHANGES_PER_SECOND;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Replaces all endpoints of a Service, and returns the former ones.
    pub(super) fn replace_all(&mut self, connection: &mut ApiConnection, service: usize) -> Result<BTreeSet<Ipv4Addr>> {
        let id = SliceId { service, slice: 0 };
        let replaced: BTreeSet<_> = self.cluster.addresses(id).collect();
        for _ in &replaced {
            let reach = self.cluster.remove(id);
            self.cluster.add(id, reach);
        }
        put_slice(connection, self.cluster, id, now())?;
        Ok(replaced)
    }
}

/// In microseconds since 1970.
fn now() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    time.as_micros() as u64
}
