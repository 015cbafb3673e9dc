//! What is drift, and what is not.

use super::*;

fn changed(table: &str, chain: Option<&str>, verb: NftChange) -> NftEvent {
    let object = if chain.is_some() { "rule" } else { "table" };
    let (table, chain) = (table.into(), chain.map(Into::into));
    NftEvent::Changed { family: Some(TableFamily::Ip), table, object, chain, verb, port: 7 }
}

fn generation(process: &str) -> NftEvent {
    NftEvent::Generation { id: 3, pid: 5, process: process.into(), port: 7 }
}

fn heard(notices: impl IntoIterator<Item = NftEvent>) -> Option<Drift> {
    let mut ledger = Ledger::default();
    notices.into_iter().for_each(|notice| ledger.hear(notice));
    ledger.drift
}

fn drift(by: &str) -> Option<Drift> {
    Some(Drift::Changed { object: "rule".into(), process: by.into(), pid: 5 })
}

#[test]
fn another_program_in_our_chains_is_drift() {
    let ours = || changed("nat", Some("KUBE-SERVICES"), NftChange::New);
    assert_eq!(heard([ours()]), None, "the transaction is not complete");
    assert_eq!(heard([ours(), generation("iptables")]), drift("iptables"));
    assert_eq!(heard([generation("nft")]), None);
}

#[test]
fn what_others_do_to_theirs_is_not() {
    for (table, chain) in [("nat", "CNI-HOSTPORT"), ("filter", "INPUT"), ("mangle", "KUBE-SERVICES")] {
        let notices = [changed(table, Some(chain), NftChange::New), generation("iptables")];
        assert_eq!(heard(notices), None, "{table} {chain}");
    }
}

#[test]
fn what_may_have_been_ours_is_looked_at() {
    for gone in [changed("nat", Some("PREROUTING"), NftChange::Delete), changed("filter", None, NftChange::Delete)] {
        assert_eq!(heard([gone.clone(), generation("iptables")]), Some(Drift::Possible));
        let more = [gone, changed("nat", Some("KUBE-SERVICES"), NftChange::Delete), generation("iptables")];
        assert_eq!(heard(more), drift("iptables"));
    }
    assert_eq!(heard([NftEvent::Lost]), Some(Drift::Possible));
}
