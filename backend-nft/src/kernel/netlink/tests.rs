//! How the kernel rejects transactions. Each test runs in a network namespace of its own and needs root.

use backend::{
    dataplane::{DataplaneOptions, Vip},
    driver::Rejection,
};
use netlink::testing::block_on_in_netns;
use proto::model::{ClusterInfo, PerFamily, Protocol};

use super::*;
use crate::{
    desired::base,
    element::{Element, ElementData, PoolChain, PoolChainKind, Verdict},
    observed::Observed,
    operation::Elements,
};

/// More than one message full.
const MANY: u16 = 2_000;

fn verdict(port: u16, verdict: Verdict) -> Element {
    let vip = Vip::AddressPort { address: [10, 96, 0, 1].into(), port, protocol: Protocol::Tcp };
    Element { vip, map: Map::Vips, index: 0, data: ElementData::Verdict(verdict) }
}

/// The base ruleset of IPv4, and one verdict for each owner: ports from 1 on.
fn transaction(verdicts: impl IntoIterator<Item = Verdict>) -> Vec<(IpFamily, Operation)> {
    let node = proto::model::NodeInfo::unknown("node");
    let base = PerFamily::from_fn(|family| base(family, &DataplaneOptions::default(), &node, &ClusterInfo::default()));
    let effective = DataplaneOptions::default().effective(&node);
    let repairs = Observed::of(PerFamily::default(), &base, &effective).repairs;
    let mut elements = Elements::default();
    for (owner, to) in (0..).zip(verdicts) {
        elements.push(verdict(owner + 1, to), Some(owner.into()));
    }
    let mut operations = repairs.v4.first;
    operations.push(Operation::AddElements(Map::Vips, elements));
    operations.into_iter().map(|operation| (IpFamily::V4, operation)).collect()
}

fn commit(operations: Vec<(IpFamily, Operation)>) -> TransactionOutcome {
    block_on_in_netns(|| async move {
        let mut kernel = Netlink::open().unwrap();
        let outcome = kernel.commit(operations).await.unwrap();

        let tables = kernel.tables().await.unwrap();
        assert_eq!(tables.is_empty(), matches!(outcome, TransactionOutcome::Rejected(_)), "all or nothing");
        outcome
    })
}

fn rejected(operations: Vec<(IpFamily, Operation)>) -> Rejection {
    match commit(operations) {
        TransactionOutcome::Rejected(rejection) => rejection,
        TransactionOutcome::Committed { .. } => panic!("expected a rejection"),
    }
}

fn assert_committed(outcome: &TransactionOutcome) {
    assert!(matches!(outcome, TransactionOutcome::Committed { .. }), "{outcome:?}");
}

#[test]
fn a_rejected_element_is_traced_to_its_service_port() {
    let nowhere = Verdict::Pool(PoolChain { kind: PoolChainKind::Pool, count: 9, affinity: None });
    let verdicts = (0..MANY).map(move |owner| if [700, 1_900].contains(&owner) { nowhere } else { Verdict::Drop });
    let rejection = rejected(transaction(verdicts));
    assert_eq!(rejection.unnamed, None);
    let named: Vec<u32> = rejection.named.iter().map(|(owner, _)| *owner).collect();
    assert_eq!(named, [700, 1_900]);
    let reason = &rejection.named[0].1;
    assert!(reason.contains("10.96.0.1 . tcp . 701 : goto pool-9") && reason.contains("ENOENT"), "{reason}");
}

#[test]
fn a_rejected_operation_of_no_service_port_is_unnamed() {
    let mut operations = transaction([Verdict::Drop]);
    operations.push((IpFamily::V4, Operation::DeleteChain("no-such-chain".into())));
    let rejection = rejected(operations);
    assert_eq!(rejection.named, []);
    assert!(rejection.unnamed.as_ref().is_some_and(|reason| reason.contains("no-such-chain")), "{rejection:?}");
}

#[test]
fn a_valid_transaction_is_committed() {
    assert_committed(&commit(transaction((0..MANY).map(|_| Verdict::Reject))));
}

/// Transactions of others are told from those of this process, also while notifications are not received.
#[test]
fn changes_of_others_are_known() {
    block_on_in_netns(|| async {
        let mut kernel = Netlink::open().unwrap();
        let mut other = NftHandle::open().unwrap();
        let mut change = |name: &str, is_deleted| {
            let (mut batch, table) = (NftBatch::new(), nft::Table::new(nft::TableFamily::Ip, name));
            if is_deleted {
                batch.delete_table(&table)
            } else {
                batch.add_table(&table)
            }
            other.commit(&batch).unwrap();
        };
        assert_committed(&kernel.commit(transaction([])).await.unwrap());
        kernel.list(EndpointKeys::default()).await.unwrap();
        assert!(kernel.is_untouched());
        change("foreign", false);
        let own = vec![(IpFamily::V4, Operation::AddChain(nft::Chain::regular("pool-7")))];
        assert_committed(&kernel.commit(own).await.unwrap());
        assert!(kernel.is_untouched());
        change("fairlead2", false);
        assert!(!kernel.is_untouched());
        // Also after it was reported.
        assert!(matches!(kernel.drifted().await, Drift::Changed { .. }));
        assert!(!kernel.is_untouched());
        kernel.list(EndpointKeys::default()).await.unwrap();
        assert!(kernel.is_untouched());

        kernel.watch.pause().unwrap();
        change("fairlead2", true);
        kernel.watch.resume().unwrap();
        assert!(!kernel.is_untouched());
    });
}
