//! What only one service port can have on a node: VIPs with their ports, node ports, and ports of health checks.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    num::NonZeroU16,
};

use proto::model::{Protocol, ServicePort, ServicePortKey};

use crate::{NodeState, ServicePortState};

/// What only one service port can have on a node.
#[derive(Debug, Default)]
pub(super) struct Claims(HashSet<Claim>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Claim {
    Vip(IpAddr, NonZeroU16, Protocol),
    NodePort(NonZeroU16, Protocol),
}

impl Claims {
    /// What these lost service ports had, and others have in the committed state.
    pub(super) fn taken(lost: &BTreeMap<ServicePortKey, Option<ServicePortState>>, committed: &NodeState) -> Self {
        let had: HashSet<_> = lost.values().flatten().flat_map(|service| claims(&service.port)).collect();
        if had.is_empty() {
            return Self::default();
        }
        let live = committed.service_ports().iter().filter(|(key, _)| !lost.contains_key(key));
        let live = live.flat_map(|(_, service)| claims(&service.port));
        Self(live.filter(|claim| had.contains(claim)).collect())
    }

    /// Removes them from a service port.
    pub(super) fn remove_from(&self, service_port: &mut ServicePort) {
        let (port, protocol) = (service_port.port, service_port.key.protocol);
        let is_free = |ip: &IpAddr| !self.0.contains(&Claim::Vip(*ip, port, protocol));
        let is_free_number = |number: &NonZeroU16, of| !self.0.contains(&Claim::NodePort(*number, of));
        for ip in [&mut service_port.cluster_ips.v4, &mut service_port.cluster_ips.v6] {
            *ip = ip.filter(is_free);
        }
        service_port.external_ips.retain(is_free);
        service_port.load_balancer_ips.retain(is_free);
        service_port.node_port = service_port.node_port.filter(|number| is_free_number(number, protocol));
        let health_check = service_port.health_check_node_port;
        service_port.health_check_node_port = health_check.filter(|number| is_free_number(number, Protocol::Tcp));
    }
}

fn claims(service_port: &ServicePort) -> impl Iterator<Item = Claim> {
    let ServicePort { key, port, cluster_ips, external_ips, load_balancer_ips, .. } = service_port;
    let cluster_ips = [cluster_ips.v4, cluster_ips.v6].into_iter().flatten();
    let vips = cluster_ips.chain(external_ips.iter().copied()).chain(load_balancer_ips.iter().copied());
    let node_port = service_port.node_port.map(|number| Claim::NodePort(number, key.protocol));
    let health_check = service_port.health_check_node_port.map(|number| Claim::NodePort(number, Protocol::Tcp));
    vips.map(|ip| Claim::Vip(ip, *port, key.protocol)).chain(node_port).chain(health_check)
}
