//! The size of the map in which the nftables backend stores clients for session affinity. Rules write the map, so only
//! the kernel knows.

use std::{fmt, sync::Mutex};

use netlink::nft::{NftHandle, Table};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use proto::model::IpFamily;
use runtime::{lock, metrics::Writer};
use tracing::warn;

use super::family_label;

/// The table of the nftables backend, in each family. Its name ends with the number `LAYOUT` of its chains, maps and
/// rules: a version with another layout uses a table of its own, and replaces this one.
pub const NFT_TABLE: &str = "fairlead1";
/// The map with the clients.
pub const NFT_CLIENTS: &str = "affine-clients";

/// Reads the sizes at each scrape: one short query for each family.
#[derive(Debug)]
pub(super) struct AffinityCollector(Mutex<NftHandle>);

impl AffinityCollector {
    /// A collector for the network namespace of the calling thread; `None` if a netlink socket cannot be opened.
    pub(super) fn open() -> Option<Self> {
        let handle = NftHandle::open().inspect_err(|error| {
            warn!(error = runtime::failure::chain(error), "cannot count the clients of session affinity");
        });
        Some(Self(Mutex::new(handle.ok()?)))
    }
}

impl Collector for AffinityCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut handle = lock(&self.0);
        // Absent before the table exists, and if the kernel does not count elements.
        let counts = IpFamily::ALL.into_iter().filter_map(|family| {
            let count = handle.count(&Table::new(family, NFT_TABLE), NFT_CLIENTS).ok().flatten()?;
            Some((family_label(family), f64::from(count)))
        });
        let text = "Buckets of clients that are stored for session affinity.";
        Writer::new(encoder).labelled_gauge("affinity_clients", text, None, counts)
    }
}
