//! Claims: VIPs with their ports, node ports and ports of health checks, which only one service port can have on a
//! node, and cluster IPs, which only one Service can have.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    num::NonZeroU16,
};

use proto::model::{Protocol, ServicePort, ServicePortKey};

use crate::{
    NodeState, ServiceName, ServicePortState,
    dataplane::{Vip, all_vips},
};

/// The claims of lost service ports that other service ports have in the committed state.
pub(super) fn taken(lost: &BTreeMap<ServicePortKey, Option<ServicePortState>>, committed: &NodeState) -> HashSet<Vip> {
    let had: HashSet<_> = lost.values().flatten().flat_map(|service| claims(&service.port)).collect();
    let services: BTreeSet<_> = lost.keys().map(ServiceName::of).collect();
    let live = committed.service_ports().iter().filter(|(key, _)| !lost.contains_key(key));
    let claimed = live.flat_map(|(key, service)| {
        // A lost Service may have ports that never had endpoints, at the same cluster IPs.
        let is_lost = services.contains(&ServiceName::of(key));
        claims(&service.port).filter(move |claim| !(is_lost && matches!(claim, Vip::Address(_))))
    });
    claimed.filter(|claim| had.contains(claim)).collect()
}

/// Removes the claims that are taken from a service port.
pub(super) fn remove(taken: &HashSet<Vip>, service_port: &mut ServicePort) {
    let port = service_port.port.get();
    let protocol = service_port.key.protocol;
    let is_free = |ip: &IpAddr| !taken.contains(&Vip::AddressPort { address: *ip, port, protocol });
    let is_free_number = |number: &NonZeroU16, of| !taken.contains(&Vip::NodePort { port: number.get(), protocol: of });

    for ip in [&mut service_port.cluster_ips.v4, &mut service_port.cluster_ips.v6] {
        *ip = ip.filter(|ip| is_free(ip) && !taken.contains(&Vip::Address(*ip)));
    }
    service_port.external_ips.retain(is_free);
    service_port.load_balancer_ips.retain(is_free);

    service_port.node_port = service_port.node_port.filter(|number| is_free_number(number, protocol));
    let health_check = service_port.health_check_node_port;
    service_port.health_check_node_port = health_check.filter(|number| is_free_number(number, Protocol::Tcp));
}

fn claims(service_port: &ServicePort) -> impl Iterator<Item = Vip> {
    let vips = all_vips(service_port).map(|(_, vip)| vip);
    let cluster_ips = service_port.cluster_ips.iter().filter_map(|(_, ip)| ip.map(Vip::Address));
    let health_check = service_port.health_check_node_port;
    vips.chain(cluster_ips)
        .chain(health_check.map(|number| Vip::NodePort { port: number.get(), protocol: Protocol::Tcp }))
}
