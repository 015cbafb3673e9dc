//! kube-proxy's tables in nf_tables: `ip kube-proxy` and `ip6 kube-proxy`. It owns them completely.

use anyhow::{Context as _, Result};
use netlink::nft::{self, NftBatch, NftHandle, Table};
use proto::model::IpFamily;

use crate::LeftoverObject;

/// The name of its tables.
pub(crate) const NAME: &str = "kube-proxy";

pub(crate) const fn table_family(family: IpFamily) -> nft::TableFamily {
    match family {
        IpFamily::V4 => nft::TableFamily::Ip,
        IpFamily::V6 => nft::TableFamily::Ip6,
    }
}

/// The tables that exist.
#[derive(Debug)]
pub(crate) struct Tables(Vec<(IpFamily, Table)>);

impl Tables {
    pub(crate) fn find() -> Result<Self> {
        let mut handle = NftHandle::open()?;
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let tables = handle.tables(table_family(family)).context("list the tables of nf_tables")?;
            found.extend(tables.into_iter().filter(|table| table.name == NAME).map(|table| (family, table)));
        }
        Ok(Self(found))
    }

    pub(crate) fn objects(&self) -> Vec<LeftoverObject> {
        let object = |(family, table): &(IpFamily, Table)| LeftoverObject {
            subsystem: "nf_tables".to_owned(),
            family: Some(*family),
            kind: format!("table {} {}", table.family, table.name),
            count: 1,
        };
        self.0.iter().map(object).collect()
    }

    /// Deletes them in one transaction.
    pub(crate) fn remove(&self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut batch = NftBatch::new();
        self.0.iter().for_each(|(_, table)| batch.delete_table(table));
        NftHandle::open()?.commit(&batch).context("delete kube-proxy's tables")
    }
}
