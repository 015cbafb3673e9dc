//! Whether the kernel can do what a backend does: the backend itself is let loose, with a small cluster that has one of everything, in a
//! network namespace that is gone afterwards.

use std::{
    fs,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use backend::{Backend, NodeState, Stage, dataplane::DataplaneOptions};
use backend_ipvs::Settings;
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};
use proto::model::{
    Endpoint, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, Protocol, ServicePort, ServicePortKey,
    TrafficPolicy,
};

use super::Finding;
use crate::{
    cli::BackendName,
    commands::backend::{ipvs, nftables},
};

/// From here on nf_tables has everything that `backend nft` uses (docs/architecture.md).
const OLDEST: (u32, u32) = (5, 13);

/// The version, and what the backend cannot do.
pub(super) fn check(backend: BackendName) -> Vec<Finding> {
    let tried = try_out(backend);
    let privileged = !matches!(&tried, Err(error) if error.is::<NoNamespace>());
    let name = format!("{backend:?}").to_lowercase();
    let programmed = match tried {
        Ok(()) => Finding::ok("kernel", format!("backend {name} can program everything it may have to")),
        Err(error) if !privileged => Finding::warn(
            "kernel",
            format!("what backend {name} needs was not tried: {error:#}"),
            "whether the kernel has it is seen only when a Service needs it",
            "run this as root, outside of a container without CAP_SYS_ADMIN",
        ),
        Err(error) => Finding::fail(
            "kernel",
            format!("backend {name} cannot program this kernel: {error:#}"),
            "Services would not work on this node",
            missing(backend),
        ),
    };
    vec![version(), programmed]
}

fn version() -> Finding {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return Finding::warn("kernel", "its version is unknown", "older ones lack features", "run `uname -r`");
    };
    let release = release.trim();
    match parse(release) {
        Some(version) if version < OLDEST => Finding::warn(
            "kernel",
            format!("Linux {release}"),
            "nf_tables lacks features before 5.13; the finding after this one says whether it is enough",
            "upgrade the kernel, or use backend iptables",
        ),
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn missing(backend: BackendName) -> String {
    match backend {
        BackendName::Nftables => {
            "load the modules nf_tables, nft_chain_nat, nft_numgen, nft_fib_ipv4, nft_fib_ipv6, nft_masq, nft_reject_ipv4, \
             nft_reject_ipv6, nft_ct, nft_nat; or use backend iptables"
        }
        BackendName::Iptables => {
            "install iptables 1.8 or later, load the modules xt_comment, xt_conntrack, xt_mark, xt_MASQUERADE, xt_nat, xt_recent, \
             xt_statistic, xt_addrtype; or use backend nft"
        }
        BackendName::Ipvs => {
            "load the modules ip_vs, ip_vs_rr, ip_set, ip_set_hash_ip, ip_set_hash_ipport, ip_set_hash_net, xt_set, dummy; or \
             use backend nft"
        }
    }
    .to_owned()
}

/// This process may not make one.
#[derive(Debug, thiserror::Error)]
#[error("no network namespace can be made: {0}")]
struct NoNamespace(Errno);

/// Programs the example in a namespace of its own.
fn try_out(backend: BackendName) -> Result<()> {
    let work = move || -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(NoNamespace)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let state = example()?;
        runtime.block_on(async {
            match backend {
                BackendName::Nftables => program(nftables(DataplaneOptions::default())?, &state).await,
                BackendName::Iptables => {
                    program(backend_iptables::open(DataplaneOptions::default(), None), &state).await
                }
                BackendName::Ipvs => program(ipvs(Settings::default())?, &state).await,
            }
        })
    };
    let thread = thread::Builder::new().name("probe".to_owned()).spawn(work).context("start a thread")?;
    thread.join().map_err(|_| anyhow!("the attempt ended in a panic"))?
}

async fn program(mut backend: impl Backend, state: &NodeState) -> Result<()> {
    let applied = backend.reconcile(state).await?;
    if let Some(failure) = applied.failures.first() {
        bail!("{}: {}", failure.key, failure.reason);
    }
    Ok(())
}

/// A state with one of everything: both families, all protocols, affinity, both policies, source ranges, none to serve.
fn example() -> Result<NodeState> {
    let mut stage = Stage::default();
    for (number, protocol) in (1..).zip([Protocol::Tcp, Protocol::Udp, Protocol::Sctp]) {
        let mut port = service(number, protocol)?;
        stage.extend([Operation::PutServicePort(port.clone())]);
        for class in [PoolClass::Cluster, PoolClass::Local] {
            for family in IpFamily::ALL {
                let mut pool = Pool::default();
                for host in 1..=2 {
                    pool.insert(Endpoint::new(address(family, 244, host)?, nonzero(8080)?));
                }
                let id = PoolId { key: port.key.clone(), class, family };
                stage.extend([Operation::ReplacePool { pool: id, endpoints: pool }]);
            }
        }
        // The same without anybody to serve.
        port = service(number + 100, protocol)?;
        stage.extend([Operation::PutServicePort(port)]);
    }
    let mut state = NodeState::new(NodeInfo::unknown("example"));
    stage.commit(&mut state);
    Ok(state)
}

fn service(number: u8, protocol: Protocol) -> Result<ServicePort> {
    let key = ServicePortKey::new("example", format!("service-{number}").as_str(), "", protocol);
    let mut port = ServicePort::new(key, nonzero(80)?);
    for family in IpFamily::ALL {
        port.cluster_ips[family] = Some(address(family, 96, number)?);
        port.load_balancer_ips.push(address(family, 201, number)?);
        port.any_endpoints[family] = number < 100;
    }
    port.node_port = Some(nonzero(30_000 + u16::from(number))?);
    port.source_ranges = vec!["192.0.2.0/24".parse()?, "2001:db8:1::/48".parse()?];
    port.affinity_seconds = (number % 2 == 1).then(|| NonZeroU32::MIN.saturating_add(59));
    if number.is_multiple_of(3) {
        port.external_policy = TrafficPolicy::Local;
    }
    Ok(port)
}

fn address(family: IpFamily, net: u8, host: u8) -> Result<IpAddr> {
    Ok(match family {
        IpFamily::V4 => IpAddr::from([10, net, 0, host]),
        IpFamily::V6 => format!("fd00:{net:x}::{host:x}").parse()?,
    })
}

fn nonzero(port: u16) -> Result<NonZeroU16> {
    NonZeroU16::new(port).context("port 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse("6.18.44-generic"), Some((6, 18)));
        assert_eq!(parse("5.4-rc1"), Some((5, 4)));
        assert_eq!(parse("linux"), None);
        assert!(parse("5.9.1").unwrap() < OLDEST && parse("5.15.0").unwrap() > OLDEST);
    }

    #[test]
    fn the_example_has_one_of_everything() {
        let state = example().unwrap();
        let ports: Vec<_> = state.service_ports().values().map(|service| &service.port).collect();
        assert_eq!(ports.len(), 6);
        assert!(ports.iter().any(|port| port.affinity_seconds.is_some()));
        assert!(ports.iter().any(|port| port.external_policy == TrafficPolicy::Local));
    }

    #[test]
    fn what_this_kernel_has_is_found() {
        assert!(try_out(BackendName::Nftables).is_ok());
        assert!(try_out(BackendName::Iptables).is_ok());
    }
}
