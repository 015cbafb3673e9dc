//! Which VIPs are probed, and the expected result of each. Pure.

use std::net::{IpAddr, SocketAddr};

use backend::{NodeState, ServicePortState, dataplane::allowed_sources};
use proto::model::{IpFamily, PoolClass, Protocol, TrafficPolicy};
use serde::Serialize;

use crate::{commands::services::verdict, takeover::ConnectionVerdict};

/// A VIP to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeTarget {
    pub(super) service: String,
    pub(super) vip_kind: TestedVipKind,
    pub(super) protocol: Protocol,
    pub(super) address: SocketAddr,
    /// Whether all connections of a client reach the same endpoint.
    pub(super) has_affinity: bool,
    pub(super) expected: ConnectionVerdict,
}

/// The VIP kind. Unlike the data plane's, it distinguishes external IPs from load-balancer IPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TestedVipKind {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

/// All VIPs of the service ports that `wanted` selects, except for SCTP. `source`: the source address of packets to an
/// address.
pub(super) fn probe_targets(
    state: &NodeState,
    wanted: impl Fn(&ServicePortState) -> bool,
    source: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Vec<ProbeTarget> {
    let services = state.service_ports().values().filter(|service| service.port.key.protocol != Protocol::Sctp);
    services.filter(|service| wanted(service)).flat_map(|service| targets_of(service, state, &source)).collect()
}

fn targets_of(
    service: &ServicePortState,
    state: &NodeState,
    source: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Vec<ProbeTarget> {
    let port = &service.port;
    let mut vips = Vec::new();
    for (_, ip) in port.cluster_ips.iter() {
        vips.extend(ip.map(|ip| (TestedVipKind::ClusterIp, ip, port.port)));
    }
    vips.extend(port.external_ips.iter().map(|ip| (TestedVipKind::ExternalIp, *ip, port.port)));
    vips.extend(port.load_balancer_ips.iter().map(|ip| (TestedVipKind::LoadBalancerIp, *ip, port.port)));
    if let Some(number) = port.node_port {
        let own = IpFamily::ALL.into_iter().filter_map(|family| state.node().primary_address(family));
        vips.extend(own.map(|ip| (TestedVipKind::NodePort, ip, number)));
    }

    let mut targets = Vec::new();
    for (vip_kind, ip, number) in vips {
        targets.push(ProbeTarget {
            service: port.key.to_string(),
            vip_kind,
            protocol: port.key.protocol,
            address: SocketAddr::new(ip, number.get()),
            has_affinity: port.affinity_seconds.is_some(),
            expected: expected(service, state, vip_kind, ip, source(ip)),
        });
    }
    targets
}

/// What docs/protocol.md specifies for packets of the node itself.
fn expected(
    service: &ServicePortState,
    state: &NodeState,
    vip_kind: TestedVipKind,
    ip: IpAddr,
    source: Option<IpAddr>,
) -> ConnectionVerdict {
    let port = &service.port;
    if vip_kind == TestedVipKind::LoadBalancerIp
        && let Some(allowed) = allowed_sources(port, ip, &state.node().addresses)
        && !source.is_some_and(|source| allowed.iter().any(|cidr| cidr.contains(&source)))
    {
        return ConnectionVerdict::Drop;
    }

    // The external policy does not apply to packets of the node itself.
    let class = match (vip_kind, port.internal_policy) {
        (TestedVipKind::ClusterIp, TrafficPolicy::Local) => PoolClass::Local,
        _ => PoolClass::Cluster,
    };
    verdict(service, class, IpFamily::of(&ip))
}
