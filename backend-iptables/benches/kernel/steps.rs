//! Small changes of a large state, by the backend and by the plain programs in turn.

use backend::testing::ProgramAll as _;
use std::time::{Duration, Instant};

use backend::{
    NodeState,
    testing::{self, Stack, mk_key, synthetic},
};
use backend_iptables::Iptables;
use iptables::Variant;
use proto::model::{Endpoint, IpFamily, Operation, PoolClass, PoolId, ServicePortKey};

use crate::{
    EACH, backend,
    plain::{self, Plain},
    report::Report,
    rules::Rules,
};

/// Each change is measured for this time, at least [`FEWEST`] and at most [`MOST`] times; the lower quartile counts.
const ROUNDS_TAKE: Duration = Duration::from_secs(40);
const FEWEST: usize = 6;
const MOST: usize = 40;

/// A change, and the scripts for it.
struct Step {
    what: &'static str,
    operations: Vec<Operation>,
    least: String,
    kube_proxy: String,
    times: Times,
}

#[derive(Default)]
struct Times {
    ours: Vec<Duration>,
    least: Vec<Duration>,
    kube_proxy: Vec<Duration>,
}

/// The saved rules of the measured states, which contain the names of chains. Read with the legacy variant, which is
/// faster; the other prints the same.
pub(crate) struct Texts {
    /// The rules of both families.
    pub(crate) saved: [String; 2],
    /// With one endpoint replaced.
    replaced: Rules,
}

impl Texts {
    /// Reads them in the namespace of this thread.
    pub(crate) async fn new(services: u32) -> Self {
        let mut state = synthetic(services, EACH, Stack::V4);
        let mut backend = backend(Variant::Legacy);
        backend.reconcile_all(&state).await.unwrap();
        let saved = plain::saved(Variant::Legacy);
        let (key, [old, new]) = replaced(&state);
        apply(&mut backend, &mut state, &change(&key, new, old)).await;
        Self { saved, replaced: Rules::parse(&plain::saved(Variant::Legacy)[0]) }
    }
}

/// Replaces an endpoint and reverts that; removes a service and adds it again. Returns the resulting state.
pub(crate) async fn measure(
    report: &mut Report,
    backend: &mut Iptables,
    plain: &Plain,
    mut state: NodeState,
    texts: &Texts,
) -> NodeState {
    let (key, [old, new]) = replaced(&state);
    let middle = format!("{}/{}", key.namespace, key.name);
    let service = state.service_port(&key).unwrap().clone();
    let endpoints = service.pool(PoolClass::Cluster, IpFamily::V4).clone();
    let whole =
        vec![Operation::PutServicePort(service.port.clone()), Operation::ReplacePool { pool: pool(&key), endpoints }];
    let (replace, back) = (change(&key, new, old), change(&key, old, new));
    let (there, replaced) = (Rules::parse(&texts.saved[0]), &texts.replaced);
    let without = there.without(&middle);

    let step = |what, operations, from: &Rules, to: &Rules| Step {
        what,
        operations,
        least: from.least(to),
        kube_proxy: from.kube_proxy(to, &middle),
        times: Times::default(),
    };
    let mut steps = [
        step("one endpoint replaced", replace, &there, replaced),
        step("", back, replaced, &there),
        step("one service removed", vec![Operation::RemoveServicePort(key)], &there, &without),
        step("one service added", whole, &without, &there),
    ];
    let begun = Instant::now();
    for round in 0..MOST {
        if round >= FEWEST && begun.elapsed() > ROUNDS_TAKE {
            break;
        }
        for step in &mut steps {
            let (took, writes) = apply(backend, &mut state, &step.operations).await;
            let parts = step.least.matches("COMMIT").count();
            assert_eq!(writes, step.least.lines().count() - 2 * parts, "{}", step.least);
            step.times.ours.push(took);
        }
        for step in &mut steps {
            step.times.least.push(plain.restore(&step.least));
        }
        for step in &mut steps {
            step.times.kube_proxy.push(plain.restore(&step.kube_proxy));
        }
    }
    steps.into_iter().filter(|step| !step.what.is_empty()).for_each(|step| step.report(report));
    state
}

impl Step {
    fn report(self, report: &mut Report) {
        let Self { what, least, kube_proxy, times, .. } = self;
        let Times { ours, least: alone, kube_proxy: theirs } = times;
        let (ours, alone, theirs) = (quartile(ours), quartile(alone), quartile(theirs));
        report.count(&format!("{what}, lines"), least.lines().count());
        report.count(&format!("{what}, bytes"), least.len());
        report.count(&format!("{what}, lines of kube-proxy"), kube_proxy.lines().count());
        report.duration(&format!("{what}, lower quartile"), ours);
        report.duration(&format!("{what}, iptables-restore"), alone);
        report.duration(&format!("{what}, kube-proxy's lines"), theirs);
        report.ratio(&format!("{what}, to iptables-restore"), ours, alone);
        report.ratio(&format!("{what}, to kube-proxy's lines"), ours, theirs);
    }
}

async fn apply(backend: &mut Iptables, state: &mut NodeState, operations: &[Operation]) -> (Duration, usize) {
    let changes = testing::apply(state, operations.iter().cloned());
    let start = Instant::now();
    let applied = backend.apply_all(state, &changes).await.unwrap();
    assert!(applied.writes > 0 && applied.failures.is_empty());
    (start.elapsed(), applied.writes)
}

/// A service in the middle, one of its endpoints, and the replacement.
fn replaced(state: &NodeState) -> (ServicePortKey, [Endpoint; 2]) {
    let key = mk_key(&format!("default/svc-{}", state.service_ports().len() / 2));
    let old = state.service_port(&key).unwrap().pool(PoolClass::Cluster, IpFamily::V4)[3];
    (key, [old, Endpoint::new([10, 250, 0, 1].into(), 8080.try_into().unwrap())])
}

fn change(key: &ServicePortKey, add: Endpoint, remove: Endpoint) -> Vec<Operation> {
    vec![Operation::ChangePool { pool: pool(key), add: vec![add], remove: vec![remove] }]
}

fn pool(key: &ServicePortKey) -> PoolId {
    PoolId { key: key.clone(), class: PoolClass::Cluster, family: IpFamily::V4 }
}

/// The lower quartile: longer measurements may have waited for a processor.
fn quartile(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 4]
}
