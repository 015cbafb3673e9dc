//! The real kernel rejects one service port of 10,000. Runs in a network namespace and needs root.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use backend::{
    Drift,
    dataplane::{DataplaneOptions, Vip},
    driver::Driver,
    testing::{ProgramAll as _, Stack, mk_key, synthetic, transition},
};
use netlink::{nft::Rule, testing::block_on_in_netns};
use proto::model::{IpFamily, PerFamily, Protocol};

use crate::{
    data_plane::NftDataPlane,
    desired::EndpointKeys,
    element::{ElementData, Map, Verdict},
    kernel::{Kernel, Listing, Netlink, TransactionOutcome},
    operation::{Elements, Operation},
};

const SERVICES: u32 = 10_000;
/// The cluster IP of `default/svc-7777`.
const REJECTED_VIP: Vip = Vip::AddressPort {
    address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 30, 98)),
    port: 80,
    protocol: Protocol::Tcp,
};

/// The real kernel; the operations of one service port are made invalid.
struct InvalidatingKernel {
    kernel: Netlink,
    defect: Arc<Mutex<Defect>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// Its verdict jumps to a chain that does not exist: the kernel names the element.
    Element,
    /// A rule is invalid: the kernel names no service port.
    Rule,
    Nothing,
}

impl Kernel for InvalidatingKernel {
    async fn list(&mut self, keys: EndpointKeys) -> Result<PerFamily<Listing>> {
        self.kernel.list(keys).await
    }

    async fn tables(&mut self) -> Result<Vec<(IpFamily, String)>> {
        self.kernel.tables().await
    }

    async fn commit(&mut self, mut operations: Vec<(IpFamily, Operation)>) -> Result<TransactionOutcome> {
        let defect = *self.defect.lock().unwrap();
        let has_rejected_vip = |(_, operation): &(IpFamily, Operation)| {
            matches!(operation, Operation::AddElements(Map::Vips, elements)
                if elements.list.iter().any(|element| element.vip == REJECTED_VIP))
        };
        if defect == Defect::Rule && operations.iter().any(has_rejected_vip) {
            operations.push((IpFamily::V4, Operation::AddRule("no-such-chain".into(), Rule::default())));
        }
        for (_, operation) in &mut operations {
            if let Operation::AddElements(Map::Vips, Elements { list, .. }) = operation
                && defect == Defect::Element
            {
                for element in list.iter_mut().filter(|element| element.vip == REJECTED_VIP) {
                    let ElementData::Verdict(Verdict::Pool(chain)) = &mut element.data else { panic!("{element:?}") };
                    chain.count = 9_999;
                }
            }
        }
        self.kernel.commit(operations).await
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.drifted().await
    }
}

async fn check(defect: Defect, words: &[&str]) {
    let defect = Arc::new(Mutex::new(defect));
    let kernel = InvalidatingKernel { kernel: Netlink::open().unwrap(), defect: defect.clone() };
    let mut driver = Driver::new(NftDataPlane::new(kernel, DataplaneOptions::default()));
    let mut state = synthetic(SERVICES, 2, Stack::V4);
    let applied = driver.reconcile_all(&state).await.unwrap();
    let [failure] = &applied.failures[..] else { panic!("{:?}", applied.failures) };
    assert_eq!(failure.key, mk_key("default/svc-7777"));
    assert!(words.iter().all(|word| failure.reason.contains(word)), "{}", failure.reason);
    assert!(failure.retryable);
    let vips = async || {
        let listings = Netlink::open().unwrap().list(EndpointKeys::default()).await.unwrap();
        let mut elements = listings.v4.elements;
        elements.retain(|element| element.map == Map::Vips);
        elements
    };
    let found = vips().await;
    assert_eq!(found.len() as u32, SERVICES - 1);
    assert!(found.iter().all(|element| element.vip != REJECTED_VIP));

    // Changes of other service ports cost as usual and still report it.
    let mut target = state.clone();
    backend::testing::apply(&mut target, [proto::model::Operation::RemoveServicePort(mk_key("default/svc-1"))]);
    let changes = transition(&mut state, &target);
    let applied = driver.apply_all(&state, &changes).await.unwrap();
    assert!(applied.writes < 10, "{applied:?}");
    assert_eq!(applied.failures.len(), 1);
    // So does a reconcile.
    let applied = driver.reconcile_all(&state).await.unwrap();
    assert_eq!((applied.writes, applied.failures.len()), (0, 1));

    *defect.lock().unwrap() = Defect::Nothing;
    let applied = driver.reconcile_all(&state).await.unwrap();
    assert_eq!(applied.failures, []);
    assert!((3..10).contains(&applied.writes), "{applied:?}");
    assert_eq!(vips().await.len() as u32, SERVICES - 1);
}

fn run(defect: Defect, words: &'static [&'static str]) {
    block_on_in_netns(move || check(defect, words));
}

#[test]
fn a_rejected_element_is_isolated_by_its_name() {
    run(Defect::Element, &["10.96.30.98 . tcp . 80", "ENOENT"]);
}

#[test]
fn a_rejected_rule_is_isolated_by_bisecting() {
    run(Defect::Rule, &["no-such-chain", "ENOENT"]);
}
