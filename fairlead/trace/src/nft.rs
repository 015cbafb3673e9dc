//! Rules of nf_tables, read over netlink and evaluated by `eval`.

pub(crate) mod eval;
mod jhash;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ::iptables::{Program, Ruleset, Variant};
use anyhow::{Context as _, Result};
use netlink::nft::{self, Chain, NftHandle, Rule, Set, TableFamily};
use proto::model::IpFamily;

use crate::{
    kernel::LiveKernel,
    table::{Rules, Table},
};

/// The chains and rules of a table. Elements of its sets are read when a rule refers to them.
#[derive(Debug)]
pub(crate) struct TableRules {
    pub(crate) table: nft::Table,
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: HashMap<String, Vec<Rule>>,
    pub(crate) sets: HashMap<String, Set>,
}

/// `NFT_TABLE_F_DORMANT`: its chains are not evaluated.
const DORMANT: u32 = 1;

/// All tables of this namespace that handle IP packets, except what iptables has saved.
pub(crate) fn read(LiveKernel { nft, .. }: &mut LiveKernel, saved: &[(Program, Ruleset)]) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        let is_saved =
            |program: &Program| program.variant == Variant::Nft && family == TableFamily::from(program.family);
        let ruleset = saved.iter().find(|(program, _)| is_saved(program)).map(|(_, ruleset)| ruleset);

        for table in nft.tables(family).context("list tables")? {
            if table.flags & DORMANT == 0 {
                tables.extend(read_table(nft, table, ruleset)?.map(TableRules::into_table));
            }
        }
    }
    Ok(tables)
}

/// A table, without the base chains that iptables has saved, because their rules contain expressions of xtables.
/// `None`: it has no other base chains.
fn read_table(handle: &mut NftHandle, table: nft::Table, saved: Option<&Ruleset>) -> Result<Option<TableRules>> {
    let what = || format!("list table {} {}", table.family, table.name);
    let mut chains = handle.chains(&table).with_context(what)?;
    if let (Some(saved), Some(name)) = (saved, ::iptables::Table::from_name(&table.name)) {
        for chain in &mut chains {
            // A chain that iptables prints without a policy is no base chain of iptables.
            if saved.chain(name, &chain.name).is_some_and(|saved| saved.policy.is_some()) {
                chain.base = None;
            }
        }
    }
    if chains.iter().all(|chain| chain.base.is_none()) {
        return Ok(None);
    }

    let sets = handle.sets(&table).with_context(what)?.into_iter().map(|set| (set.name.clone(), set)).collect();
    let mut rules = HashMap::<_, Vec<_>>::new();
    for listed in handle.rules(&table).with_context(what)? {
        rules.entry(listed.chain).or_default().push(listed.rule);
    }
    Ok(Some(TableRules { table, chains, rules, sets }))
}

impl TableRules {
    /// The table with these rules.
    pub(crate) fn into_table(self) -> Table {
        let nft::Table { family, name, .. } = &self.table;
        let base = |chain: &Chain| Some((chain.name.clone(), chain.base?));
        Table {
            name: format!("{family} {name}"),
            family: IpFamily::ALL.into_iter().find(|of| TableFamily::from(*of) == *family),
            base_chains: self.chains.iter().filter_map(base).collect(),
            rules: Rules::Nft(self),
        }
    }
}
