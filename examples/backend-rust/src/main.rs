//! A Fairlead backend on the `agent` crate: forwards TCP connections to cluster IPs in userspace, in a process that needs no firewall.
//!
//! ```text
//!   client ──▶ cluster IP:port ──route──▶ lo ──▶ listener ──▶ one endpoint of the pool, by chance ──▶ pod
//! ```
//!
//! Packets come here by a route: `ip route add local SERVICE-CIDR dev lo`. Only the backend is in this file. The stream, resume, repair, the state
//! file, retries and acks are the agent's, so services are served again after a restart before any frontend is heard.

use std::collections::{BTreeMap, BTreeSet};
use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, bail};
use backend::{Backend, Changes, Grpc, GrpcOptions, NodeState, Runner, RunnerOptions, ServicePortState, SyncReport};
use proto::model::{FailureKind, IpFamily, PoolClass, Protocol, ServicePortFailure, ServicePortKey, TrafficPolicy};
use runtime::{LogFormat, Shutdown};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::{io::copy_bidirectional, sync::watch, task::JoinSet, time::sleep};
use tracing::warn;

/// How many connections a listener may owe an answer before the kernel refuses more.
const BACKLOG: i32 = 1024;

/// What the process listens at, and where each socket leads.
#[derive(Default)]
struct Forwarder {
    listeners: BTreeMap<(ServicePortKey, SocketAddr), Listener>,
    failures: BTreeMap<ServicePortKey, ServicePortFailure>,
}

/// A socket that listens. Dropping it closes it, while its connections live on.
struct Listener {
    endpoints: watch::Sender<Vec<SocketAddr>>,
    _accepting: JoinSet<()>,
}

impl Backend for Forwarder {
    const NAME: &'static str = "forwarder";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        let held = self.listeners.keys().map(|(key, _)| key);
        let keys = held.chain(state.service_ports().keys()).cloned().collect();
        Ok(self.set(state, &keys))
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        Ok(self.set(state, &changes.service_ports))
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.listeners.clear();
        Ok(())
    }
}

impl Forwarder {
    /// Makes these service ports as they should be, and touches nothing that is. What the kernel refuses is a failure of that one.
    fn set(&mut self, state: &NodeState, keys: &BTreeSet<ServicePortKey>) -> SyncReport {
        let services = keys.iter().filter_map(|key| state.service_port(key));
        let wanted: BTreeMap<_, _> = services.flat_map(wanted).collect();
        let before = self.listeners.len();
        // First what goes: another service port may have its address now.
        self.listeners.retain(|at, _| !keys.contains(&at.0) || wanted.contains_key(at));
        self.failures.retain(|key, _| !keys.contains(key));
        let mut writes = before - self.listeners.len();
        for (at, endpoints) in wanted {
            if let Some(listener) = self.listeners.get(&at) {
                writes += usize::from(listener.endpoints.send_replace(endpoints.clone()) != endpoints);
                continue;
            }
            match Listener::start(at.1, endpoints) {
                Ok(listener) => drop(self.listeners.insert(at, listener)),
                Err(error) => self.fail(at.0, format!("listen at {}: {error:#}", at.1), true),
            }
            writes += 1;
        }
        for key in keys.iter().filter(|key| key.protocol != Protocol::Tcp && state.service_port(key).is_some()) {
            self.fail(key.clone(), format!("{} is not forwarded, only TCP is", key.protocol), false);
        }
        SyncReport { writes, failures: self.failures.values().cloned().collect(), ..SyncReport::default() }
    }

    fn fail(&mut self, key: ServicePortKey, reason: String, retryable: bool) {
        self.failures.insert(key.clone(), ServicePortFailure { key, reason, retryable, kind: FailureKind::Program });
    }
}

/// Where a service port is served, and by whom. Where nobody serves nobody listens, and so the kernel refuses.
fn wanted(service: &ServicePortState) -> impl Iterator<Item = ((ServicePortKey, SocketAddr), Vec<SocketAddr>)> {
    let port = &service.port;
    let class = match port.internal_policy {
        TrafficPolicy::Cluster => PoolClass::Cluster,
        TrafficPolicy::Local => PoolClass::Local,
    };
    let families = IpFamily::ALL.into_iter().filter(|_| port.key.protocol == Protocol::Tcp);
    families.filter_map(move |family| {
        let at = SocketAddr::new(port.cluster_ips[family]?, port.port.get());
        let pool = service.pool(class, family).iter();
        let pool: Vec<_> = pool.map(|to| SocketAddr::new(to.address, to.port.get())).collect();
        (!pool.is_empty()).then(|| ((port.key.clone(), at), pool))
    })
}

impl Listener {
    /// Binds before it returns, so that a success is one. The address need not be the machine's: a route leads here.
    fn start(address: SocketAddr, endpoints: Vec<SocketAddr>) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        let freebind = if address.is_ipv4() { Socket::set_freebind_v4 } else { Socket::set_freebind_v6 };
        freebind(&socket, true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let (endpoints, pool) = watch::channel(endpoints);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(TcpListener::from_std(socket.into())?, pool));
        Ok(Self { endpoints, _accepting: accepting })
    }
}

async fn accept(listener: TcpListener, pool: watch::Receiver<Vec<SocketAddr>>) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(endpoint) = fastrand::choice(pool.borrow().iter().copied()) else { continue };
        tokio::spawn(async move {
            match TcpStream::connect(endpoint).await {
                // However it ends, both sides see it.
                Ok(mut server) => drop(copy_bidirectional(&mut client, &mut server).await),
                Err(error) => warn!(%endpoint, %error, "an endpoint does not answer"),
            }
        });
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [node, frontend, state_file] = args.as_slice() else {
        bail!("usage: fairlead-example-forwarder NODE unix:/PATH|http://HOST:PORT STATE-FILE");
    };
    runtime::log::init(LogFormat::Text, "info")?;
    let options = RunnerOptions { state_file: Some(state_file.into()), ..RunnerOptions::new(node.as_str()) };
    let connect = Grpc::new(GrpcOptions { endpoints: vec![frontend.clone()], ..GrpcOptions::default() })?;
    Runner::new(options, Forwarder::default(), connect).run(Shutdown::on_signals()?).await
}
