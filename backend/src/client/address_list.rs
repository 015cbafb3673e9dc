//! The known addresses of frontends: which one to try first, and when to resolve them again.
//!
//! ```text
//!   sources ──resolve (due)──▶ addresses of each source ──in_order──▶ tried in turn
//!                                                                        │ succeeded, failed
//!                                                                        ▼
//!                                                                failures of each address
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Result;
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};
use tracing::{debug, info};

use super::{
    address::{AddressSource, FrontendAddress},
    error::explained,
};

/// Addresses of this age are resolved again when a session begins: there may be more replicas by now.
pub(super) const MAX_ADDRESS_AGE: Duration = Duration::from_secs(600);

/// The addresses of all sources.
#[derive(Debug)]
pub(super) struct AddressList {
    sources: Vec<ResolvedSource>,
    failed: HashMap<FrontendAddress, Instant>,
    /// The frontend of the last session. Others are preferred.
    last: Option<FrontendAddress>,
    /// When an address was last removed.
    last_removed: Option<Instant>,
}

#[derive(Debug)]
struct ResolvedSource {
    source: AddressSource,
    addresses: Vec<FrontendAddress>,
    resolved: Option<Instant>,
    /// Locked while the source is being resolved.
    lookup: Arc<Mutex<()>>,
    failures: Repeated,
}

impl ResolvedSource {
    fn new(source: AddressSource) -> Self {
        Self { source, addresses: Vec::new(), resolved: None, lookup: Arc::default(), failures: Repeated::default() }
    }
}

impl AddressList {
    /// Starts without addresses.
    pub(super) fn new(sources: Vec<AddressSource>) -> Self {
        let sources = sources.into_iter().map(ResolvedSource::new).collect();
        Self { sources, failed: HashMap::new(), last: None, last_removed: None }
    }

    /// The sources to resolve before the next attempt, with their indices: sources that were never resolved, or not for
    /// this long, and sources whose addresses have all failed. Sources that are being resolved are left out. The guard
    /// marks a source as being resolved.
    pub(super) fn due(&self, age: Duration) -> Vec<(usize, AddressSource, OwnedMutexGuard<()>)> {
        let mut due = Vec::new();
        for (index, entry) in self.sources.iter().enumerate() {
            let is_fresh = entry.resolved.is_some_and(|when| when.elapsed() < age);
            let have_all_failed = entry.addresses.iter().all(|address| self.failed.contains_key(address));
            if (!is_fresh || have_all_failed)
                && let Ok(lookup) = entry.lookup.clone().try_lock_owned()
            {
                due.push((index, entry.source.clone(), lookup));
            }
        }
        due
    }

    /// A source that has not been resolved since this time.
    pub(super) fn unresolved_since(&self, time: Instant) -> Option<&AddressSource> {
        let unresolved = self.sources.iter().find(|source| source.resolved.is_none_or(|resolved| resolved < time));
        unresolved.map(|source| &source.source)
    }

    /// When a frontend last left the list. Its clients may be about to connect to another one.
    pub(super) fn last_removed(&self) -> Option<Instant> {
        self.last_removed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.iter().all(|source| source.addresses.is_empty())
    }

    /// Records the result of resolving a source. After an error its addresses stay.
    pub(super) fn resolved(&mut self, index: usize, result: Result<Vec<FrontendAddress>>) {
        match result {
            Ok(found) => self.found(index, found),
            Err(error) => {
                let ResolvedSource { source, addresses, failures, .. } = &mut self.sources[index];
                let error = explained(error.as_ref()).to_string();
                let known = addresses.len();
                warn_if_news!(
                    failures.failed(&error), %source, error, known,
                    "cannot resolve frontends, using the last known addresses"
                );
            }
        }
    }

    fn found(&mut self, index: usize, mut found: Vec<FrontendAddress>) {
        let ResolvedSource { source, addresses, resolved, failures, .. } = &mut self.sources[index];
        *resolved = Some(Instant::now());
        if let Some(Recovery { count, duration }) = failures.recovered() {
            info!(%source, failures = count, after_ms = duration.as_millis(), "resolved frontends again");
        }

        found.sort();
        found.dedup();
        if *addresses == found {
            return;
        }
        debug!(%source, addresses = ?found, "resolved frontends");
        if addresses.iter().any(|address| !found.contains(address)) {
            self.last_removed = Some(Instant::now());
        }
        *addresses = found;

        let Self { sources, failed, .. } = self;
        failed.retain(|address, _| sources.iter().any(|source| source.addresses.contains(address)));
    }

    /// All addresses: first the addresses that have not failed, in random order, then the address of the last session,
    /// then the addresses that have failed, the earliest failure first.
    pub(super) fn in_order(&self) -> Vec<FrontendAddress> {
        let mut list: Vec<_> = self.sources.iter().flat_map(|source| source.addresses.iter().cloned()).collect();
        list.sort();
        list.dedup();
        fastrand::shuffle(&mut list);
        list.sort_by_key(|address| (self.failed.get(address).copied(), self.last.as_ref() == Some(address)));
        list
    }

    /// A session was established.
    pub(super) fn succeeded(&mut self, address: &FrontendAddress) {
        self.failed.remove(address);
        self.last = Some(address.clone());
    }

    /// No session could be established.
    pub(super) fn failed(&mut self, address: &FrontendAddress) {
        self.failed.insert(address.clone(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn address(uri: &str) -> FrontendAddress {
        FrontendAddress { uri: uri.to_owned(), server_name: Some("fairlead".to_owned()) }
    }

    fn dns_source() -> Vec<AddressSource> {
        vec![AddressSource::parse("https://fairlead:7600").unwrap()]
    }

    #[tokio::test(start_paused = true)]
    async fn working_frontends_come_first_and_the_last_one_behind_them() {
        let [a, b, c] = ["https://10.0.0.1:1", "https://10.0.0.2:1", "https://10.0.0.3:1"].map(address);
        let mut list = AddressList::new(dns_source());
        list.resolved(0, Ok(vec![c.clone(), a.clone(), b.clone(), a.clone()]));
        assert_eq!(list.in_order().len(), 3);
        list.succeeded(&a);
        for _ in 0..20 {
            assert_eq!(list.in_order()[2], a);
        }
        list.failed(&b);
        tokio::time::advance(Duration::from_secs(1)).await;
        list.failed(&c);
        assert_eq!(list.in_order(), [a.clone(), b.clone(), c.clone()]);
        list.succeeded(&c);
        assert_eq!(list.in_order(), [a, c, b]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_working_frontend_is_sometimes_first() {
        let mut list = AddressList::new(dns_source());
        list.resolved(0, Ok((1..=4).map(|n| address(&format!("https://10.0.0.{n}:1"))).collect()));
        let first: std::collections::BTreeSet<_> = (0..200).map(|_| list.in_order().remove(0)).collect();
        assert_eq!(first.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn sources_are_resolved_at_first_when_old_and_when_all_addresses_fail() {
        let mut list = AddressList::new(dns_source());
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 1);
        list.resolved(0, Ok(vec![address("https://10.0.0.1:1"), address("https://10.0.0.2:1")]));
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 0);
        list.failed(&address("https://10.0.0.1:1"));
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 0, "the other one may work");
        list.failed(&address("https://10.0.0.2:1"));
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 1);
        list.succeeded(&address("https://10.0.0.2:1"));
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 0);
        tokio::time::advance(MAX_ADDRESS_AGE).await;
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_addresses_that_are_gone_are_forgotten() {
        let mut list = AddressList::new(dns_source());
        for replica in 1..=9 {
            let found = address(&format!("https://10.0.0.{replica}:1"));
            list.resolved(0, Ok(vec![found.clone()]));
            list.failed(&found);
        }
        assert_eq!(list.failed.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn removal_of_an_address_is_remembered() {
        let [a, b] = ["https://10.0.0.1:1", "https://10.0.0.2:1"].map(address);
        let mut list = AddressList::new(dns_source());
        for (found, is_removal) in [
            (vec![a.clone()], false),
            (vec![a.clone(), b.clone()], false),
            (vec![b.clone()], true),
            (vec![b], false),
            (vec![a], true),
        ] {
            tokio::time::advance(Duration::from_secs(1)).await;
            list.resolved(0, Ok(found));
            assert_eq!(list.last_removed() == Some(Instant::now()), is_removal);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn source_is_not_resolved_twice_at_the_same_time() {
        let mut list = AddressList::new(dns_source());
        let lookup = list.due(MAX_ADDRESS_AGE);
        assert_eq!((lookup.len(), list.due(MAX_ADDRESS_AGE).len()), (1, 0));
        list.resolved(0, (|| bail!("no answer"))());
        drop(lookup);
        assert_eq!(list.due(MAX_ADDRESS_AGE).len(), 1);
    }
}
