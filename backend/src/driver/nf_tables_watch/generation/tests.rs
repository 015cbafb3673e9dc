//! Tests of the accounting of nf_tables generations.

use netlink::nft::TableFamily;

use super::*;

const OWN_PORT: u32 = 77;
const NFT_PORT: u32 = 4711;

fn touched(event: &NftEvent) -> Option<Touched> {
    let NftEvent::Changed { table, object, is_deletion, .. } = event else { return None };
    match (table.as_str(), is_deletion) {
        ("ours", _) => Some(Touched::Ours(object)),
        ("shared", true) => Some(Touched::Perhaps),
        _ => None,
    }
}

fn tracker() -> GenerationTracker {
    GenerationTracker::new(Some(OWN_PORT), touched, 10)
}

fn changed(table: &str, port: u32) -> NftEvent {
    let (table, chain) = (table.into(), Some("chain".into()));
    NftEvent::Changed { family: Some(TableFamily::Ip), table, object: "chain", chain, is_deletion: true, port }
}

fn generation(id: u32, port: u32) -> NftEvent {
    NftEvent::Generation { id, pid: 5, process: "nft".into(), port }
}

fn drift(tracker: &mut GenerationTracker, events: impl IntoIterator<Item = NftEvent>) -> Option<Drift> {
    events.into_iter().for_each(|event| tracker.notified(event));
    tracker.drift.take()
}

fn by_nft() -> Option<Drift> {
    Some(Drift::Changed { object: "chain".into(), process: "nft".into(), pid: 5 })
}

#[test]
fn a_change_of_our_objects_by_another_process_is_drift_once_its_transaction_is_complete() {
    let mut tracker = tracker();
    assert_eq!(drift(&mut tracker, [changed("ours", NFT_PORT)]), None);
    assert_eq!(drift(&mut tracker, [changed("ours", NFT_PORT)]), None);
    assert_eq!(drift(&mut tracker, [generation(11, NFT_PORT)]), by_nft());
    assert_eq!(drift(&mut tracker, [generation(12, NFT_PORT)]), None, "it is reported once");
}

#[test]
fn a_change_of_an_object_that_may_have_been_ours_is_checked() {
    let shared = || [changed("shared", NFT_PORT), generation(11, NFT_PORT)];
    let mut checked = tracker();
    assert_eq!(drift(&mut checked, shared()), None);
    assert_eq!(checked.suspect.take().map(|_| checked.accounts_for(11)), Some(true));
    assert_eq!(drift(&mut checked, [changed("foreign", NFT_PORT), generation(12, NFT_PORT)]), None);
    assert_eq!(checked.suspect, None);
    let lost = [NftEvent::Lost, changed("shared", NFT_PORT), generation(11, NFT_PORT)];
    assert_eq!(drift(&mut tracker(), lost), Some(Drift::Possible));
    let both = [changed("shared", NFT_PORT), changed("ours", NFT_PORT), generation(11, NFT_PORT)];
    assert_eq!(drift(&mut tracker(), both), by_nft(), "a certain change wins");
    let ours = [changed("ours", NFT_PORT), generation(12, NFT_PORT)];
    assert_eq!(drift(&mut tracker(), shared().into_iter().chain(ours)), by_nft(), "also a later one");
}

#[test]
fn own_transactions_and_foreign_tables_are_not_drift() {
    let mut tracker = tracker();
    tracker.committed(1);
    let events =
        [changed("ours", OWN_PORT), generation(11, OWN_PORT), changed("foreign", NFT_PORT), generation(12, NFT_PORT)];
    assert_eq!(drift(&mut tracker, events), None);
    tracker.unsure = true;
    assert!(tracker.accounts_for(12));
    assert!(!tracker.unsure);
}

#[test]
fn notifications_from_before_the_start_are_ignored() {
    let mut tracker = tracker();
    assert_eq!(drift(&mut tracker, [changed("ours", NFT_PORT), generation(10, NFT_PORT)]), None);
    tracker.unsure = true;
    assert!(tracker.accounts_for(10), "and not counted");
}

#[test]
fn the_generation_shows_whether_lost_notifications_matter() {
    let mut tracker = tracker();
    tracker.committed(2);
    assert_eq!(drift(&mut tracker, [NftEvent::Lost]), None);
    assert!(tracker.unsure);
    assert!(!tracker.accounts_for(13), "another process made a transaction");
    assert!(tracker.unsure);
    assert!(tracker.accounts_for(12));
    assert!(!tracker.unsure);
}

#[test]
fn a_generation_after_lost_notifications_may_have_changed_our_objects() {
    let mut tracker = tracker();
    assert_eq!(drift(&mut tracker, [NftEvent::Lost, generation(11, NFT_PORT)]), Some(Drift::Possible));
    assert!(!tracker.accounts_for(11), "it is not counted");
    tracker.restart(11);
    assert_eq!(drift(&mut tracker, [NftEvent::Lost]), None);
    assert!(tracker.accounts_for(11), "nothing was lost that matters");
    assert_eq!(drift(&mut tracker, [generation(12, NFT_PORT)]), None);
}

#[test]
fn generations_wrap_around_and_skip_0() {
    let mut tracker = GenerationTracker::new(Some(OWN_PORT), touched, u32::MAX);
    assert_eq!(drift(&mut tracker, [changed("ours", NFT_PORT), generation(1, NFT_PORT)]), by_nft());
    tracker.committed(1);
    tracker.unsure = true;
    assert!(tracker.accounts_for(1));
}
