//! Rules of nf_tables: read over netlink, and followed.
//!
//! - `eval` runs a packet through a chain: one rule after the other, each expression over registers.
//! - `words` says in words what a key or a value is.

mod eval;
mod registers;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use netlink::nft::{self, BaseChain, Chain, NftHandle, Rule, Set, TableFamily};

use crate::kernel::Live;
pub(crate) use eval::base;

/// A table with its chains and rules. What its sets hold is asked when it matters.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) table: nft::Table,
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: HashMap<String, Vec<Rule>>,
    pub(crate) sets: HashMap<String, Set>,
}

/// What iptables keeps in nf_tables: looked at by way of `iptables-save`, for its rules are not made of nf_tables' expressions.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// `NFT_TABLE_F_DORMANT`: no chain of it is called.
const DORMANT: u32 = 1;

/// All tables of this namespace that see packets at the hooks of IP, but for those of iptables.
///
/// # Errors
/// When the kernel does not answer.
pub fn read(kernel: &mut Live) -> Result<Vec<Table>> {
    let handle = kernel.nft();
    let mut tables = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family).context("list tables")? {
            let of_iptables = family != TableFamily::Inet && OF_IPTABLES.contains(&table.name.as_str());
            if !of_iptables && table.flags & DORMANT == 0 {
                tables.push(read_table(handle, table)?);
            }
        }
    }
    Ok(tables)
}

fn read_table(handle: &mut NftHandle, table: nft::Table) -> Result<Table> {
    let what = || format!("list table {} {}", table.family, table.name);
    let chains = handle.chains(&table).with_context(what)?;
    let sets = handle.sets(&table).with_context(what)?;
    let mut rules = HashMap::<_, Vec<_>>::new();
    for listed in handle.rules(&table).with_context(what)? {
        rules.entry(listed.chain).or_default().push(listed.rule);
    }
    let sets = sets.into_iter().map(|set| (set.name.clone(), set)).collect();
    Ok(Table { table, chains, rules, sets })
}

// === impl Table ===

impl Table {
    /// Whether packets of a family come here.
    pub(crate) fn sees(&self, v4: bool) -> bool {
        match self.table.family {
            TableFamily::Ip => v4,
            TableFamily::Ip6 => !v4,
            TableFamily::Inet => true,
        }
    }

    /// The chains that the kernel calls.
    pub(crate) fn bases(&self) -> impl Iterator<Item = (&str, BaseChain)> {
        self.chains.iter().filter_map(|chain| Some((chain.name.as_str(), chain.base?)))
    }

    /// A chain's name, with that of its table.
    pub(crate) fn place(&self, chain: &str) -> String {
        format!("{} {} {chain}", self.table.family, self.table.name)
    }
}
