//! The real kernel, over netlink.

#[cfg(test)]
mod tests;

use std::{
    mem,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use backend::{
    Drift,
    driver::{NfTablesWatch, Touched, WorkerThread},
};
use netlink::{
    Error,
    nft::{self, NftBatch, NftEvent, NftHandle},
};
use proto::model::{IpFamily, PerFamily};
use tracing::debug;

use super::{Kernel, Listing, TransactionOutcome, encode::Encoded, serves};
use crate::{
    desired::{self, EndpointKeys, is_own_table},
    element::{ForgottenClients, Map},
    operation::Operation,
};

/// The nf_tables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink {
    worker: WorkerThread<NftHandle>,
    watch: NfTablesWatch,
    /// The operations of a dry run, which executes none of them; `None`: this is no dry run.
    recorded: Option<Vec<(IpFamily, Operation)>>,
}

/// The most objects of a transaction of which the notifications are received.
const MAX_NOTIFIED_WRITES: usize = 1_000;

/// The fewest elements of a map that are looked up by their keys. A smaller map is dumped, because its size does not
/// matter yet, and a dump also shows unexpected elements.
const MIN_LOOKED_UP_ELEMENTS: usize = 20_000;

/// The most clients with session affinity that one transaction deletes, in 20 ms, for which other changes wait.
const MAX_DELETED_IN_TRANSACTION: usize = 65_536;

/// The most clients with session affinity that are deleted after one commit: more than three times as many as the map
/// has places, because most buckets are empty. The clients beyond this number stay until their timeout.
const MAX_DELETED: usize = 10 * MAX_DELETED_IN_TRANSACTION;

/// Whether a map was listed by the keys that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyLookup {
    /// All elements of the map are in the listing.
    Listed,
    /// The map is small, or has other keys: it has to be dumped.
    Unsuitable,
}

// === impl Netlink ===

impl Netlink {
    /// Opens the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        let handle = NftHandle::open().context("open a netlink socket")?;
        let watch = NfTablesWatch::open(Some(handle.port()), touched, |_| Ok(true))?;
        let worker = WorkerThread::spawn("nftables", handle)?;
        Ok(Self { worker, watch, recorded: None })
    }

    /// Records operations from now on, instead of executing them.
    pub(crate) fn begin_dry_run(&mut self) {
        self.recorded = Some(Vec::new());
    }

    pub(crate) fn take_recorded(&mut self) -> Vec<(IpFamily, Operation)> {
        self.recorded.as_mut().map(mem::take).unwrap_or_default()
    }
}

impl Kernel for Netlink {
    async fn list(&mut self, keys: EndpointKeys) -> Result<PerFamily<Listing>> {
        self.watch.restart()?;
        let list = move |handle: &mut NftHandle| {
            let mut listings = PerFamily::<Listing>::default();
            for family in IpFamily::ALL {
                let listing = list(handle, family, &keys);
                listings[family] = listing.with_context(|| format!("list the {family} tables"))?;
            }
            Ok(listings)
        };
        self.worker.run(list).await?
    }

    async fn tables(&mut self) -> Result<Vec<(IpFamily, String)>> {
        let tables = |handle: &mut NftHandle| {
            let mut tables = Vec::new();
            for family in IpFamily::ALL {
                tables.extend(own_tables(handle, family)?.into_iter().map(|table| (family, table.name)));
            }
            Ok(tables)
        };
        self.worker.run(tables).await?
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<TransactionOutcome> {
        if let Some(recorded) = &mut self.recorded {
            recorded.extend(operations);
            return Ok(TransactionOutcome::Committed { took: Duration::ZERO });
        }

        let writes: usize = operations.iter().map(|(_, operation)| operation.writes()).sum();
        let is_large = writes > MAX_NOTIFIED_WRITES;
        if is_large {
            self.watch.pause()?;
        }
        let result = self.worker.run(move |handle| commit(handle, &operations)).await;
        if is_large {
            self.watch.resume()?;
        }

        let outcome = result??;
        if let TransactionOutcome::Committed { .. } = outcome {
            self.watch.committed(1);
        }
        Ok(outcome)
    }

    async fn forget_clients(&mut self, clients: Vec<ForgottenClients>) -> Result<()> {
        if self.recorded.is_some() {
            return Ok(());
        }
        let clients = self.worker.run(move |handle| in_filled_maps(handle, clients)).await??;
        if clients.is_empty() {
            return Ok(());
        }

        self.watch.pause()?;
        let result = self.worker.run(move |handle| delete_clients(handle, &clients)).await;
        self.watch.resume()?;
        self.watch.committed(result??);
        Ok(())
    }

    fn is_untouched(&mut self) -> bool {
        self.watch.is_untouched()
    }

    async fn drifted(&mut self) -> Drift {
        self.watch.drifted().await
    }
}

/// An object in a table of ours, of any layout. All objects in our tables are ours, and the tables of other layouts are
/// to be deleted.
fn touched(event: &NftEvent) -> Option<Touched> {
    let NftEvent::Changed { family, table, object, .. } = event else { return None };
    let is_programmed = |ours: IpFamily| *family == Some(ours.into());
    if is_own_table(table) && IpFamily::ALL.into_iter().any(is_programmed) { Some(Touched::Ours(object)) } else { None }
}

/// Our tables, of any layout.
fn own_tables(handle: &mut NftHandle, family: IpFamily) -> Result<Vec<nft::Table>> {
    let mut tables = handle.tables(family).context("list tables")?;
    tables.retain(|table| is_own_table(&table.name));
    Ok(tables)
}

/// Lists the table of this layout, and the names of our other tables.
fn list(handle: &mut NftHandle, family: IpFamily, keys: &EndpointKeys) -> Result<Listing> {
    let mut listing = Listing::default();
    for table in own_tables(handle, family)? {
        let chains = handle.chains(&table).context("list chains")?;
        if table.name == desired::table(family).name {
            listing.chains = chains;
            listing.table = Some(table);
        } else {
            listing.others.insert(table.name, serves(&chains));
        }
    }
    let Some(table) = &listing.table else { return Ok(listing) };

    listing.sets = handle.sets(table).context("list sets")?;
    listing.rules = handle.rules(table).context("list rules")?;
    for map in Map::ALL.into_iter().filter(|map| !map.is_written_by_rules()) {
        let has_our_definition = listing.sets.contains(&map.set(family));
        if has_our_definition && look_up(handle, family, map, keys, &mut listing)? == KeyLookup::Unsuitable {
            dump(handle, family, map, &mut listing)?;
        }
    }
    Ok(listing)
}

/// Lists a large map by its keys, if it has exactly as many elements as it should have.
fn look_up(
    handle: &mut NftHandle,
    family: IpFamily,
    map: Map,
    keys: &EndpointKeys,
    listing: &mut Listing,
) -> Result<KeyLookup> {
    let table = &desired::table(family);
    let len = keys.len(family, map);
    if len < MIN_LOOKED_UP_ELEMENTS {
        return Ok(KeyLookup::Unsuitable);
    }
    if handle.count(table, map.name()).context("count elements")? != u32::try_from(len).ok() {
        return Ok(KeyLookup::Unsuitable);
    }

    let before = listing.elements.len();
    let visit = |element: nft::Element<'_>| listing.insert(map, family, &element);
    match handle.get_elements(table, map.name(), keys.of_map(family, map), visit) {
        Ok(()) => Ok(KeyLookup::Listed),
        Err(error) if error.is_not_found() || error.is_interrupted() => {
            listing.elements.truncate(before);
            listing.foreign.retain(|(of, _)| *of != map);
            Ok(KeyLookup::Unsuitable)
        }
        Err(error) => Err(error).with_context(|| format!("look up elements of {}", map.name())),
    }
}

fn dump(handle: &mut NftHandle, family: IpFamily, map: Map, listing: &mut Listing) -> Result<()> {
    let visit = |found: &mut Listing, element: nft::Element<'_>| found.insert(map, family, &element);
    let found = handle.elements(&desired::table(family), map.name(), Listing::default, visit);
    let found = found.with_context(|| format!("list {}", map.name()))?;
    listing.elements.extend(found.elements);
    listing.foreign.extend(found.foreign);
    Ok(())
}

/// The clients whose map has any elements. None of them before Linux 6.16, which does not tell the number of elements.
fn in_filled_maps(handle: &mut NftHandle, mut clients: Vec<ForgottenClients>) -> Result<Vec<ForgottenClients>> {
    for family in IpFamily::ALL {
        if clients.iter().any(|clients| clients.family == family) {
            let count = handle.count(&desired::table(family), Map::AffineClients.name()).context("count elements")?;
            let is_filled = count.is_some_and(|count| count > 0);
            clients.retain(|clients| clients.family != family || is_filled);
        }
    }
    Ok(clients)
}

/// Deletes stored clients. Returns the number of transactions that have deleted any client, because only these
/// transactions have got a generation.
fn delete_clients(handle: &mut NftHandle, clients: &[ForgottenClients]) -> Result<usize> {
    let mut committed = 0;
    for family in IpFamily::ALL {
        let table = desired::table(family);
        let map = Map::AffineClients.set(family);
        let of_family = clients.iter().filter(|clients| clients.family == family);
        let mut keys = of_family.flat_map(ForgottenClients::keys).take(MAX_DELETED).peekable();

        while keys.peek().is_some() {
            let deleted: Vec<_> = keys.by_ref().take(MAX_DELETED_IN_TRANSACTION).collect();
            let mut batch = NftBatch::new();
            batch.destroy_elements(&table, &map, deleted.iter().map(|key| nft::Element::key(key)));

            let before = handle.generation().context("read the nf_tables generation")?;
            handle.commit(&batch).context("delete unused session-affinity entries")?;
            let after = handle.generation().context("read the nf_tables generation")?;
            committed += usize::from(after != before);
        }
    }
    Ok(committed)
}

fn commit(handle: &mut NftHandle, operations: &[(IpFamily, Operation)]) -> Result<TransactionOutcome> {
    let encoded = Encoded::new(operations);
    let messages = encoded.batch.len();
    let bytes = encoded.batch.bytes();

    let start = Instant::now();
    let result = handle.commit(&encoded.batch);
    let took = start.elapsed();

    let took_us = took.as_micros() as u64;
    debug!(messages, bytes, took_us, accepted = result.is_ok(), "committed a transaction");
    match result {
        Ok(()) => Ok(TransactionOutcome::Committed { took }),
        // Missing permissions or memory, or a concurrent change, do not depend on the content of the transaction.
        Err(error) if error.is_not_permitted() || error.is_interrupted() => Err(failed(error)),
        Err(Error::Rejected { operations, .. }) => Ok(TransactionOutcome::Rejected(encoded.rejection(&operations))),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: Error) -> anyhow::Error {
    anyhow::Error::new(error).context("commit a transaction")
}
