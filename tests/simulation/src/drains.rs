//! Pods that end, and ask whether any node still sends them new connections. After the answer that none does, no kernel
//! may have them.

use std::{net::IpAddr, sync::Arc, time::Duration};

use backend::{
    ServicePortState,
    drained::{Drained, Follower},
};
use proto::{
    model::{IpFamily, TrafficPolicy},
    node_set::NodeSet,
};

use crate::{
    kernel::SimulatedKernel,
    network::{Network, NodeDrains},
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

/// Whether new connections may go to an address.
fn may_use(state: &ServicePortState, address: IpAddr) -> bool {
    let ServicePortState { port, cluster, local, established: _, gone: _ } = state;
    let is_local = port.internal_policy == TrafficPolicy::Local
        || (port.external_policy == TrafficPolicy::Local && port.externally_accessible());
    let family = IpFamily::of(&address);
    cluster[family].has_address(address) || (is_local && local[family].has_address(address))
}

/// Waits on its node for the drain of a pod, and checks the kernels of the nodes whose processes have run since.
/// `cluster`: all nodes; an answer of frontends that do not know them, as their API server serves an old list, is not
/// checked. `is_current`: whether no object has changed since the pod ends.
pub(crate) async fn drain(
    trace: Trace,
    network: Network,
    (address, node): (IpAddr, usize),
    cluster: NodeSet,
    nodes: Vec<DrainedNode>,
    is_current: impl Fn() -> bool,
) {
    let streams = Arc::new(NodeDrains::new(network, node));
    let drained = Follower::new(streams.clone()).wait(address, PATIENCE).await;
    trace!(trace, "pod {address} of node {node}: {drained:?}");
    let Drained::Yes { absent: 0, silent } = drained else { return };
    if !silent.is_empty() || !streams.has_known(cluster) || !is_current() {
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
