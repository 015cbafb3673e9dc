//! The real kernel, on a thread of its own: it executes what it is told inside `sendmsg`, and must not hold up the tasks of the process.

mod worker;

use std::{sync::mpsc, thread};

use anyhow::{Context, Result, anyhow};
use backend::{Difference, InstalledObject};
use ipnet::IpNet;
use iptables::Variant;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily};
use tokio::sync::oneshot;

use super::{Base, ConnectionCounts, Kernel, Listing, Ours, Refused, RulesFound, Survey};
use crate::{
    desired::Rules,
    plan::{Objects, Operation},
};
use worker::{Missing, Worker};

/// What the network namespace has in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    /// What the thread is asked to do; it ends when this is dropped.
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

// === impl Netlink ===

impl Netlink {
    /// Opens the network namespace of the calling thread.
    pub(crate) fn open(iptables: Option<Variant>) -> Result<Self> {
        let mut worker = Worker::open(iptables)?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let run = move || queue.into_iter().for_each(|job| job(&mut worker));
        thread::Builder::new().name("ipvs".into()).spawn(run).context("start a thread")?;
        Ok(Self { jobs })
    }

    async fn ask<T: Send + 'static>(&self, job: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = move |worker: &mut Worker| {
            // Nobody waits for it any more when the caller was cancelled.
            let _ = answer.send(job(worker));
        };
        self.jobs.send(Box::new(job)).map_err(|_| anyhow!("the thread has ended"))?;
        answered.await.context("the thread has ended")?
    }

    /// The families of which there are rules of ours.
    pub(crate) async fn families(&self) -> Result<Vec<IpFamily>> {
        self.ask(|worker| worker.families()).await
    }

    /// All pieces of ours, and how many connections the destinations among them have. Loads no module: nothing without IPVS.
    pub(crate) async fn look(&self) -> Result<(Objects, ConnectionCounts)> {
        self.ask(Worker::look).await
    }

    /// What [`Kernel::prepare`] would make, in words. Changes nothing, and loads no module.
    pub(super) async fn missing(&self, base: Base) -> Result<Vec<Difference>> {
        let words = |missing: Vec<Missing>| missing.iter().map(Missing::difference).collect();
        self.ask(move |worker| worker.missing(&base).map(words)).await
    }

    /// As [`Kernel::list`]. Loads no module: nothing without IPVS.
    pub(super) async fn list_loaded(&self, ours: Ours) -> Result<Listing> {
        self.ask(move |worker| worker.list_loaded(&ours)).await
    }

    /// How many pieces of ours there are, in words.
    pub(crate) async fn installed_objects(&self, exclude: Vec<IpNet>) -> Result<Vec<InstalledObject>> {
        self.ask(move |worker| worker.installed_objects(Ours { exclude, ..Ours::default() })).await
    }
}

impl Kernel for Netlink {
    async fn prepare(&mut self, base: Base) -> Result<usize> {
        self.ask(move |worker| worker.prepare(&base)).await
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.ask(move |worker| worker.list(&ours)).await
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<Vec<Refused>> {
        self.ask(move |worker| worker.commit(&operations)).await
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.ask(move |worker| worker.connections(&servers)).await
    }

    async fn survey(&mut self) -> Result<Survey> {
        self.ask(Worker::survey).await
    }

    async fn check(&mut self, rules: PerFamily<Rules>) -> Result<RulesFound> {
        self.ask(move |worker| worker.check(&rules)).await
    }

    async fn cleanup(&mut self, exclude: Vec<IpNet>) -> Result<()> {
        self.ask(move |worker| worker.cleanup(&Ours { exclude, ..Ours::default() })).await
    }
}
