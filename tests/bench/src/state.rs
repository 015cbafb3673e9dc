//! The state of a node as a value: what it costs to make it, and a commit of one endpoint with its difference.

use std::{
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
    time::Instant,
};

use anyhow::{Result, ensure};
use backend::NodeState;
use proto::model::{
    Endpoint, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, Protocol, ServicePort, ServicePortKey,
};

use crate::report::{Goal, Report};

/// (Services, endpoints of each).
const SIZES: [(u32, u32); 3] = [(10_000, 10), (50_000, 5), (1, 10_000)];
/// The number of commits of whose durations the mean is reported.
const COMMITS: u32 = 100;
/// 10.96.0.0.
const CLUSTER_IPS: u32 = 0x0a60_0000;
/// 10.128.0.0.
const ENDPOINTS: u32 = 0x0a80_0000;

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    for (services, each) in SIZES {
        let size = format!("{services} x {each}");
        let operations: Vec<_> = (0..services).flat_map(|number| service(number, each)).collect();
        let mut state = NodeState::new(NodeInfo::unknown("node"));
        let begun = Instant::now();
        ensure!(state.apply(operations).is_empty(), "a service was rejected");
        report.duration(&format!("state: all, {size}"), begun.elapsed(), Goal::None);

        let begun = Instant::now();
        for number in 0..COMMITS {
            let mut after = state.clone();
            let pool = PoolId { key: key(number % services), class: PoolClass::Cluster, family: IpFamily::V4 };
            let add = vec![endpoint(services * each + number)];
            ensure!(after.apply([Operation::ChangePool { pool, add, remove: Vec::new() }]).is_empty());
            ensure!(state.diff(&after).count() == 1, "one service port differs");
            state = after;
        }
        let mean = begun.elapsed() / COMMITS;
        report.duration(&format!("state: one endpoint added, and what differs, {size}"), mean, Goal::None);
    }
    Ok(())
}

fn service(number: u32, each: u32) -> Vec<Operation> {
    let mut port = ServicePort::new(key(number), NonZeroU16::MIN);
    port.cluster_ips.v4 = Some(Ipv4Addr::from(CLUSTER_IPS + number).into());
    let pool = PoolId { key: key(number), class: PoolClass::Cluster, family: IpFamily::V4 };
    let endpoints: Pool = (number * each..(number + 1) * each).map(endpoint).collect();
    vec![Operation::PutServicePort(port), Operation::ReplacePool { pool, endpoints }]
}

fn key(number: u32) -> ServicePortKey {
    ServicePortKey::new("default", format!("service-{number}"), "", Protocol::Tcp)
}

fn endpoint(number: u32) -> Endpoint {
    Endpoint::new(IpAddr::V4(Ipv4Addr::from(ENDPOINTS + number)), NonZeroU16::MIN)
}
