//! The thread that resets connections, beside what programs: it lists them only when an endpoint is due, and rests
//! after each pass for ten times as long as that took.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::{
    AddressFamily,
    conntrack::{Flow, FlowProtocol},
};
use proto::model::{IpFamily, PerFamily};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{error, info};

use super::{
    departed::{Departed, Due, OpenConnections},
    probe::{Probe, ProbeSocket},
    rejecter::{Rejected, Rejecter},
};
use crate::{
    Changes, DepartedEndpoints, NodeState, Progress,
    dataplane::NodePortAddresses,
    flows::{
        ConntrackCleanup,
        requests::{CleanupRequests, Wake},
        worker::{FlowTable, KernelFlowTable},
    },
};

/// The most connections that a pass resets: of a namespace, and in all.
const MAX_OF_NAMESPACE: usize = 1024;
const MAX: usize = 4096;

/// The shortest rest after a pass, so that at most [`MAX`] probes are sent in a second.
const MIN_REST: Duration = Duration::from_secs(1);
/// The rest after a pass, as a multiple of what it took.
const REST_FACTOR: u32 = 10;
/// The longest rest after passes that failed.
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// The thread waits for an event, at most for this time.
const IDLE: Duration = Duration::from_secs(3600);
/// How long the end of the process waits for the thread, which removes its rules.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The side of the follower of the stream. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct ConnectionResetter(Option<Handle>);

#[derive(Debug)]
struct Handle {
    departed: CleanupRequests<Departed>,
    /// Closed by the thread when it ends.
    ended: mpsc::Receiver<()>,
}

/// The thread's side.
#[derive(Debug)]
struct Worker {
    departed: CleanupRequests<Departed>,
    rejecter: Option<Rejecter>,
    is_ipvs: bool,
    progress: watch::Sender<Progress>,
    repeated: Repeated,
}

/// How long the thread rests after a pass.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The passes that failed since one succeeded.
    failures: u32,
}

// === impl ConnectionResetter ===

impl ConnectionResetter {
    /// Starts the thread, in the network namespace of the calling thread. `is_ipvs`: IPVS translates connections.
    pub(crate) fn start(mode: ConntrackCleanup, is_ipvs: bool, progress: watch::Sender<Progress>) -> Self {
        if mode == ConntrackCleanup::Disabled {
            return Self(None);
        }
        let departed = CleanupRequests::default();
        let worker = Worker::new(departed.clone(), is_ipvs, progress);
        let (sender, ended) = mpsc::channel();
        let run = move || {
            worker.run();
            drop(sender);
        };
        if let Err(error) = thread::Builder::new().name("resets".to_owned()).spawn(run) {
            error!(%error, "cannot start the thread that resets connections to endpoints that are gone");
            return Self(None);
        }
        Self(Some(Handle { departed, ended }))
    }

    /// Records a commit, at a cost proportional to the change. `state` is the committed one. `departed`: the endpoints
    /// that left service ports; `None`: the commit before is not comparable, and what departed until then is void.
    /// Blocks for as long as the worker reads what was recorded, but not while it lists connections.
    pub(crate) fn committed(&self, departed: Option<DepartedEndpoints>, changes: &Changes, state: &NodeState) {
        let Some(Handle { departed: requests, .. }) = &self.0 else { return };
        let is_due = requests.record(|known| {
            let due_before = known.next_due();
            known.committed(departed, changes, state, Instant::now());
            known.is_revoked() || known.next_due() != due_before
        });
        if is_due {
            requests.request(|_| {}, true);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.departed.close();
        // Nothing is sent: this waits until the thread has ended.
        let _ = self.ended.recv_timeout(STOP_TIMEOUT);
    }
}

// === impl Rest ===

impl Rest {
    pub(super) fn after(&mut self, took: Duration, is_failed: bool) -> Duration {
        self.failures = if is_failed { self.failures.saturating_add(1) } else { 0 };
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        MIN_REST.saturating_mul(factor).min(MAX_BACKOFF).max(took.saturating_mul(REST_FACTOR))
    }
}

// === impl Worker ===

impl Worker {
    fn new(departed: CleanupRequests<Departed>, is_ipvs: bool, progress: watch::Sender<Progress>) -> Self {
        Self { departed, rejecter: None, is_ipvs, progress, repeated: Repeated::default() }
    }

    fn run(mut self) {
        match Rejecter::open() {
            Ok(rejecter) => self.rejecter = Some(rejecter),
            Err(error) => self.report(Err(error.context("remove the rules of an earlier process"))),
        }
        let mut rest = Rest::default();
        let mut rests_until = Instant::now();
        loop {
            let due = self.departed.record(|departed| departed.next_due()).map(|due| due.max(rests_until));
            let until = self.rejecter.as_ref().and_then(Rejecter::until);
            let next = due.into_iter().chain(until).min();
            let wake = self.departed.wait_at_most(next.map_or(IDLE, |next| next.duration_since(Instant::now())));
            let now = Instant::now();
            let is_closed = wake == Wake::Closed;
            if is_closed || self.departed.record(Departed::take_revoked) || until.is_some_and(|until| until <= now) {
                let removed = self.rejecter.as_mut().map_or(Ok(()), Rejecter::remove);
                if let Err(error) = removed {
                    self.report(Err(error));
                    // What it has written expires, or is removed when this process or another one begins.
                    self.rejecter = None;
                }
            }
            if is_closed {
                return;
            }
            if due.is_some_and(|due| due <= now) {
                let result = self.pass();
                rests_until = Instant::now() + rest.after(now.elapsed(), result.is_err());
                self.report(result);
            }
        }
    }

    /// Handles the connections to endpoints that are due. Returns how many were reset since the passes before.
    fn pass(&mut self) -> Result<usize> {
        let mut due = self.departed.record(|departed| departed.due(Instant::now()));
        let open = self.reset(&mut due)?;
        Ok(self.departed.record(|departed| departed.passed(&due, &open, Instant::now())))
    }

    fn reset(&mut self, due: &mut Due) -> Result<OpenConnections> {
        let mut open = OpenConnections::new();
        // What a Service has translated at an address without node ports, it did before a restart with other addresses.
        let table = KernelFlowTable(NodePortAddresses::all());
        let sockets = PerFamily::from_fn(|family| (!due.vips[family].is_empty()).then(|| ProbeSocket::open(family)));
        let PerFamily { v4, v6 } = sockets;
        for (family, of_kernel, socket) in
            [(IpFamily::V4, AddressFamily::V4, v4), (IpFamily::V6, AddressFamily::V6, v6)]
        {
            let Some(socket) = socket else { continue };
            // Without one no connection is listed.
            let socket = socket.context("open a raw socket (requires CAP_NET_RAW)")?;
            due.vips[family].add_addresses(&table.addresses().context("list the addresses of the node")?);
            let flows = find(due, &table, family, of_kernel, &mut open)?;
            if flows.is_empty() || self.departed.record(|departed| departed.is_revoked()) {
                continue;
            }
            if self.rejecter.is_none() {
                self.rejecter = Some(Rejecter::open()?);
            }
            let Some(rejecter) = &mut self.rejecter else { continue };
            let rejected = rejecter.reject(family, flows.iter().map(Rejected::of).collect::<BTreeSet<_>>())?;
            for flow in flows.iter().filter(|flow| rejected.contains(&Rejected::of(flow))) {
                // A client that cannot be reached needs no reset.
                let _ = socket.send(&Probe::of(flow, self.is_ipvs));
            }
        }
        Ok(open)
    }

    fn report(&mut self, result: Result<usize>) {
        match result {
            Err(error) => {
                let error = format!("{error:#}");
                let occurrence = self.repeated.failed(&error);
                warn_if_news!(occurrence, error, "cannot reset connections to endpoints that are gone");
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

/// The connections to endpoints that are due, up to [`MAX`]. Counts all of them.
fn find(
    due: &Due,
    table: &KernelFlowTable,
    family: IpFamily,
    of_kernel: AddressFamily,
    open: &mut OpenConnections,
) -> Result<Vec<Flow>> {
    let mut of_namespace = BTreeMap::<_, usize>::new();
    let mut flows = Vec::new();
    let visited = table.visit(of_kernel, FlowProtocol::Tcp, &mut |flow| {
        let Some((key, endpoint)) = due.vips[family].of_gone(&flow) else { return Ok(()) };
        let count = of_namespace.entry(key.namespace.clone()).or_default();
        if flows.len() < MAX && *count < MAX_OF_NAMESPACE {
            *count += 1;
            flows.push(flow);
        }
        *open.entry((key, endpoint)).or_default() += 1;
        Ok(())
    });
    visited.with_context(|| format!("list {family} connections"))?;
    Ok(flows)
}

/// A pass over the connections of the thread's network namespace, as if all endpoints that are gone in this state had
/// departed. Returns the number of connections.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn pass_once(state: &NodeState) -> Result<usize> {
    let gone = state.service_ports().iter().map(|(key, service)| {
        let endpoints = service.gone.iter().flat_map(|(_, pool)| pool.iter().copied());
        (key.clone(), endpoints.collect())
    });
    let changes = Changes { service_ports: state.service_ports().keys().cloned().collect(), ..Changes::default() };
    let mut departed = Departed::default();
    let before = Instant::now().checked_sub(super::departed::ABSENCE).context("read the clock")?;
    departed.committed(None, &changes, state, before);
    departed.committed(Some(gone.collect()), &changes, state, before);
    let mut due = departed.due(Instant::now());
    let mut worker = Worker::new(CleanupRequests::default(), false, watch::Sender::default());
    Ok(worker.reset(&mut due)?.values().sum())
}
