//! What the API server adds to a Service that is applied: what it keeps of the existing Service, and what it allocates.
//! One function for each field.

use serde_json::{Map, Value, json};

use super::Index;
use crate::object::{ObjectName, ServiceObject, ServiceObjectPort};

/// The fields of a JSON object.
type Fields = Map<String, Value>;

impl Index {
    /// Completes a Service in its JSON form. An allocated cluster IP is unknown: a reserved address with this number
    /// stands for it.
    pub(crate) fn complete_service(&self, document: &mut Value, number: usize) {
        let existing = self.services.get(&name_of(document));
        let Some(spec) = document.get_mut("spec").and_then(Value::as_object_mut) else { return };
        let kind = text(spec, "type").unwrap_or("ClusterIP").to_owned();
        if kind == "ExternalName" || text(spec, "clusterIP") == Some("None") {
            return;
        }
        complete_cluster_ips(spec, existing, number);

        let Some(existing) = existing else { return };
        if kind != "NodePort" && kind != "LoadBalancer" {
            return;
        }
        keep_node_ports(spec, existing);
        keep_health_check_node_port(spec, existing);
        if kind == "LoadBalancer" {
            keep_ingress(document, existing);
        }
    }
}

fn name_of(document: &Value) -> ObjectName {
    let metadata = |field: &str| document["metadata"][field].as_str().filter(|text| !text.is_empty());
    ObjectName::new(metadata("namespace").unwrap_or("default"), metadata("name").unwrap_or_default())
}

fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name)?.as_str()
}

/// Whether a field has no value. A value of another type is a problem of the object.
fn is_absent(fields: &Fields, name: &str) -> bool {
    let absent = [Value::Null, json!(""), json!([])];
    fields.get(name).is_none_or(|value| absent.contains(value))
}

fn complete_cluster_ips(spec: &mut Fields, existing: Option<&ServiceObject>, number: usize) {
    if !is_absent(spec, "clusterIP") || !is_absent(spec, "clusterIPs") {
        return;
    }

    let families = spec.remove("ipFamilies").unwrap_or_default();
    let ips: Vec<String> = match existing {
        Some(service) => service.cluster_ips.iter().filter_map(|(_, ip)| Some((*ip)?.to_string())).collect(),
        None => unallocated_ips(spec, &families, number),
    };
    spec.remove("clusterIP");
    spec.insert("clusterIPs".to_owned(), json!(ips));
}

/// Addresses that stand for the cluster IPs of a new Service.
fn unallocated_ips(spec: &Fields, families: &Value, number: usize) -> Vec<String> {
    let is_dual = matches!(text(spec, "ipFamilyPolicy"), Some("PreferDualStack" | "RequireDualStack"));
    let has = |family: &str| families.as_array().is_some_and(|families| families.contains(&json!(family)));
    let has_v6 = is_dual || has("IPv6");
    let has_v4 = is_dual || has("IPv4") || !has_v6;

    let mut ips = Vec::new();
    if has_v4 {
        ips.push(format!("240.0.0.{number}"));
    }
    if has_v6 {
        ips.push(format!("100::{number:x}"));
    }
    ips
}

/// A port keeps its node port. If its number has changed, it keeps the node port by its name, unless another port has
/// it, or the Service gets none.
fn keep_node_ports(spec: &mut Fields, existing: &ServiceObject) {
    let allocates = spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false));
    let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return };
    let mut ports: Vec<_> = ports.iter_mut().filter_map(Value::as_object_mut).collect();

    for port in &mut ports {
        let same = existing.ports.iter().find(|old| is_same_port(port, old));
        if let Some(number) = same.and_then(|old| old.node_port) {
            port.entry("nodePort").or_insert_with(|| json!(number));
        }
    }
    if !allocates {
        return;
    }

    let used: Vec<_> = ports.iter().filter_map(|port| port.get("nodePort").cloned()).collect();
    for port in ports {
        let name = text(port, "name").unwrap_or_default();
        let named = existing.ports.iter().find(|old| *old.name == *name);
        if let Some(number) = named.and_then(|old| old.node_port).map(|number| json!(number))
            && !used.contains(&number)
        {
            port.entry("nodePort").or_insert(number);
        }
    }
}

fn is_same_port(port: &Fields, old: &ServiceObjectPort) -> bool {
    let protocol = text(port, "protocol").unwrap_or("TCP");
    port.get("port") == Some(&json!(old.port)) && old.protocol.to_string() == protocol
}

fn keep_health_check_node_port(spec: &mut Fields, existing: &ServiceObject) {
    if let Some(number) = existing.health_check_node_port {
        spec.entry("healthCheckNodePort").or_insert_with(|| json!(number));
    }
}

fn keep_ingress(document: &mut Value, existing: &ServiceObject) {
    let ingress = &document["status"]["loadBalancer"]["ingress"];
    if ingress.as_array().is_some_and(|ingress| !ingress.is_empty()) {
        return;
    }

    let ips = existing.load_balancer_ips.iter().chain(&existing.closed_ips);
    let ingress: Vec<_> = ips.map(|ip| json!({ "ip": ip })).collect();
    document["status"] = json!({ "loadBalancer": { "ingress": ingress } });
}
