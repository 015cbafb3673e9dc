//! The thread that resets connections, beside the sync loop: it lists them after changes that concern endpoints which
//! are gone, and again until none is open.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::{
    AddressFamily,
    conntrack::{Flow, FlowProtocol},
};
use proto::model::{IpFamily, PerFamily, Protocol, ServicePortKey};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{error, info};

use super::{
    GonePort, GoneVips,
    probe::{Probe, ProbeSocket},
    rejecter::{Rejecter, Route},
};
use crate::{
    NodeState, Progress,
    backend::Work,
    conntrack::{
        ConntrackCleanup, FlowTable, KernelFlowTable,
        requests::{CleanupRequests, Wake},
    },
};

/// The connections that are handled together: what they take is the most that this thread needs.
const BATCH: usize = 1024;

/// The time after each pass over the connections until the next one: a probe or its answer may be lost. Connections
/// that are open after the last one have no client any more.
const PAUSES: [Duration; 7] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// The sync loop's side. None of its calls blocks. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct ConnectionResetter(Option<Requester>);

#[derive(Debug)]
struct Requester {
    requests: CleanupRequests<Updates>,
    /// What was recorded last: the service ports with endpoints that can be gone.
    recorded: BTreeMap<ServicePortKey, GonePort>,
    is_due: bool,
}

/// What the sync loop has recorded since the thread last took it.
#[derive(Debug, Default)]
struct Updates {
    /// The service ports that changed; `None`: nothing of it can be gone.
    service_ports: BTreeMap<ServicePortKey, Option<GonePort>>,
    /// The addresses of the Node object, if they changed.
    node_addresses: Option<Vec<IpAddr>>,
}

/// The thread's side.
#[derive(Debug)]
struct Worker {
    requests: CleanupRequests<Updates>,
    service_ports: BTreeMap<ServicePortKey, GonePort>,
    node_addresses: Vec<IpAddr>,
    is_ipvs: bool,
    progress: watch::Sender<Progress>,
    repeated: Repeated,
}

// === impl ConnectionResetter ===

impl ConnectionResetter {
    /// Starts the thread, in the network namespace of the calling thread. `is_ipvs`: IPVS translates connections.
    pub(crate) fn start(mode: ConntrackCleanup, is_ipvs: bool, progress: watch::Sender<Progress>) -> Self {
        if mode == ConntrackCleanup::Disabled {
            return Self(None);
        }
        let requests = CleanupRequests::default();
        let worker = Worker {
            requests: requests.clone(),
            service_ports: BTreeMap::new(),
            node_addresses: Vec::new(),
            is_ipvs,
            progress,
            repeated: Repeated::default(),
        };
        if let Err(error) = thread::Builder::new().name("resets".to_owned()).spawn(move || worker.run()) {
            error!(%error, "cannot start the thread that resets connections to endpoints that are gone");
            return Self(None);
        }
        Self(Some(Requester { requests, recorded: BTreeMap::new(), is_due: false }))
    }

    /// Records what `work` is about to program, at a cost proportional to the change.
    pub(crate) fn prepare(&mut self, work: &Work, state: &NodeState) {
        let Some(requester) = &mut self.0 else { return };
        match work {
            Work::Reconcile => {
                let former: Vec<_> = requester.recorded.keys().cloned().collect();
                requester.record(state, former.iter().chain(state.service_ports().keys()));
            }
            Work::Apply(changes) => requester.record(state, changes.service_ports.iter()),
        }
        let is_of_node = match work {
            Work::Reconcile => true,
            Work::Apply(changes) => changes.node,
        };
        if is_of_node {
            let addresses = state.node().addresses.clone();
            requester.requests.record(|updates| updates.node_addresses = Some(addresses));
        }
    }

    /// Requests a pass over all connections if what was recorded needs one.
    pub(crate) fn programmed(&mut self) {
        let Some(Requester { requests, is_due, .. }) = &mut self.0 else { return };
        requests.request(|_| {}, std::mem::take(is_due));
    }
}

impl Drop for ConnectionResetter {
    fn drop(&mut self) {
        if let Some(Requester { requests, .. }) = &self.0 {
            requests.close();
        }
    }
}

impl Requester {
    fn record<'a>(&mut self, state: &NodeState, keys: impl Iterator<Item = &'a ServicePortKey>) {
        for key in keys.filter(|key| key.protocol == Protocol::Tcp) {
            let port = state.service_port(key).and_then(GonePort::of);
            let before = self.recorded.get(key);
            if port.as_ref() == before {
                continue;
            }
            self.is_due |= port.as_ref().is_some_and(|port| port.has_more_than(before));
            match &port {
                Some(port) => self.recorded.insert(key.clone(), port.clone()),
                None => self.recorded.remove(key),
            };
            self.requests.record(|updates| {
                updates.service_ports.insert(key.clone(), port);
            });
        }
    }
}

// === impl Worker ===

impl Worker {
    fn run(mut self) {
        let requests = self.requests.clone();
        while requests.wait() {
            let begun = Instant::now();
            let result = self.reset_all();
            let is_failing = result.is_err();
            self.report(result);
            requests.finish(is_failing);
            requests.pause(begun.elapsed().min(Duration::from_secs(1)));
        }
    }

    /// Passes over the connections until none to an endpoint that is gone is open. Returns how many were reset.
    fn reset_all(&mut self) -> Result<usize> {
        let mut open_before = 0_usize;
        let mut reset = 0;
        let mut rejecter: Option<Rejecter> = None;
        let mut pauses = PAUSES.into_iter();
        loop {
            self.update();
            if let Some(mut old) = rejecter.take_if(|rejecter| rejecter.is_old()) {
                old.remove()?;
            }
            let pause = pauses.next();
            let open = self.pass(&mut rejecter, pause.is_none())?;
            reset += open_before.saturating_sub(open);
            open_before = open;
            let Some(pause) = pause.filter(|_| open > 0) else { break };
            match self.requests.wait_at_most(pause) {
                Wake::Elapsed => {}
                Wake::Due => pauses = PAUSES.into_iter(),
                // The rules end by themselves.
                Wake::Closed => return Ok(reset),
            }
        }
        if let Some(mut rejecter) = rejecter {
            rejecter.remove()?;
        }
        Ok(reset)
    }

    /// Handles all open connections to endpoints that are gone, and returns how many there are. In the last pass they
    /// are deleted: without a client, they would be found each time.
    fn pass(&self, rejecter: &mut Option<Rejecter>, is_last: bool) -> Result<usize> {
        let table = KernelFlowTable;
        let vips =
            GoneVips::of_service_ports(self.service_ports.values().map(|GonePort(port)| port), &self.node_addresses);
        let PerFamily { v4, v6 } = vips;
        let mut open = 0;
        for (family, conntrack_family, mut vips) in
            [(IpFamily::V4, AddressFamily::V4, v4), (IpFamily::V6, AddressFamily::V6, v6)]
        {
            if vips.is_empty() {
                continue;
            }
            vips.add_addresses(&table.addresses().context("list the addresses of the node")?);
            let mut socket = None;
            let mut batch = Vec::new();
            let mut handle = |batch: &mut Vec<Flow>| -> Result<()> {
                open += batch.len();
                if is_last {
                    table.delete(batch).context("delete connections without a client")?;
                } else if !batch.is_empty() {
                    let rejecter = get_or_open(rejecter, Rejecter::open)?;
                    let socket = get_or_open(&mut socket, || {
                        ProbeSocket::open(family).context("open a raw socket (requires CAP_NET_RAW)")
                    })?;
                    rejecter.reject(family, batch.iter().map(Route::of))?;
                    for flow in batch.iter().filter(|flow| rejecter.is_rejecting(family, &Route::of(flow))) {
                        // A client that cannot be reached needs no reset.
                        let _ = socket.send(&Probe::of(flow, self.is_ipvs));
                    }
                }
                batch.clear();
                Ok(())
            };
            let mut failed = None;
            let visited = table.visit(conntrack_family, FlowProtocol::Tcp, &mut |flow| {
                if failed.is_none() && vips.is_gone(&flow) {
                    batch.push(flow);
                    if batch.len() == BATCH {
                        failed = handle(&mut batch).err();
                    }
                }
                Ok(())
            });
            visited.with_context(|| format!("list {family} connections"))?;
            match failed {
                Some(error) => return Err(error),
                None => handle(&mut batch)?,
            }
        }
        Ok(open)
    }

    /// Takes what the sync loop has recorded.
    fn update(&mut self) {
        let Updates { service_ports, node_addresses } = self.requests.take();
        for (key, port) in service_ports {
            match port {
                Some(port) => self.service_ports.insert(key, port),
                None => self.service_ports.remove(&key),
            };
        }
        if let Some(addresses) = node_addresses {
            self.node_addresses = addresses;
        }
    }

    fn report(&mut self, result: Result<usize>) {
        match result {
            Err(error) => {
                let error = format!("{error:#}");
                let occurrence = self.repeated.failed(&error);
                warn_if_news!(
                    occurrence,
                    error,
                    "cannot reset connections to endpoints that are gone, retrying after the next change"
                );
                self.progress.send_modify(|progress| progress.reset_failures += 1);
            }
            Ok(reset) => {
                if let Some(Recovery { count, duration }) = self.repeated.recovered() {
                    info!(failures = count, after_ms = duration.as_millis(), "connections can be reset again");
                }
                if reset > 0 {
                    info!(connections = reset, "reset connections to endpoints that are gone");
                    self.progress.send_modify(|progress| progress.reset_connections += reset as u64);
                }
            }
        }
    }
}

/// The first pass over the connections of the thread's network namespace, in this state.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn pass_once(state: &NodeState) -> Result<usize> {
    let ports = state.service_ports().iter().filter_map(|(key, service)| Some((key.clone(), GonePort::of(service)?)));
    let worker = Worker {
        requests: CleanupRequests::default(),
        service_ports: ports.collect(),
        node_addresses: state.node().addresses.clone(),
        is_ipvs: false,
        progress: watch::channel(Progress::default()).0,
        repeated: Repeated::default(),
    };
    worker.pass(&mut None, false)
}

fn get_or_open<T>(opened: &mut Option<T>, open: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    match opened {
        Some(opened) => Ok(opened),
        none => Ok(none.insert(open()?)),
    }
}
