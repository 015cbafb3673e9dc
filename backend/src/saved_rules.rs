//! The rules that `iptables-save` prints.

use anyhow::{Context as _, Result};
use iptables::{Ruleset, SavedRules, Table};
use netlink::nft::{self, NftHandle};

/// Reads rules to find chains of ours, which are in these tables only. `iptables-nft` hides a table to which `nft` has
/// added a rule that `iptables-nft` cannot show. A hidden table matters only if nf_tables shows a chain of ours in it.
///
/// # Errors
/// When the rules cannot be read. [`iptables::HiddenTable`] if a hidden table has a chain of ours.
pub fn read_rules(saved: &SavedRules, tables: &[Table], is_ours: impl Fn(&str) -> bool) -> Result<Ruleset> {
    let reading = || format!("read the rules of {}", saved.program);
    let rules = Ruleset::parse(&saved.text).with_context(reading)?;

    for table in tables {
        let Err(hidden) = rules.ensure_readable(&[*table]) else { continue };
        let table = nft::Table::new(saved.program.family, table.name());
        let mut handle = NftHandle::open().context("open nf_tables")?;
        let chains = handle.chains(&table).context("list the chains of nf_tables")?;
        if chains.iter().any(|chain| is_ours(&chain.name)) {
            return Err(hidden).with_context(reading);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use iptables::{HiddenTable, Program, Variant};
    use netlink::{
        nft::{Chain, NftBatch, TableFamily},
        testing::in_netns,
    };
    use proto::model::IpFamily;

    use super::*;

    #[test]
    fn a_hidden_table_is_an_error_only_if_it_has_chains_of_ours() {
        in_netns(|| {
            let table = nft::Table::new(TableFamily::Ip, "filter");
            let mut batch = NftBatch::new();
            batch.add_table(&table);
            batch.add_chain(&table, &Chain::regular("OURS"));
            NftHandle::open().unwrap().commit(&batch).unwrap();
            let read = |family, hidden: &str, name: &str| {
                let text = format!("# Table `{hidden}' is incompatible, use 'nft' tool.\n");
                let saved = SavedRules { program: Program::new(family, Variant::Nft), text };
                read_rules(&saved, &[Table::Filter, Table::Nat], |chain| chain == name)
            };
            let error = read(IpFamily::V4, "filter", "OURS").unwrap_err();
            assert!(error.is::<HiddenTable>());
            assert_eq!(
                format!("{error:#}"),
                "read the rules of iptables-nft: iptables cannot read table filter: it contains a rule made by nft; \
                 delete that rule with nft"
            );
            for (family, hidden, name) in [
                (IpFamily::V4, "filter", "OTHER"),
                (IpFamily::V6, "filter", "OURS"),
                (IpFamily::V4, "nat", "OURS"),
                (IpFamily::V4, "raw", "OURS"),
            ] {
                assert!(read(family, hidden, name).is_ok(), "{family} {hidden} {name}");
            }
        });
    }
}
