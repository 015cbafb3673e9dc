//! A Fairlead backend on the `backend` crate: a userspace TCP forwarder for cluster IPs.
//!
//! ```text
//!   client ──▶ cluster IP:port ──route──▶ lo ──▶ listener ──▶ random endpoint of the pool ──▶ pod
//! ```
//!
//! `ip route add local SERVICE-CIDR dev lo` routes the packets to this process. This file has only the backend. The
//! crate provides the stream, resume, repair, the state file, retries and acks, so after a restart the backend serves
//! its last committed state before it is connected to a frontend.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use anyhow::{Result, bail};
use backend::{
    Backend, Changes, Grpc, GrpcOptions, NodeState, Runner, RunnerOptions, ServicePortState, StateFile, SyncReport,
};
use proto::model::{IpFamily, PoolClass, Protocol, ServicePortFailure, ServicePortKey, TrafficPolicy};
use runtime::{LogFormat, Shutdown};
use socket2::{Domain, Socket, Type};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tracing::warn;

/// The maximum number of connections that wait to be accepted by a listener.
const BACKLOG: i32 = 1024;

/// The listeners by service port and address, and the failures by service port.
#[derive(Default)]
struct Forwarder {
    listeners: BTreeMap<(ServicePortKey, SocketAddr), Listener>,
    failures: BTreeMap<ServicePortKey, ServicePortFailure>,
}

/// A listening socket. Dropping it closes the socket, but not its connections.
struct Listener {
    endpoints: watch::Sender<Vec<SocketAddr>>,
    _accepting: JoinSet<()>,
}

impl Backend for Forwarder {
    const NAME: &'static str = "forwarder";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        let applied = self.listeners.keys().map(|(key, _)| key);
        let keys = applied.chain(state.service_ports().keys()).cloned().collect();
        Ok(self.sync(state, &keys))
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        Ok(self.sync(state, &changes.service_ports))
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.listeners.clear();
        Ok(())
    }
}

impl Forwarder {
    /// Syncs the listeners of these service ports. If one cannot be opened, only its service port fails.
    fn sync(&mut self, state: &NodeState, keys: &BTreeSet<ServicePortKey>) -> SyncReport {
        let service_ports = keys.iter().filter_map(|key| state.service_port(key));
        let desired: BTreeMap<_, _> = service_ports.flat_map(desired).collect();
        let before = self.listeners.len();
        // Close listeners first: another service port may use the same address now.
        self.listeners.retain(|listener, _| !keys.contains(&listener.0) || desired.contains_key(listener));
        self.failures.retain(|key, _| !keys.contains(key));
        let mut writes = before - self.listeners.len();
        for ((key, address), endpoints) in desired {
            if let Some(listener) = self.listeners.get(&(key.clone(), address)) {
                writes += usize::from(listener.endpoints.send_replace(endpoints.clone()) != endpoints);
                continue;
            }
            match Listener::start(address, endpoints) {
                Ok(listener) => drop(self.listeners.insert((key, address), listener)),
                Err(error) => self.fail(key, format!("cannot listen at {address}: {error:#}"), true),
            }
            writes += 1;
        }
        for key in keys.iter().filter(|key| key.protocol != Protocol::Tcp && state.service_port(key).is_some()) {
            self.fail(key.clone(), format!("{} is not supported, only TCP is", key.protocol), false);
        }
        SyncReport { writes, failures: self.failures.values().cloned().collect(), ..SyncReport::default() }
    }

    fn fail(&mut self, key: ServicePortKey, reason: String, retryable: bool) {
        let failure = ServicePortFailure { retryable, ..ServicePortFailure::rejected(key.clone(), reason) };
        self.failures.insert(key, failure);
    }
}

/// The listeners of a service port and their endpoints. Without endpoints there is no listener, and the kernel rejects
/// connections.
fn desired(state: &ServicePortState) -> impl Iterator<Item = ((ServicePortKey, SocketAddr), Vec<SocketAddr>)> {
    let port = &state.port;
    let class = match port.internal_policy {
        TrafficPolicy::Cluster => PoolClass::Cluster,
        TrafficPolicy::Local => PoolClass::Local,
    };
    let families = IpFamily::ALL.into_iter().filter(|_| port.key.protocol == Protocol::Tcp);
    families.filter_map(move |family| {
        let address = SocketAddr::new(port.cluster_ips[family]?, port.port.get());
        let pool = state.pool(class, family).iter();
        let pool: Vec<_> = pool.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect();
        (!pool.is_empty()).then(|| ((port.key.clone(), address), pool))
    })
}

impl Listener {
    /// Binds the address, which need not be configured on the node, and starts to accept connections.
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
                // An error closes both connections, which is all that can be done.
                Ok(mut server) => drop(copy_bidirectional(&mut client, &mut server).await),
                Err(error) => warn!(%endpoint, %error, "cannot connect to endpoint"),
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
    let state_file = Some(StateFile::local(Path::new(state_file)));
    let options = RunnerOptions { state_file, ..RunnerOptions::new(node.as_str()) };
    let connect = Grpc::new(GrpcOptions { endpoints: vec![frontend.clone()], ..GrpcOptions::default() })?;
    Runner::new(options, Forwarder::default(), connect).run(Shutdown::on_signals()?).await
}
