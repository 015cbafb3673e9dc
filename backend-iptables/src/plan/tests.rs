//! The complete scripts of changes.

mod base;
mod histories;

use backend::testing::ProgramAll as _;
use backend::{
    Backend, NodeState,
    dataplane::{DataplaneOptions, LocalDetector},
    testing::{ServiceBuilder, Stack, apply, mk_key, mk_state, synthetic},
};
use proto::model::{Endpoint, IpFamily, Operation, Pool, PoolClass, PoolId};

use super::*;
use crate::{
    fake_driver::FakeDriver,
    kernel::fake::{FakeKernel, Restore},
};

/// Pods are in 10.0.0.0/8 and fd00:10::/32.
fn driver(kernel: &FakeKernel) -> FakeDriver {
    let cidrs = ["10.0.0.0/8", "fd00:10::/32"].map(|cidr| cidr.parse().unwrap()).to_vec();
    let options = DataplaneOptions { local_detector: LocalDetector::ClusterCidr(cidrs), ..DataplaneOptions::default() };
    kernel.driver(options)
}

/// A service port whose chains end in `XPGD46QRK7WJZT7O`, beside another one.
fn state(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> NodeState {
    beside(mk_state().service("ns1/svc1:p80", |web| build(web.cluster_ip("10.96.0.1"))))
}

fn beside(state: backend::testing::StateBuilder) -> NodeState {
    state.service("ns2/svc2:p80", |two| two.cluster_ip("10.96.0.2").endpoints(["10.180.0.9:80"])).build()
}

/// The scripts that change one state to another.
async fn scripts(before: &NodeState, after: &NodeState) -> Vec<Restore> {
    let (kernel, mut current) = (FakeKernel::default(), before.clone());
    let mut driver = driver(&kernel);
    driver.reconcile_all(before).await.unwrap();
    kernel.take_restores();
    let changes = backend::testing::transition(&mut current, after);
    driver.apply_all(&current, &changes).await.unwrap();
    let restores = kernel.take_restores();
    assert!(restores.iter().all(|restore| restore.accepted), "{restores:?}");
    restores
}

#[track_caller]
fn assert_script(restores: &[Restore], expected: &str) {
    let [restore] = restores else { panic!("not one script: {restores:?}") };
    let expected = expected.trim_start();
    assert!(restore.script == expected, "written:\n{}\nexpected:\n{expected}", restore.script);
}

const ONE: [&str; 1] = ["10.180.0.1:80"];
const TWO: [&str; 2] = ["10.180.0.1:80", "10.180.0.2:80"];

/// One transaction: changed chains are declared, which empties them, and filled. The chain of the other endpoint is not
/// written.
#[tokio::test]
async fn replacing_an_endpoint() {
    let (before, after) =
        (state(|web| web.endpoints(TWO)), |web: ServiceBuilder| web.endpoints(["10.180.0.1:80", "10.180.0.3:80"]));
    assert_script(
        &scripts(&before, &state(after)).await,
        r#"
*nat
:KUBE-SEP-ICDUIKC33SFI6ZPR - [0:0]
:KUBE-SEP-LXVODXWDISEETFEF - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
-A KUBE-SEP-ICDUIKC33SFI6ZPR -s 10.180.0.3/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
-A KUBE-SEP-ICDUIKC33SFI6ZPR -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.3:80
-A KUBE-SVC-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ
-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.3:80" -j KUBE-SEP-ICDUIKC33SFI6ZPR
-X KUBE-SEP-LXVODXWDISEETFEF
COMMIT
"#,
    );
}

/// Its line comes first: the jump to node ports stays the last. Nothing leads to it before the filter would know what
/// to do.
#[tokio::test]
async fn adding_and_removing_a_service() {
    let (with, without) = (state(|web| web.endpoints(ONE)), beside(mk_state()));
    assert_script(
        &scripts(&without, &with).await,
        r#"
*filter
-I FAIRLEAD-CLUSTER-IPS -d 10.96.0.1/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
COMMIT
*nat
:KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
-A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
-A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80
-A KUBE-SVC-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ
-I KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
COMMIT
"#,
    );
    assert_script(
        &scripts(&with, &without).await,
        r#"
*nat
:KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
-D KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
-X KUBE-SEP-SXIVWICOYRO3J4NJ
-X KUBE-SVC-XPGD46QRK7WJZT7O
COMMIT
*filter
-D FAIRLEAD-CLUSTER-IPS -d 10.96.0.1/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
COMMIT
"#,
    );
}

/// The rule that rejects is added before the last endpoint is removed, and deleted after the first is added: a
/// connection in between is either served or rejected.
#[tokio::test]
async fn removing_the_last_endpoint_and_adding_the_first() {
    let (with, without) = (state(|web| web.endpoints(ONE)), state(|web| web));
    assert_script(
        &scripts(&with, &without).await,
        r#"
*filter
-I KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
COMMIT
*nat
:KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
-D KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
-X KUBE-SEP-SXIVWICOYRO3J4NJ
-X KUBE-SVC-XPGD46QRK7WJZT7O
COMMIT
"#,
    );
    let restores = scripts(&without, &with).await;
    let parts: Vec<&str> = restores[0].script.lines().filter(|line| line.starts_with(['*', '-'])).collect();
    assert_eq!((parts[0], parts[parts.len() - 2]), ("*nat", "*filter"));
    assert!(parts[parts.len() - 1].starts_with("-D KUBE-SERVICES -d 10.96.0.1/32"), "{parts:?}");
}

/// A rule that several ports of a service need is added with the first and deleted with the last.
#[tokio::test]
async fn a_common_rule_exists_once() {
    let ports = |ports: &[(&str, u16)]| {
        let ports = ports.iter().fold(mk_state(), |state, (key, port)| {
            state.service(key, |web| {
                let web = web.cluster_ip("10.96.0.1").port(*port).health_check_node_port(32000);
                web.external_local().endpoints(ONE)
            })
        });
        beside(ports)
    };
    let (http, https) = (("ns1/svc1:p80", 80), ("ns1/svc1:p443", 443));
    let shared = |restores: Vec<Restore>| -> Vec<String> {
        let words = ["FAIRLEAD-CLUSTER-IPS", "KUBE-NODEPORTS"];
        let allows_duplicates = |line: &&str| words.iter().any(|word| line.contains(word));
        let lines = restores.iter().flat_map(|restore| restore.script.lines().filter(allows_duplicates));
        lines.map(|line| line.split(" -m ").next().unwrap_or_default().to_owned()).collect()
    };
    let none = [""; 0];
    assert_eq!(shared(scripts(&ports(&[http]), &ports(&[http, https])).await), none);
    assert_eq!(shared(scripts(&ports(&[http, https]), &ports(&[https])).await), none);
    // One port is removed, another one added.
    assert_eq!(shared(scripts(&ports(&[http]), &ports(&[https])).await), none);
    let removed = shared(scripts(&ports(&[https]), &ports(&[])).await);
    assert_eq!(removed, ["-D KUBE-NODEPORTS -p tcp", "-D FAIRLEAD-CLUSTER-IPS -d 10.96.0.1/32"]);
}

/// The jump to node ports changes and stays the last; rules of services are not written.
#[tokio::test]
async fn changing_the_address_of_the_node() {
    let at = |address: &str| beside(mk_state().node_addresses([address]));
    assert_script(
        &scripts(&at("192.168.1.1"), &at("192.168.1.2")).await,
        r#"
*nat
-D KUBE-SERVICES -d 192.168.1.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SERVICES -d 192.168.1.2/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
-D KUBE-EXTERNAL-SERVICES -d 192.168.1.1/32 -m comment --comment "node ports that nobody serves" -m addrtype --dst-type LOCAL -j FAIRLEAD-NODEPORTS
-A KUBE-EXTERNAL-SERVICES -d 192.168.1.2/32 -m comment --comment "node ports that nobody serves" -m addrtype --dst-type LOCAL -j FAIRLEAD-NODEPORTS
COMMIT
"#,
    );
}

/// A node has several pod CIDRs, one, and several again, before the chain for several is deleted.
#[tokio::test]
async fn a_chain_that_the_base_ruleset_needs_again_is_kept() {
    let with = |cidrs: &[&str]| beside(mk_state().pod_cidrs(cidrs.iter().copied()));
    let (two, one) = (with(&["10.244.1.0/24", "10.244.2.0/24"]), with(&["10.244.1.0/24"]));
    let options = DataplaneOptions { local_detector: LocalDetector::NodeCidr, ..DataplaneOptions::default() };
    let kernel = FakeKernel::default();
    let mut driver = kernel.driver(options);
    driver.reconcile_all(&two).await.unwrap();
    let (rules, mut current) = (kernel.shape(IpFamily::V4), two.clone());
    let changes = backend::testing::transition(&mut current, &one);
    let report = driver.apply(&current, &changes).await.unwrap();
    assert!(report.unfinished.is_some(), "the chain is not deleted yet: {report:?}");
    let changes = backend::testing::transition(&mut current, &two);
    driver.apply_all(&current, &changes).await.unwrap();
    let restores = kernel.take_restores();
    assert!(restores.iter().all(|restore| restore.accepted), "{restores:?}");
    assert_eq!(kernel.shape(IpFamily::V4), rules);
}

#[tokio::test]
async fn an_equal_state_writes_nothing() {
    let state = state(|web| web.endpoints(ONE));
    assert_eq!(scripts(&state, &state).await, []);
}

#[tokio::test]
async fn the_size_of_a_script_does_not_depend_on_the_number_of_services() {
    let mut counted = Vec::new();
    for services in [10, 10_000] {
        let kernel = FakeKernel::default();
        let mut driver = driver(&kernel);
        let mut state = synthetic(services, 1, Stack::V4);
        let key = mk_key("default/svc-7");
        let pool = PoolId { key: key.clone(), class: PoolClass::Cluster, family: IpFamily::V4 };
        let endpoints: Pool = (1..=10).map(|n| endpoint([10, 250, 0, n])).collect();
        apply(&mut state, [Operation::ReplacePool { pool: pool.clone(), endpoints: endpoints.clone() }]);
        let port = state.service_port(&key).unwrap().port.clone();
        driver.reconcile_all(&state).await.unwrap();
        kernel.take_restores();
        let (new, old) = (endpoint([10, 250, 1, 1]), endpoint([10, 250, 0, 4]));
        let mut lines = Vec::new();
        for operations in [
            vec![Operation::ChangePool { pool: pool.clone(), add: vec![new], remove: vec![old] }],
            vec![Operation::RemoveServicePort(key)],
            vec![Operation::PutServicePort(port), Operation::ReplacePool { pool, endpoints }],
        ] {
            let changes = apply(&mut state, operations);
            driver.apply_all(&state, &changes).await.unwrap();
            lines.extend(kernel.take_restores().iter().map(|restore| restore.script.lines().count()));
        }
        counted.push(lines);
    }
    // Replaced: its chain with 11 rules, one new chain, one deleted chain. Removed: 11 chains emptied and deleted, two
    // shared rules. Added: 11 chains with 31 rules, two shared rules.
    let replaced = 2 + (1 + 11) + (1 + 2) + 2;
    assert_eq!(counted[0], [replaced, 4 + 2 * 11 + 2, 4 + 11 + 31 + 2]);
    assert!(replaced <= 20);
    assert_eq!(counted[0], counted[1]);
}

fn endpoint(address: [u8; 4]) -> Endpoint {
    Endpoint::new(address.into(), 8080.try_into().unwrap())
}
