//! The call `Endpoints`: which endpoints of a Service a node uses, and why not the others.

use proto::{convert::pack_address, v1};
use tonic::Status;

use crate::{
    cluster::ClusterState,
    object::{ObjectName, ServiceObjectPort},
    view::{EndpointExplanation, EndpointReason, ServicePortExplanation},
};

pub(super) fn response(
    cluster: &ClusterState,
    request: &v1::EndpointsRequest,
) -> Result<v1::EndpointsResponse, Status> {
    let v1::EndpointsRequest { namespace, name, node, port } = request;
    if node.is_empty() {
        return Err(Status::invalid_argument("node: is empty, name the node whose endpoints to explain"));
    }
    if !cluster.is_ready() {
        return Err(Status::unavailable("the frontend has not listed all objects yet: try again later"));
    }
    let name = ObjectName::new(namespace.as_str(), name.as_str());
    let is_wanted = |of: &ServiceObjectPort| port.is_empty() || *of.name == **port || of.port.to_string() == *port;
    let (epoch, revision) = {
        let log = cluster.log();
        (log.epoch(), log.revision())
    };
    let index = cluster.index();
    let explanations = index.explain(&name, node, is_wanted).ok_or_else(|| {
        Status::not_found(format!(
            "Service {name} is not served: check that it exists, has a cluster IP, and is not assigned to another proxy"
        ))
    })?;
    if explanations.is_empty() {
        return Err(Status::not_found(format!("Service {name} has no port with the name or number {port}")));
    }
    let problems = index.problems_of(&name).map(|(kind, name, problem)| v1::Problem {
        object: format!("{kind} {name}"),
        field: problem.field,
        message: problem.message,
    });
    let node_info = index.node(node);
    Ok(v1::EndpointsResponse {
        epoch: epoch.0,
        revision: revision.0,
        node_known: node_info.is_some(),
        zone: node_info.map(|node| node.zone.to_string()).unwrap_or_default(),
        ports: explanations.into_iter().map(port_endpoints).collect(),
        problems: problems.collect(),
    })
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
