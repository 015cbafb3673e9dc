//! The call `Endpoints`: which endpoints of a Service a node uses, and why not the others.

use proto::{convert::pack_address, v1};
use tonic::Status;

use super::require_ready;
use crate::{
    cluster::ClusterState,
    identity::Identity,
    object::{ObjectName, ServiceObjectPort},
    view::{EndpointExplanation, EndpointReason, MAX_EXPLAINED, NotExplained, ServicePortExplanation},
};

/// The reasons whose details name other nodes.
const NAMES_NODES: [&str; 2] = ["hint-other-node", "not-on-this-node"];

/// To clients that see the cluster: with other nodes, and the problems of objects.
pub(super) fn response(
    cluster: &ClusterState,
    request: &v1::EndpointsRequest,
    client: &Identity,
) -> Result<v1::EndpointsResponse, Status> {
    let v1::EndpointsRequest { namespace, name, node, port } = request;
    if node.is_empty() {
        return Err(Status::invalid_argument("node: is empty, name the node whose endpoints to explain"));
    }
    require_ready(cluster)?;

    let name = ObjectName::new(namespace.as_str(), name.as_str());
    let is_wanted = |of: &ServiceObjectPort| port.is_empty() || *of.name == **port || of.port.to_string() == *port;
    let revision = cluster.log().revision();
    let index = cluster.index();
    let explained = index.explain(&name, node, is_wanted);
    let explanations = explained.map_err(|error| not_explained(&error, &name, port))?;
    let mut problems = Vec::new();
    if client.sees_cluster() {
        problems.extend(index.problems_of(&name).map(|(kind, name, problem)| problem.into_wire(kind, name)));
    }
    let zone = index.node(node).map(|node| node.zone.to_string());
    // Commits need the index.
    drop(index);

    let mut response = v1::EndpointsResponse {
        epoch: cluster.epoch.0,
        revision: revision.0,
        node_known: zone.is_some(),
        zone: zone.unwrap_or_default(),
        ports: explanations.into_iter().map(port_endpoints).collect(),
        problems,
    };
    if !client.sees_cluster() {
        keep_own(&mut response, node);
    }
    Ok(response)
}

fn not_explained(error: &NotExplained, name: &ObjectName, port: &str) -> Status {
    match error {
        NotExplained::NoService => Status::not_found(format!(
            "Service {name} is not served: check that it exists, has a cluster IP, and is not assigned to another proxy"
        )),
        NotExplained::NoPort(valid) if valid.is_empty() => Status::not_found(format!(
            "Service {name} has no valid port: correct spec.ports, `fairlead status --problems` says what is wrong"
        )),
        NotExplained::NoPort(valid) => Status::not_found(format!(
            "Service {name} has no port with the name or number {port}, only {}",
            valid.join(", ")
        )),
        NotExplained::TooMany(count) => Status::out_of_range(format!(
            "Service {name} has {count} endpoints of all ports, more than {MAX_EXPLAINED}: select one port by its name"
        )),
    }
}

/// Removes the details about other nodes: the node itself needs only which endpoints it uses.
fn keep_own(response: &mut v1::EndpointsResponse, own: &str) {
    for endpoint in response.ports.iter_mut().flat_map(|port| &mut port.endpoints) {
        endpoint.node_hints.retain(|node| node == own);
        if endpoint.node != own {
            endpoint.node.clear();
        }
        for membership in endpoint.cluster.iter_mut().chain(&mut endpoint.local) {
            if NAMES_NODES.contains(&membership.reason.as_str()) {
                membership.detail.clear();
            }
        }
    }
}

fn port_endpoints(explanation: ServicePortExplanation) -> v1::ServicePortEndpoints {
    let ServicePortExplanation { port, endpoints, notes } = explanation;
    let endpoints = endpoints.into_iter().map(state).collect();
    v1::ServicePortEndpoints { service_port: Some((&port).into()), endpoints, notes }
}

fn state(explained: EndpointExplanation) -> v1::SliceEndpoint {
    let EndpointExplanation { slice, endpoint, port, cluster, local } = explained;
    let strings = |names: &[std::sync::Arc<str>]| names.iter().map(ToString::to_string).collect();
    v1::SliceEndpoint {
        slice: slice.name.to_string(),
        address: pack_address(&endpoint.address),
        port: port.map_or(0, |port| port.get().into()),
        node: endpoint.node.as_deref().unwrap_or_default().to_owned(),
        ready: endpoint.ready,
        serving: endpoint.serving,
        terminating: endpoint.terminating,
        zone_hints: strings(&endpoint.zone_hints),
        node_hints: strings(&endpoint.node_hints),
        cluster: Some(verdict(&cluster)),
        local: Some(verdict(&local)),
    }
}

fn verdict(reason: &EndpointReason) -> v1::PoolMembership {
    let (code, detail) = reason.describe();
    v1::PoolMembership { in_pool: reason.is_in(), reason: code.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_told_no_other_nodes() {
        let membership = |reason: &str, detail: &str| {
            Some(v1::PoolMembership { in_pool: false, reason: reason.to_owned(), detail: detail.to_owned() })
        };
        let endpoint = v1::SliceEndpoint {
            node: "b".to_owned(),
            node_hints: vec!["a".to_owned(), "b".to_owned()],
            cluster: membership("hint-other-node", "hint for node b"),
            local: membership("not-ready", "not ready"),
            ..v1::SliceEndpoint::default()
        };
        let own = v1::SliceEndpoint { node: "a".to_owned(), ..v1::SliceEndpoint::default() };
        let ports = vec![v1::ServicePortEndpoints { endpoints: vec![endpoint, own], ..Default::default() }];
        let mut response = v1::EndpointsResponse { ports, ..Default::default() };
        keep_own(&mut response, "a");
        let [other, own] = &response.ports[0].endpoints[..] else { panic!("{response:?}") };
        assert_eq!((other.node.as_str(), &other.node_hints[..], own.node.as_str()), ("", &["a".to_owned()][..], "a"));
        let details = [&other.cluster, &other.local].map(|membership| membership.as_ref().unwrap().detail.as_str());
        assert_eq!(details, ["", "not ready"]);
    }
}
