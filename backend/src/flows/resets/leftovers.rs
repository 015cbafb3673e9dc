//! Rules of resets that a process left behind because it was killed. They are not in effect after a minute.

use anyhow::{Context as _, Result};
use iptables::{Table, save_all};
use netlink::nft::{NftHandle, TableFamily};
use proto::model::IpFamily;

use super::{chain, table};
use crate::{InstalledObject, read_rules};

/// Deletes the rules that reject packets of connections to endpoints that are gone, or only lists them if `dry_run`.
/// With `programs`, rules that were written with iptables are included.
///
/// # Errors
/// When the rules cannot be listed or deleted.
pub async fn remove_reset_rules(programs: bool, dry_run: bool) -> Result<Vec<InstalledObject>> {
    let mut found = remove_tables(dry_run)?;
    if programs {
        found.extend(remove_chains(dry_run).await?);
    }
    Ok(found)
}

fn remove_tables(dry_run: bool) -> Result<Vec<InstalledObject>> {
    let mut found = Vec::new();
    let mut handle = NftHandle::open().context("open nf_tables")?;
    for family in IpFamily::ALL {
        let tables = match handle.tables(family) {
            Err(error) if error.is_unsupported() => continue,
            tables => tables.context("list the tables of nf_tables")?,
        };
        if !tables.iter().any(|table| table.name == table::NAME) {
            continue;
        }

        let kind = format!("table {} {}", TableFamily::from(family), table::NAME);
        found.push(InstalledObject { subsystem: "nf_tables".to_owned(), kind, count: 1 });
        if !dry_run {
            table::remove(&mut handle, family).with_context(|| format!("delete {family} table {}", table::NAME))?;
        }
    }
    Ok(found)
}

async fn remove_chains(dry_run: bool) -> Result<Vec<InstalledObject>> {
    let mut found = Vec::new();
    let is_ours = |chain: &str| chain == chain::NAME;
    for saved in save_all().await? {
        let script = read_rules(&saved, &[Table::Filter], is_ours)?.script_without(is_ours);
        if script.is_empty() {
            continue;
        }

        let kind = format!("chain {}", chain::NAME);
        found.push(InstalledObject { subsystem: saved.program.to_string(), kind, count: 1 });
        if !dry_run {
            saved.program.restore(&script).await?;
        }
    }
    Ok(found)
}
