//! What is drift, and what is not.

use netlink::nft::NftChange;

use super::*;

const US: u32 = 77;
const NFT: u32 = 4711;

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(US);
    ledger.begin(10);
    ledger
}

fn changed(table: &str, port: u32) -> NftEvent {
    of_family(TableFamily::Ip, table, port)
}

fn of_family(family: TableFamily, table: &str, port: u32) -> NftEvent {
    let (table, chain) = (table.into(), Some("pool-1".into()));
    NftEvent::Changed { family: Some(family), table, object: "chain", chain, verb: NftChange::New, port }
}

fn generation(id: u32, port: u32) -> NftEvent {
    NftEvent::Generation { id, pid: 5, process: "nft".into(), port }
}

fn drift() -> Option<Drift> {
    Some(Drift::Changed { object: "chain".into(), process: "nft".into(), pid: 5 })
}

#[test]
fn another_program_in_our_table_is_drift() {
    let mut ledger = ledger();
    assert_eq!(ledger.hear(changed("fairlead", NFT)), None, "the transaction is not complete");
    assert_eq!(ledger.hear(changed("fairlead", NFT)), None);
    assert_eq!(ledger.hear(generation(11, NFT)), drift());
    assert_eq!(ledger.hear(generation(12, NFT)), None, "told once");
}

#[test]
fn we_and_other_tables_are_not() {
    let mut ledger = ledger();
    ledger.committed();
    for notice in [
        changed("fairlead", US),
        generation(11, US),
        changed("other", NFT),
        generation(12, NFT),
        of_family(TableFamily::Inet, "fairlead", NFT),
        generation(13, NFT),
    ] {
        assert_eq!(ledger.hear(notice), None);
    }
    ledger.lost();
    assert_eq!(ledger.check(13), Proof::Known);
    assert!(!ledger.is_unsure());
}

#[test]
fn what_was_before_has_no_meaning() {
    let mut ledger = ledger();
    assert_eq!(ledger.hear(changed("fairlead", NFT)), None);
    assert_eq!(ledger.hear(generation(10, NFT)), None);
    ledger.lost();
    assert_eq!(ledger.check(10), Proof::Known, "and is not counted");
    let mut never_begun = Ledger::new(US);
    assert_eq!(never_begun.hear(changed("fairlead", NFT)), None);
    assert_eq!(never_begun.hear(generation(1, NFT)), None);
    assert!(!never_begun.is_unsure());
}

#[test]
fn a_loss_is_proven_harmless_by_the_generation_or_not_at_all() {
    let mut ledger = ledger();
    ledger.committed();
    ledger.committed();
    assert_eq!(ledger.hear(NftEvent::Lost), None);
    assert!(ledger.is_unsure());
    assert_eq!(ledger.check(13), Proof::Unknown, "somebody has done something");
    assert!(ledger.is_unsure());
    assert_eq!(ledger.check(12), Proof::Known);
    assert!(!ledger.is_unsure());
}

#[test]
fn generations_start_over() {
    let mut ledger = Ledger::new(US);
    ledger.begin(u32::MAX);
    assert_eq!(ledger.hear(changed("fairlead", NFT)), None);
    assert_eq!(ledger.hear(generation(1, NFT)), drift());
    ledger.committed();
    ledger.lost();
    assert_eq!(ledger.check(1), Proof::Known);
}
