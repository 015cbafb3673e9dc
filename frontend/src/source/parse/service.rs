//! core/v1 Service to what gets programmed of it.

mod vips;

use std::{
    collections::BTreeSet,
    fmt,
    num::{NonZeroU16, NonZeroU32},
    str::FromStr,
};

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use proto::model::TrafficPolicy;

use super::{FieldProblems, Resource, created, has_label, items, optional_port_number, port_number, protocol};
use crate::object::{
    ClusterObject, ObjectKind, ObjectName, RESET_CONNECTIONS_ANNOTATION, ServiceObject, ServiceObjectPort,
};

/// A Service with this label, of any value, is for another proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// The API server's default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;

/// The longest that the API server accepts: a day.
const MAX_AFFINITY_SECONDS: i32 = 86_400;

impl Resource for Service {
    const KIND: ObjectKind = ObjectKind::Service;

    fn parse(&self, name: ObjectName, problems: &mut FieldProblems) -> Option<ClusterObject> {
        let spec = self.spec.as_ref()?;
        if type_of(spec) == "ExternalName" {
            return None;
        }
        if has_label(&self.metadata, PROXY_NAME_LABEL) {
            // Its problems are those of the other proxy.
            return vips::cluster_ips(spec, &mut FieldProblems::default()).map(ClusterObject::ForeignService);
        }

        let vips = vips::with_vips(self, problems)?;
        let external_policy = external_policy(spec, problems);
        Some(ClusterObject::Service(ServiceObject {
            name,
            created: created(&self.metadata),
            internal_policy: policy("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref(), problems),
            external_policy,
            affinity_seconds: affinity_seconds(spec, problems),
            health_check_node_port: health_check_node_port(spec, external_policy, problems),
            connection_resets: annotation(&self.metadata, RESET_CONNECTIONS_ANNOTATION, problems),
            ports: ports(items(spec.ports.as_ref()), problems),
            ..vips
        }))
    }
}

/// `type`, with the API server's default.
fn type_of(spec: &ServiceSpec) -> &str {
    spec.type_.as_deref().unwrap_or("ClusterIP")
}

// === Policies and affinity ===

fn policy(path: &str, name: Option<&str>, problems: &mut FieldProblems) -> TrafficPolicy {
    match name {
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            problems.add(path, format!("{other:?}: expected Cluster or Local; Cluster is used"));
            TrafficPolicy::Cluster
        }
    }
}

/// Local applies only to a Service with an external VIP or node port.
fn external_policy(spec: &ServiceSpec, problems: &mut FieldProblems) -> TrafficPolicy {
    let path = "spec.externalTrafficPolicy";
    let policy = policy(path, spec.external_traffic_policy.as_deref(), problems);
    let accessible = match type_of(spec) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !items(spec.external_ips.as_ref()).is_empty(),
        _ => false,
    };
    if accessible { policy } else { TrafficPolicy::Cluster }
}

fn health_check_node_port(
    spec: &ServiceSpec,
    external_policy: TrafficPolicy,
    problems: &mut FieldProblems,
) -> Option<NonZeroU16> {
    if type_of(spec) != "LoadBalancer" || external_policy != TrafficPolicy::Local {
        return None;
    }
    problems.ignored("spec.healthCheckNodePort", optional_port_number(spec.health_check_node_port)).flatten()
}

fn affinity_seconds(spec: &ServiceSpec, problems: &mut FieldProblems) -> Option<NonZeroU32> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            problems.add("spec.sessionAffinity", format!("{other:?}: expected ClientIP or None; None is used"));
            return None;
        }
    }

    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let mut seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    if !(1..=MAX_AFFINITY_SECONDS).contains(&seconds) {
        problems.add(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("{seconds}: expected 1 to {MAX_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} is used"),
        );
        seconds = DEFAULT_AFFINITY_SECONDS;
    }
    u32::try_from(seconds).ok().and_then(NonZeroU32::new)
}

// === Annotations ===

fn annotation<T: FromStr<Err: fmt::Display>>(
    metadata: &ObjectMeta,
    name: &str,
    problems: &mut FieldProblems,
) -> Option<T> {
    let text = metadata.annotations.as_ref()?.get(name)?;
    problems.ignored(format!("metadata.annotations[{name}]"), text.parse())
}

// === Ports ===

fn ports(specs: &[ServicePort], problems: &mut FieldProblems) -> Vec<ServiceObjectPort> {
    let mut ports: Vec<ServiceObjectPort> = Vec::with_capacity(specs.len());
    let mut names = BTreeSet::new();
    for (n, spec) in specs.iter().enumerate() {
        let path = format!("spec.ports[{n}]");
        let Some(port) = port(&path, spec, problems) else { continue };
        if !names.insert((port.name.clone(), port.protocol)) {
            let ServiceObjectPort { name, protocol, .. } = port;
            problems.add(path, format!("{name:?}, {protocol}: an earlier port has this name and protocol; ignored"));
            continue;
        }
        ports.push(port);
    }
    ports.sort_unstable();
    ports
}

/// `None` without a valid number or protocol. A port with an invalid node port has none.
fn port(path: &str, spec: &ServicePort, problems: &mut FieldProblems) -> Option<ServiceObjectPort> {
    let port = problems.ignored(format!("{path}.port"), port_number(spec.port))?;
    let protocol = problems.ignored(format!("{path}.protocol"), protocol(spec.protocol.as_deref()))?;
    let node_port = problems.ignored(format!("{path}.nodePort"), optional_port_number(spec.node_port));
    Some(ServiceObjectPort {
        name: spec.name.as_deref().unwrap_or_default().into(),
        protocol,
        port,
        node_port: node_port.flatten(),
    })
}

#[cfg(test)]
mod tests;
