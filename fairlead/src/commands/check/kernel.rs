//! Checks whether the kernel has what a backend needs: runs the backend in a temporary network namespace, with a small
//! state that uses all features.

use std::{
    fs,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use backend::{Backend, Changes, NodeState, ServicePortState};
use ipnet::IpNet;
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};
use proto::model::{Endpoint, IpFamily, NodeInfo, PoolClass, Protocol, ServicePort, ServicePortKey, TrafficPolicy};

use super::Finding;
use crate::{
    commands::dataplanes::{DataplaneSettings, with_backend},
    modes::Mode,
};

/// The port of the Services and endpoints in the sample state.
const PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(79);

/// Checks that the backend of a mode can program this kernel.
pub(super) fn check(mode: Mode) -> Finding {
    let name = mode.name();
    let kernel = running_kernel();
    match program_sample(mode) {
        Ok(()) => Finding::ok("kernel", format!("{kernel} has all features that backend {name} uses")),
        Err(error) if error.is::<NoNamespace>() => {
            let what = format!("features of {kernel} that backend {name} uses were not tested: {error:#}");
            Finding::ok("kernel", what).warn(
                "a missing feature would be detected only when a Service uses it",
                "run this command as root, with CAP_SYS_ADMIN",
            )
        }
        Err(error) => Finding::ok("kernel", format!("backend {name} cannot program {kernel}: {error:#}"))
            .fail("Services do not work on this node with this backend", mode.traits().requirements),
    }
}

/// Such as `Linux 6.18.44`.
pub(super) fn running_kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}

/// This process may not create a network namespace.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a network namespace: {0}")]
struct NoNamespace(Errno);

/// Programs the sample state in a network namespace of its own.
fn program_sample(mode: Mode) -> Result<()> {
    let thread = thread::Builder::new().name("probe".to_owned());
    let probe = thread.spawn(move || program_in_new_namespace(mode)).context("cannot start a thread")?;
    probe.join().map_err(|_| anyhow!("the backend panicked"))?
}

/// The calling thread stays in the new namespace.
fn program_in_new_namespace(mode: Mode) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(NoNamespace)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let settings = DataplaneSettings::default();
    runtime.block_on(async { with_backend!(mode, settings, |backend| program(backend, &sample_state()).await) })
}

async fn program(mut backend: impl Backend, state: &NodeState) -> Result<()> {
    let mut applied = backend.reconcile(state).await?;
    while applied.unfinished.is_some() {
        applied = backend.apply(state, &Changes::default()).await?;
    }
    match applied.failures.first() {
        Some(failure) => bail!("{}: {}", failure.key, failure.reason),
        None => Ok(()),
    }
}

/// A state that uses all features: both IP families, all protocols, session affinity (with nftables the module
/// nft_hash, which nothing else needs), both traffic policies, source ranges, and service ports without endpoints.
fn sample_state() -> NodeState {
    let mut state = NodeState::new(NodeInfo::unknown("example"));
    for (number, protocol) in (1..).zip(Protocol::ALL) {
        let mut served = ServicePortState::new(service_port(number, protocol));
        for family in IpFamily::ALL {
            served.port.any_endpoints[family] = true;
            for host in 1..=2 {
                let endpoint = Endpoint::new(address(family, 244, host), PORT);
                served.pool_mut(PoolClass::Cluster, family).insert(endpoint);
                served.pool_mut(PoolClass::Local, family).insert(endpoint);
            }
        }
        let without_endpoints = ServicePortState::new(service_port(number + 100, protocol));
        for service in [served, without_endpoints] {
            let key = service.port.key.clone();
            state.set_service_port(&key, Some(service));
        }
    }
    state
}

fn service_port(number: u8, protocol: Protocol) -> ServicePort {
    let key = ServicePortKey::new("example", format!("service-{number}").as_str(), "", protocol);
    let mut port = ServicePort::new(key, PORT);
    for family in IpFamily::ALL {
        port.cluster_ips[family] = Some(address(family, 96, number));
        port.load_balancer_ips.push(address(family, 201, number));
        let prefix_len = if family == IpFamily::V4 { 24 } else { 32 };
        port.source_ranges.push(IpNet::new_assert(address(family, 9, 0), prefix_len));
    }
    port.node_port = NonZeroU16::new(30_000 + u16::from(number));

    if protocol != Protocol::Udp {
        port.affinity_seconds = NonZeroU32::new(60);
    }
    if protocol == Protocol::Sctp {
        port.external_policy = TrafficPolicy::Local;
    }
    port
}

fn address(family: IpFamily, net: u8, host: u8) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([10, net, 0, host]),
        IpFamily::V6 => IpAddr::from([0xfd00, u16::from(net), 0, 0, 0, 0, 0, u16::from(host)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_state_uses_all_features() {
        let state = sample_state();
        let ports: Vec<_> = state.service_ports().values().map(|service| &service.port).collect();
        assert_eq!(ports.len(), 6);
        assert!(ports.iter().any(|port| port.affinity_seconds.is_some()));
        assert!(ports.iter().any(|port| port.external_policy == TrafficPolicy::Local));
    }

    #[test]
    fn this_kernel_has_all_features() {
        assert!(program_sample(Mode::Nftables).is_ok());
        assert!(program_sample(Mode::Iptables).is_ok());
    }
}
