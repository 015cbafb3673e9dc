//! Pods that end, and ask whether any node still sends them new connections. After the answer that none does, no kernel
//! may have them.

use std::{
    fmt,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use backend::{
    ServicePortState,
    drained::{AskFrontends, Drained, FrontendAnswer, wait},
};
use futures::future::BoxFuture;
use proto::{
    model::{IpFamily, TrafficPolicy},
    node_set::NodeSet,
    v1::DrainedRequest,
};
use tokio::time::timeout;

use crate::{
    kernel::SimulatedKernel,
    network::{Listening, Network},
    oracle::NodeOracle,
    trace::{Trace, trace},
};

/// How long a pod waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// The kernel of a node, and when its process has started.
pub(crate) struct DrainedNode {
    pub(crate) number: usize,
    pub(crate) kernel: SimulatedKernel,
    pub(crate) oracle: NodeOracle,
    /// The number of starts of its process.
    pub(crate) starts: u64,
}

/// What a node's backend asks: all frontends.
struct Frontends {
    network: Network,
    /// The nodes that each of the last answers knew.
    known: Mutex<Vec<NodeSet>>,
}

impl fmt::Debug for Frontends {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Frontends")
    }
}

impl AskFrontends for Frontends {
    fn ask(&self, request: DrainedRequest, limit: Duration) -> BoxFuture<'_, Result<Vec<FrontendAnswer>>> {
        Box::pin(async move {
            let asked = self.network.listening().into_iter().enumerate();
            let answers = asked.map(async |(number, Listening { frontend, shutdown, .. })| {
                let answer = timeout(limit, frontend.drained(&request, shutdown)).await;
                let answer = answer.map_err(anyhow::Error::from).and_then(|answer| answer.map_err(Into::into));
                (format!("frontend {number}"), answer)
            });
            let answers: Vec<FrontendAnswer> = futures::future::join_all(answers).await;
            let clusters = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.cluster);
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = clusters.collect();
            Ok(answers)
        })
    }
}

/// Whether new connections may go to an address.
fn may_use(state: &ServicePortState, address: IpAddr) -> bool {
    let ServicePortState { port, cluster, local, established: _, gone: _ } = state;
    let is_local = port.internal_policy == TrafficPolicy::Local
        || (port.external_policy == TrafficPolicy::Local && port.externally_accessible());
    let family = IpFamily::of(&address);
    cluster[family].has_address(address) || (is_local && local[family].has_address(address))
}

/// Waits for the drain of a pod, and checks the kernels of the nodes whose processes have run since.
/// `cluster`: all nodes; an answer of frontends that do not know them, as their API server serves an old list, is not
/// checked. `is_current`: whether no object has changed since the pod ends.
pub(crate) async fn drain(
    trace: Trace,
    network: Network,
    address: IpAddr,
    cluster: NodeSet,
    nodes: Vec<DrainedNode>,
    is_current: impl Fn() -> bool,
) {
    let frontends = Frontends { network, known: Mutex::default() };
    let drained = wait(&frontends, &[address], PATIENCE, || false).await;
    trace!(trace, "pod {address}: {drained:?}");
    let Ok(Drained::Yes { absent: 0, silent }) = drained else { return };
    let know_all = frontends.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&cluster);
    if !silent.is_empty() || !know_all || !is_current() {
        return;
    }
    for DrainedNode { number, kernel, oracle, starts } in nodes {
        if oracle.starts() != starts || oracle.is_mixed() || kernel.is_degraded() {
            continue;
        }
        let used = kernel.service_ports().into_iter().find(|(_, port)| may_use(port, address));
        if let Some((key, _)) = used {
            trace.violation(format_args!("pod {address} is drained, but node {number} uses it for {key}"));
        }
    }
}
