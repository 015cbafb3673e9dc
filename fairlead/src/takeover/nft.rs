//! kube-proxy's tables in nf_tables: `ip kube-proxy` and `ip6 kube-proxy`. It owns them completely.

use anyhow::{Context as _, Result};
use netlink::nft::{NftBatch, NftHandle, Table};
use proto::model::IpFamily;

/// The name of its tables.
pub(crate) const KUBE_PROXY: &str = "kube-proxy";
/// The table of Calico's Felix, in either family.
pub(crate) const FELIX: &str = "calico";

/// The tables of this name that exist.
pub(crate) fn tables(handle: &mut NftHandle, name: &str) -> Result<Vec<(IpFamily, Table)>> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let tables = handle.tables(family).context("list the tables of nf_tables")?;
        found.extend(tables.into_iter().filter(|table| table.name == name).map(|table| (family, table)));
    }
    Ok(found)
}

/// Deletes tables in one transaction.
pub(crate) fn remove(tables: &[(IpFamily, Table)]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut batch = NftBatch::new();
    tables.iter().for_each(|(_, table)| batch.delete_table(table));
    NftHandle::open()?.commit(&batch).context("delete kube-proxy's tables")
}
