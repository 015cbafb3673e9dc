//! The real kernel, over netlink and the iptables programs.

mod worker;

use anyhow::Result;
use backend::{Difference, InstalledObject, driver::WorkerThread};
use ipnet::IpNet;
use iptables::Variant;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily};

use super::{Base, ConnectionCounts, Kernel, Listing, Ours, Rejected, RulesFound, Summary};
use crate::{
    desired::Rules,
    plan::{Objects, Operation},
};
use worker::{Missing, Worker};

/// The kernel objects of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    worker: WorkerThread<Worker>,
}

// === impl Netlink ===

impl Netlink {
    /// Opens the network namespace of the calling thread.
    pub(crate) fn open(iptables: Option<Variant>) -> Result<Self> {
        Ok(Self { worker: WorkerThread::spawn("ipvs", Worker::open(iptables)?)? })
    }

    async fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static) -> Result<T> {
        self.worker.run(job).await?
    }

    /// The families that have rules of ours.
    pub(crate) async fn families(&self) -> Result<Vec<IpFamily>> {
        self.run(|worker| worker.families()).await
    }

    /// All our objects, and the connection counts of the destinations among them. Loads no module: nothing without
    /// IPVS.
    pub(crate) async fn look(&self) -> Result<(Objects, ConnectionCounts)> {
        self.run(Worker::look).await
    }

    /// Describes what [`Kernel::prepare`] would create. Changes nothing, and loads no module.
    pub(super) async fn missing(&self, base: Base) -> Result<Vec<Difference>> {
        let describe = |missing: Vec<Missing>| missing.iter().map(Missing::difference).collect();
        self.run(move |worker| worker.missing(&base).map(describe)).await
    }

    /// As [`Kernel::list`]. Loads no module: nothing without IPVS.
    pub(super) async fn list_loaded(&self, ours: Ours) -> Result<Listing> {
        self.run(move |worker| worker.list_loaded(&ours)).await
    }
}

impl Kernel for Netlink {
    async fn prepare(&mut self, base: Base) -> Result<usize> {
        self.run(move |worker| worker.prepare(&base)).await
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.run(move |worker| worker.list(&ours)).await
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<Vec<Rejected>> {
        self.run(move |worker| worker.commit(&operations)).await
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.run(move |worker| worker.connections(&servers)).await
    }

    async fn summary(&mut self) -> Result<Summary> {
        self.run(Worker::summary).await
    }

    async fn check(&mut self, rules: PerFamily<Rules>) -> Result<RulesFound> {
        self.run(move |worker| worker.check(&rules)).await
    }

    async fn installed_objects(&mut self, exclude: Vec<IpNet>) -> Result<Vec<InstalledObject>> {
        self.run(move |worker| worker.installed_objects(Ours { exclude, ..Ours::default() })).await
    }

    async fn cleanup(&mut self, exclude: Vec<IpNet>) -> Result<()> {
        self.run(move |worker| worker.cleanup(&Ours { exclude, ..Ours::default() })).await
    }
}
