//! Large states for benchmarks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proto::model::{Endpoint, PoolClass};

use super::{ServiceBuilder, builders::number, mk_state};
use crate::NodeState;

/// Which families the services of [`synthetic`] have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// IPv4.
    V4,
    /// Both: twice the VIPs and twice the endpoints.
    Dual,
}

/// The first cluster IP: 10.96.0.1.
const CLUSTER_IPS: u32 = 0x0a60_0001;
/// The first endpoint: 10.128.0.1, which leaves eight million addresses.
const ENDPOINTS: u32 = 0x0a80_0001;

/// `services` service ports `default/svc-<n>` on port 80 with a cluster IP (from 10.96.0.1 on) and `endpoints_each`
/// endpoints in the cluster pool (from 10.128.0.1 on, port 8080), each with an address of its own. IPv6 addresses embed
/// the IPv4 addresses: fd00:96::a60:1 and fd00:128::a80:1.
#[must_use]
pub fn synthetic(services: u32, endpoints_each: u32, stack: Stack) -> NodeState {
    (0..services)
        .fold(mk_state(), |state, number| {
            state.service(&format!("default/svc-{number}"), |service| build(service, number, endpoints_each, stack))
        })
        .build()
}

fn build(mut service: ServiceBuilder, n: u32, endpoints_each: u32, stack: Stack) -> ServiceBuilder {
    for ip in addresses(0x96, CLUSTER_IPS + n, stack) {
        service = service.cluster_ip(&ip.to_string());
    }
    let first = ENDPOINTS + n * endpoints_each;
    for ip in (first..first + endpoints_each).flat_map(|address| addresses(0x128, address, stack)) {
        service.insert(PoolClass::Cluster, Endpoint::new(ip, number(8080)));
    }
    service
}

/// The address, and the corresponding IPv6 address in fd00:`net`::/64.
fn addresses(net: u16, address: u32, stack: Stack) -> impl Iterator<Item = IpAddr> {
    let v4 = Ipv4Addr::from(address);
    let v6 = Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(net) << 96 | u128::from(address));
    let second = (stack == Stack::Dual).then_some(IpAddr::V6(v6));
    [IpAddr::V4(v4)].into_iter().chain(second)
}
