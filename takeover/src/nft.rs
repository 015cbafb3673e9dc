//! kube-proxy's tables in nf_tables: `ip kube-proxy` and `ip6 kube-proxy`. It owns them whole.

use anyhow::{Context as _, Result};
use netlink::nft::{NftBatch, NftHandle, Table};

use crate::{Family, Item};

/// What its tables are called.
pub(crate) const NAME: &str = "kube-proxy";

/// The tables that are there.
#[derive(Debug)]
pub(crate) struct Tables(Vec<(Family, Table)>);

impl Tables {
    pub(crate) fn find() -> Result<Self> {
        let mut handle = NftHandle::open()?;
        let mut found = Vec::new();
        for family in Family::BOTH {
            let tables = handle.tables(family.of_nft()).context("list the tables of nf_tables")?;
            found.extend(tables.into_iter().filter(|table| table.name == NAME).map(|table| (family, table)));
        }
        Ok(Self(found))
    }

    pub(crate) fn items(&self) -> Vec<Item> {
        let item = |(family, table): &(Family, Table)| Item {
            place: "nf_tables".to_owned(),
            family: Some(*family),
            what: format!("table {} {}", table.family, table.name),
            count: 1,
        };
        self.0.iter().map(item).collect()
    }

    /// Both at once.
    pub(crate) fn remove(&self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut batch = NftBatch::new();
        self.0.iter().for_each(|(_, table)| batch.delete_table(table));
        NftHandle::open()?.commit(&batch).context("delete kube-proxy's tables")
    }
}
