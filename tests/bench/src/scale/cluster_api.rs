//! A cluster and the API server that serves it.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use fake_api_server::{ApiServer, Resource};

use super::cluster::{Cluster, SliceId};
use crate::{api_server, lab::Lab, worker::Worker};

/// The API of a cluster. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ClusterApi {
    server: ApiServer,
    cluster: Arc<Mutex<Cluster>>,
}

// === impl ClusterApi ===

impl ClusterApi {
    /// Serves a cluster on the lab's loopback.
    pub(crate) fn start(lab: &Lab, worker: &Worker, cluster: Cluster) -> Result<Self> {
        let server = api_server::start(lab, worker, cluster.objects())?;
        Ok(Self { server, cluster: Arc::new(Mutex::new(cluster)) })
    }

    /// Reads or changes the cluster. [`Self::put_slice`] publishes changes.
    pub(crate) fn with<T>(&self, access: impl FnOnce(&mut Cluster) -> T) -> T {
        access(&mut self.cluster.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes the current state of a slice. `trigger`: the time of its change, in microseconds since 1970.
    pub(crate) fn put_slice(&self, id: SliceId, trigger: u64) {
        let slice = self.with(|cluster| cluster.slice(id, trigger));
        let _version = self.server.put(Resource::EndpointSlice, slice);
    }
}
