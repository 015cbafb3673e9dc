//! A second implementation of `view` for tests: one node at a time, close to the specification, and slow.

use proto::model::{Endpoint, IpFamily, PerFamily, Pool, Protocol, ServicePortKey, TrafficPolicy};

use crate::object::{ServiceObject, SliceEndpoint, SliceObject};

/// What one node gets of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeView {
    pub(super) any_endpoints: PerFamily<bool>,
    pub(super) cluster: PerFamily<Pool>,
    pub(super) local: PerFamily<Pool>,
    /// What established flows may keep: of UDP only, and without the endpoints of the other pools.
    pub(super) established: PerFamily<Pool>,
}

pub(super) fn node_view(
    service: &ServiceObject,
    key: &ServicePortKey,
    uses_external: bool,
    slices: &[SliceObject],
    node: &str,
    zone: &str,
) -> NodeView {
    let (any_endpoints, cluster_pools, local, established) = Default::default();
    let mut view = NodeView { any_endpoints, cluster: cluster_pools, local, established };
    for family in IpFamily::ALL {
        if service.cluster_ips[family].is_none() {
            continue;
        }
        let all = endpoints(key, slices, family);
        view.any_endpoints[family] =
            all.iter().any(|(_, ep)| ep.ready) || all.iter().any(|(_, ep)| ep.serving && ep.terminating);

        let uses_cluster = service.internal_policy != TrafficPolicy::Local || uses_external;
        if uses_cluster {
            view.cluster[family] = cluster(&all, node, zone).into_iter().collect();
        }

        let here: Vec<_> = all.iter().filter(|(_, ep)| ep.node.as_deref() == Some(node)).collect();
        let ready: Vec<_> = here.iter().filter(|(_, ep)| ep.ready).map(|(endpoint, _)| *endpoint).collect();
        view.local[family] = if ready.is_empty() {
            let still_serving = here.iter().filter(|(_, ep)| ep.serving && ep.terminating);
            still_serving.map(|(endpoint, _)| Endpoint { terminating: true, ..*endpoint }).collect()
        } else {
            ready.into_iter().collect()
        };

        if key.protocol == Protocol::Udp {
            let serving = if uses_cluster { all.iter().collect() } else { here };
            let serving = serving.into_iter().filter(|(_, ep)| ep.serving).map(|(endpoint, _)| *endpoint);
            let used = if uses_cluster { &view.cluster[family] } else { &view.local[family] };
            view.established[family] = serving.filter(|endpoint| !used.contains(endpoint)).collect();
        }
    }
    view
}

fn cluster(all: &[(Endpoint, &SliceEndpoint)], node: &str, zone: &str) -> Vec<Endpoint> {
    let ready: Vec<_> = all.iter().filter(|(_, ep)| ep.ready).collect();
    if ready.is_empty() {
        let still_serving = all.iter().filter(|(_, ep)| ep.serving && ep.terminating);
        return still_serving.map(|(endpoint, _)| *endpoint).collect();
    }
    let for_node = |ep: &SliceEndpoint| ep.node_hints.iter().any(|hint| **hint == *node);
    let for_zone = |ep: &SliceEndpoint| ep.zone_hints.iter().any(|hint| **hint == *zone);
    let every_node_hint = ready.iter().all(|(_, ep)| !ep.node_hints.is_empty());
    let every_zone_hint = ready.iter().all(|(_, ep)| !ep.zone_hints.is_empty());
    let filter: &dyn Fn(&SliceEndpoint) -> bool = if every_node_hint && ready.iter().any(|(_, ep)| for_node(ep)) {
        &for_node
    } else if !zone.is_empty() && every_zone_hint && ready.iter().any(|(_, ep)| for_zone(ep)) {
        &for_zone
    } else {
        &|_| true
    };
    ready.iter().filter(|(_, ep)| filter(ep)).map(|(endpoint, _)| *endpoint).collect()
}

/// The union of the slices; of one address and port the best entry.
fn endpoints<'a>(
    key: &ServicePortKey,
    slices: &'a [SliceObject],
    family: IpFamily,
) -> Vec<(Endpoint, &'a SliceEndpoint)> {
    let mut slices: Vec<_> = slices.iter().filter(|slice| slice.service == key.name).collect();
    slices.sort_by(|left, right| left.name.cmp(&right.name));
    let mut all: Vec<(Endpoint, &SliceEndpoint)> = Vec::new();
    for slice in slices {
        for port in &slice.ports {
            if port.name != key.port_name || port.protocol != key.protocol {
                continue;
            }
            for ep in &slice.endpoints {
                if IpFamily::of(&ep.address) != family {
                    continue;
                }
                let endpoint = Endpoint::new(ep.address, port.port);
                match all.iter_mut().find(|(other, _)| *other == endpoint) {
                    Some((_, other)) if better(ep, other) => *other = ep,
                    Some(_) => {}
                    None => all.push((endpoint, ep)),
                }
            }
        }
    }
    all
}

fn better(new: &SliceEndpoint, other: &SliceEndpoint) -> bool {
    if new.terminating != other.terminating {
        return other.terminating;
    }
    if new.ready != other.ready {
        return new.ready;
    }
    new.serving && !other.serving
}
