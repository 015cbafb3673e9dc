//! Tests of the classification of nf_tables events.

use super::*;

fn changed(table: &str, chain: Option<&str>, verb: NftChange) -> Option<Touched> {
    let object = if chain.is_some() { "rule" } else { "table" };
    let (table, chain) = (table.into(), chain.map(Into::into));
    touched(&NftEvent::Changed { family: Some(TableFamily::Ip), table, object, chain, verb, port: 7 })
}

#[test]
fn a_change_of_our_chains_is_ours() {
    for verb in [NftChange::New, NftChange::Delete] {
        assert_eq!(changed("nat", Some("KUBE-SERVICES"), verb), Some(Touched::Ours("rule")));
    }
}

#[test]
fn a_change_of_foreign_chains_is_not() {
    for (table, chain) in [("nat", "CNI-HOSTPORT"), ("filter", "INPUT"), ("mangle", "KUBE-SERVICES")] {
        assert_eq!(changed(table, Some(chain), NftChange::New), None, "{table} {chain}");
    }
}

#[test]
fn a_deleted_rule_of_a_built_in_chain_and_a_deleted_table_may_be_ours() {
    for (table, chain) in [("nat", Some("PREROUTING")), ("filter", None)] {
        assert_eq!(changed(table, chain, NftChange::Delete), Some(Touched::Perhaps));
    }
}
