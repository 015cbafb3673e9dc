//! Parses discovery.k8s.io/v1 EndpointSlice into its endpoints and ports.

use std::{sync::Arc, time::SystemTime};

use k8s_openapi::{
    api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use proto::model::IpFamily;

use super::{
    FieldProblems, Resource, address, created, has_label, items, label, optional_port_number, protocol, sorted,
};
use crate::object::{ClusterObject, ObjectKind, ObjectName, PodId, SliceEndpoint, SliceObject, SlicePort};

/// The Service that a slice belongs to.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// On the slices of headless Services, copied from the Service.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// When the pod or Service changed that made the controller write this slice (RFC 3339).
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

impl Resource for EndpointSlice {
    const KIND: ObjectKind = ObjectKind::EndpointSlice;

    fn parse(&self, name: ObjectName, problems: &mut FieldProblems) -> Option<ClusterObject> {
        if has_label(&self.metadata, HEADLESS_LABEL) {
            return None;
        }

        let family = match self.address_type.as_str() {
            "IPv4" => IpFamily::V4,
            "IPv6" => IpFamily::V6,
            "FQDN" => return None,
            other => {
                problems.add("addressType", format!("{other:?}: expected IPv4, IPv6 or FQDN; the slice is ignored"));
                return None;
            }
        };

        let service = label(&self.metadata, SERVICE_LABEL);
        if service.is_empty() {
            let path = format!("metadata.labels[{SERVICE_LABEL}]");
            problems.add(path, "absent or empty, so that the Service is unknown; the slice is ignored");
            return None;
        }

        let mut endpoints = Vec::new();
        for (n, endpoint) in items(self.endpoints.as_ref()).iter().enumerate() {
            endpoints.extend(slice_endpoint(n, endpoint, &name, family, problems));
        }
        let ports = items(self.ports.as_ref()).iter().enumerate();
        Some(ClusterObject::EndpointSlice(SliceObject {
            name,
            created: created(&self.metadata),
            service: service.into(),
            family,
            ports: sorted(ports.filter_map(|(n, port)| slice_port(n, port, problems))),
            trigger: trigger(&self.metadata, problems),
            endpoints,
        }))
    }
}

fn trigger(metadata: &ObjectMeta, problems: &mut FieldProblems) -> Option<SystemTime> {
    let text = metadata.annotations.as_ref()?.get(TRIGGER_ANNOTATION)?;
    let time = text.parse::<Timestamp>().map_err(|_| format!("{text:?}: not an RFC 3339 time"));
    problems.ignored(format!("metadata.annotations[{TRIGGER_ANNOTATION}]"), time).map(SystemTime::from)
}

/// A port without a number stands for all ports, which a Service cannot use.
fn slice_port(n: usize, port: &EndpointPort, problems: &mut FieldProblems) -> Option<SlicePort> {
    let number = problems.ignored(format!("ports[{n}].port"), optional_port_number(port.port))??;
    let Some(name) = port.name.as_deref() else {
        problems.add(format!("ports[{n}].name"), "absent; the port is ignored");
        return None;
    };

    let protocol = problems.ignored(format!("ports[{n}].protocol"), protocol(port.protocol.as_deref()))?;
    Some(SlicePort { name: name.into(), protocol, port: number })
}

/// Only the first address of an endpoint is used, as the API defines it.
fn slice_endpoint(
    n: usize,
    endpoint: &Endpoint,
    slice: &ObjectName,
    family: IpFamily,
    problems: &mut FieldProblems,
) -> Option<SliceEndpoint> {
    let path = format!("endpoints[{n}].addresses");
    let Some(text) = endpoint.addresses.first() else {
        problems.add(path, "empty; the endpoint is ignored");
        return None;
    };

    let path = format!("{path}[0]");
    let address = problems.ignored(&path, address::usable_address(text))?;
    if IpFamily::of(&address) != family {
        problems.add(path, format!("{address}: addressType is {family}; ignored"));
        return None;
    }

    let conditions = endpoint.conditions.as_ref();
    let hints = endpoint.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_ref());
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref());
    Some(SliceEndpoint {
        address,
        node: endpoint.node_name.as_deref().filter(|node| !node.is_empty()).map(Arc::from),
        ready: conditions.and_then(|conditions| conditions.ready).unwrap_or(true),
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        zone_hints: sorted(items(zones).iter().map(|zone| zone.name.as_str().into())),
        node_hints: sorted(items(nodes).iter().map(|node| node.name.as_str().into())),
        pod: pod(slice, endpoint),
    })
}

/// A slice can only name pods of its own namespace: its writer may have no rights in others.
fn pod(slice: &ObjectName, endpoint: &Endpoint) -> Option<PodId> {
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    let is_own = target.namespace.as_deref().is_none_or(|namespace| *namespace == *slice.namespace);
    let name = target.name.as_deref().filter(|name| !name.is_empty() && is_own)?;
    Some(PodId::new(&slice.namespace, name, target.uid.as_deref()))
}

#[cfg(test)]
mod tests;
