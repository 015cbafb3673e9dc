//! The real kernel, on a thread of its own: a transaction is executed inside `sendmsg`, by whoever calls it, and must not
//! hold up the tasks of the process.

#[cfg(test)]
mod tests;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use backend::Drift;
use netlink::{
    Error,
    nft::{self, NftHandle},
};
use proto::model::{IpFamily, PerFamily};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::{
    CommitError, Kernel,
    encode::{Encoded, Names},
    watch::{Proof, Watch},
};
use crate::{
    desired::nft_family,
    element::{Element, Map},
    expected::Expected,
    plan::Operation,
    present::Listing,
};

/// The nf_tables of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    /// What the thread is asked to do; it ends when this is dropped.
    jobs: mpsc::Sender<Job>,
    watch: Watch,
}

/// A transaction that writes more objects is not listened to.
const MAX_HEARD: usize = 1_000;

/// A map with fewer elements is dumped: its size does not matter yet, and a dump also shows what should not be there.
const MIN_LOOKED_UP: usize = 20_000;

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// What lives on the thread.
#[derive(Debug)]
struct Worker {
    handle: NftHandle,
    names: Names,
}

// === impl Netlink ===

impl Netlink {
    /// Opens the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        let handle = NftHandle::open().context("open a netlink socket")?;
        let watch = Watch::open(handle.port())?;
        let mut worker = Worker { handle, names: Names::new() };
        let (jobs, queue) = mpsc::channel::<Job>();
        let run = move || queue.into_iter().for_each(|job| job(&mut worker));
        thread::Builder::new().name("nftables".into()).spawn(run).context("start a thread")?;
        Ok(Self { jobs, watch })
    }

    async fn ask<T: Send + 'static>(&self, job: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = move |worker: &mut Worker| {
            // Nobody waits for it any more when the caller was cancelled.
            let _ = answer.send(job(worker));
        };
        self.jobs.send(Box::new(job)).map_err(|_| anyhow!("the nftables thread has ended"))?;
        answered.await.context("the nftables thread has ended")
    }

    async fn generation(&self) -> Result<u32> {
        self.ask(|worker| worker.handle.generation().context("read the generation")).await?
    }

    /// Returns when there is drift. May be dropped while it waits.
    async fn watch(&mut self) -> Result<Drift> {
        loop {
            if let Some(drift) = self.watch.look()? {
                return Ok(drift);
            }
            if self.watch.is_unsure() {
                let generation = self.generation().await?;
                match self.watch.check(generation) {
                    Proof::Known => continue,
                    Proof::Unknown => return Ok(Drift::Possible),
                }
            }
            self.watch.wait().await?;
        }
    }
}

impl Kernel for Netlink {
    async fn list(&mut self, expected: Expected) -> Result<PerFamily<Listing>> {
        self.watch.forget()?;
        let generation = self.generation().await?;
        self.watch.begin(generation);
        self.ask(move |worker| {
            let mut listings = PerFamily::<Listing>::default();
            for family in IpFamily::ALL {
                listings[family] =
                    worker.list(family, &expected).with_context(|| format!("list the {family} table"))?;
            }
            Ok(listings)
        })
        .await?
    }

    async fn tables(&mut self) -> Result<Vec<IpFamily>> {
        self.ask(|worker| {
            let mut families = Vec::new();
            for family in IpFamily::ALL {
                families.extend(worker.table(family)?.map(|_| family));
            }
            Ok(families)
        })
        .await?
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<Duration, CommitError> {
        let writes: usize = operations.iter().map(|(_, operation)| operation.writes()).sum();
        let loud = writes > MAX_HEARD;
        if loud {
            self.watch.stop().map_err(CommitError::Failed)?;
        }
        let result = self.ask(move |worker| worker.commit(&operations)).await;
        if loud {
            self.watch.unstop().map_err(CommitError::Failed)?;
        }
        let took = result.map_err(CommitError::Failed)??;
        self.watch.committed();
        Ok(took)
    }

    async fn drifted(&mut self) -> Drift {
        self.watch().await.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot tell who changes the tables");
            Drift::Possible
        })
    }
}

// === impl Worker ===

impl Worker {
    fn table(&mut self, family: IpFamily) -> Result<Option<nft::Table>> {
        let name = &self.names.table(family).name;
        let tables = self.handle.tables(nft_family(family)).context("list tables")?;
        Ok(tables.into_iter().find(|table| table.name == *name))
    }

    fn list(&mut self, family: IpFamily, expected: &Expected) -> Result<Listing> {
        let Some(table) = self.table(family)? else { return Ok(Listing::default()) };
        let mut listing = Listing {
            chains: self.handle.chains(&table).context("list chains")?,
            sets: self.handle.sets(&table).context("list sets")?,
            rules: self.handle.rules(&table).context("list rules")?,
            table: Some(table),
            ..Listing::default()
        };
        for map in Map::ALL.into_iter().filter(|map| !map.is_written_by_rules()) {
            let ours = self.names.set(family, map);
            if listing.sets.contains(ours) && !self.lookup(family, map, expected, &mut listing)? {
                self.dump(family, map, &mut listing)?;
            }
        }
        Ok(listing)
    }

    /// Lists a large map by its keys, if it has exactly as many elements as it should have. `false` when it has other ones.
    fn lookup(&mut self, family: IpFamily, map: Map, expected: &Expected, listing: &mut Listing) -> Result<bool> {
        let (len, table) = (expected.len(family, map), self.names.table(family));
        let count = |handle: &mut NftHandle| handle.count(table, map.name());
        if len < MIN_LOOKED_UP || count(&mut self.handle).context("count elements")? != u32::try_from(len).ok() {
            return Ok(false);
        }
        let (keys, known) = (expected.keys(family, map), listing.elements.len());
        let visit = |element: nft::Element<'_>| match Element::read(map, family, &element) {
            Some(element) => listing.elements.push(element),
            None => listing.foreign.push((map, element.key.into())),
        };
        match self.handle.get_elements(table, map.name(), keys, visit) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() || error.is_interrupted() => {
                listing.elements.truncate(known);
                listing.foreign.retain(|(of, _)| *of != map);
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("look elements of {} up", map.name())),
        }
    }

    fn dump(&mut self, family: IpFamily, map: Map, listing: &mut Listing) -> Result<()> {
        let table = self.names.table(family);
        let visit = |(ours, foreign): &mut (Vec<_>, Vec<_>), element: nft::Element<'_>| match Element::read(
            map, family, &element,
        ) {
            Some(element) => ours.push(element),
            None => foreign.push((map, element.key.into())),
        };
        let found = self.handle.elements(table, map.name(), Default::default, visit);
        let (ours, foreign) = found.with_context(|| format!("list {}", map.name()))?;
        listing.elements.extend(ours);
        listing.foreign.extend(foreign);
        Ok(())
    }

    fn commit(&mut self, operations: &[(IpFamily, Operation)]) -> Result<Duration, CommitError> {
        let encoded = Encoded::new(&self.names, operations);
        let (messages, bytes) = (encoded.batch.len(), encoded.batch.bytes());
        let start = Instant::now();
        let result = self.handle.commit(&encoded.batch);
        let took = start.elapsed();
        let took_us = took.as_micros() as u64;
        debug!(messages, bytes, took_us, accepted = result.is_ok(), "committed a transaction");
        result.map(|()| took).map_err(|error| match &error {
            // Lack of permission or memory, or somebody else's change: whatever is in it.
            Error::Rejected(refusals) if !error.is_not_permitted() && !error.is_interrupted() => {
                CommitError::Refused(encoded.blame(refusals))
            }
            _ => CommitError::Failed(anyhow::Error::new(error).context("commit a transaction")),
        })
    }
}
