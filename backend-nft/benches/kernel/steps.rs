//! Measures small changes of a large state, from the commit until the kernel has executed them.

use backend::testing::ProgramAll as _;
use std::time::{Duration, Instant};

use backend::{NodeState, testing};
use backend_nft::Nft;
use proto::model::{Endpoint, IpFamily, Operation, PoolClass, PoolId, ServicePortKey};

use crate::report::BenchReport;

/// How often each change is measured.
const ROUNDS: u32 = 200;

pub(crate) async fn measure(report: &mut BenchReport, backend: &mut Nft, state: NodeState) {
    let mut steps = Steps { backend, state };
    let keys: Vec<ServicePortKey> = steps.state.service_ports().keys().cloned().collect();
    let (mut replaced, mut added, mut removed, mut new_size, mut service_removed, mut service_added) =
        Default::default();
    // One service port has 11 endpoints, so that the chain of that size exists.
    let (last, keys) = keys.split_last().unwrap();
    steps.change(&mut Vec::new(), [pool(last, vec![endpoint(u32::MAX)], vec![])]).await;
    for round in 0..ROUNDS {
        let key = &keys[(round as usize * 7919) % keys.len()];
        let first = steps.first(key);
        let (one, two) = (endpoint(2 * round), endpoint(2 * round + 1));
        steps.change(&mut replaced, [pool(key, vec![one], vec![first])]).await;
        steps.change(&mut added, [pool(key, vec![two], vec![])]).await;
        steps.change(&mut removed, [pool(key, vec![], vec![one])]).await;
        let (three, four) = (endpoint(2 * round + 1_000), endpoint(2 * round + 1_001));
        steps.change(&mut new_size, [pool(key, vec![three, four], vec![])]).await;
        steps.change(&mut Vec::new(), [pool(key, vec![], vec![three, four])]).await;

        let service = steps.state.service_port(key).unwrap().clone();
        steps.change(&mut service_removed, [Operation::RemoveServicePort(key.clone())]).await;
        let id = PoolId { key: key.clone(), class: PoolClass::Cluster, family: IpFamily::V4 };
        let endpoints = service.pool(PoolClass::Cluster, IpFamily::V4).clone();
        let whole = [Operation::PutServicePort(service.port), Operation::ReplacePool { pool: id, endpoints }];
        steps.change(&mut service_added, whole).await;
    }
    report.duration("one endpoint replaced, median", median(replaced));
    report.duration("one endpoint added, median", median(added));
    report.duration("one endpoint removed, median", median(removed));
    report.duration("two added, the only pool of that size, median", median(new_size));
    report.duration("one service removed, median", median(service_removed));
    report.duration("one service added, median", median(service_added));
    let applied = crate::backend().reconcile_all(&steps.state).await.unwrap();
    assert_eq!(applied.writes, 0, "the changes must have the result of a reconcile");
}

/// Measures only the replacement of an endpoint.
pub(crate) async fn replace(report: &mut BenchReport, backend: &mut Nft, state: NodeState) {
    let mut steps = Steps { backend, state };
    let keys: Vec<ServicePortKey> = steps.state.service_ports().keys().cloned().collect();
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let key = &keys[(round as usize * 7919) % keys.len()];
        let first = steps.first(key);
        steps.change(&mut times, [pool(key, vec![endpoint(round)], vec![first])]).await;
    }
    report.duration("one endpoint replaced, longest", times.iter().max().copied().unwrap_or_default());
    report.duration("one endpoint replaced, median", median(times));
}

struct Steps<'a> {
    backend: &'a mut Nft,
    state: NodeState,
}

impl Steps<'_> {
    async fn change<const N: usize>(&mut self, times: &mut Vec<Duration>, operations: [Operation; N]) {
        let changes = testing::apply(&mut self.state, operations);
        let start = Instant::now();
        let applied = self.backend.apply_all(&self.state, &changes).await.unwrap();
        times.push(start.elapsed());
        assert!(applied.writes > 0 && applied.failures.is_empty());
    }

    fn first(&self, key: &ServicePortKey) -> Endpoint {
        self.state.service_port(key).unwrap().pool(PoolClass::Cluster, IpFamily::V4)[0]
    }
}

fn pool(key: &ServicePortKey, add: Vec<Endpoint>, remove: Vec<Endpoint>) -> Operation {
    let pool = PoolId { key: key.clone(), class: PoolClass::Cluster, family: IpFamily::V4 };
    Operation::ChangePool { pool, add, remove }
}

/// An endpoint of no service.
fn endpoint(n: u32) -> Endpoint {
    let [.., high, low] = n.to_be_bytes();
    Endpoint::new([10, 250, high, low].into(), 8080.try_into().unwrap())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
