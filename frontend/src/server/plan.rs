//! The call `Plan`: what would change, and for which nodes, if Services and EndpointSlices were applied.

use proto::v1;
use serde_json::{Deserializer, Value};
use tonic::Status;

use super::require_ready;
use crate::{cluster::ClusterState, source::parse_documents};

/// How many objects a request may have: no commit is possible while they are applied.
const MAX_OBJECTS: usize = 64;
/// How many ports a Service may have: each is compared with those of the existing one.
const MAX_PORTS: usize = 100;
/// The bytes of the longest name that Kubernetes accepts. The answer repeats it for each change and problem.
const MAX_NAME_BYTES: usize = 253;

pub(super) fn response(cluster: &ClusterState, request: &v1::PlanRequest) -> Result<v1::PlanResponse, Status> {
    require_ready(cluster)?;

    let parsed: Result<Vec<Value>, _> = Deserializer::from_str(&request.documents).into_iter().collect();
    let mut documents = parsed.map_err(|error| Status::invalid_argument(format!("documents: {error}")))?;
    if documents.len() > MAX_OBJECTS {
        let message = format!("{} objects, more than {MAX_OBJECTS}: split the files", documents.len());
        return Err(Status::invalid_argument(message));
    }
    for (object, number) in documents.iter_mut().zip(1..) {
        check(object).map_err(Status::invalid_argument)?;
        if object["kind"] == "Service" {
            cluster.index().complete_service(object, number);
        }
    }

    let (objects, ignored) = parse_documents(documents);
    // The log may be locked while the index is.
    let mut index = cluster.index();
    let revision = cluster.log().revision();
    let plan = index.plan(objects).map_err(Status::invalid_argument)?;
    Ok(v1::PlanResponse { revision: revision.0, ignored, ..plan })
}

/// Fails for an object whose effect is not computed, or that is too large.
fn check(object: &Value) -> Result<(), String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    if !matches!((text("apiVersion"), text("kind")), ("v1", "Service") | ("discovery.k8s.io/v1", "EndpointSlice")) {
        return Err("documents: an object is neither a Service of v1 nor an EndpointSlice".to_owned());
    }

    let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let namespace = Some(metadata("namespace")).filter(|text| !text.is_empty()).unwrap_or("default");
    let named = format!("{} {}/{}", text("kind"), start_of(namespace), start_of(metadata("name")));
    for field in ["namespace", "name"] {
        let length = metadata(field).len();
        if length > MAX_NAME_BYTES {
            return Err(format!("{named}: metadata.{field}: {length} bytes, more than {MAX_NAME_BYTES}"));
        }
    }

    let ports = object["spec"]["ports"].as_array().map_or(0, Vec::len);
    if ports > MAX_PORTS {
        return Err(format!("{named}: spec.ports: {ports} entries, more than {MAX_PORTS}"));
    }
    Ok(())
}

/// A name, cut to a start that suffices to find the object if it is too long.
fn start_of(name: &str) -> String {
    if name.len() <= MAX_NAME_BYTES { name.to_owned() } else { name.chars().take(64).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use proto::model::{Epoch, Protocol, ServicePortKey};
    use serde_json::json;

    use crate::{
        Config,
        index::{Index, ServicePolicy},
        log::ChangeLog,
        object::ClusterObject,
        testing::{endpoint, initial, node, number, put, service, slice, time},
    };

    use super::*;

    fn cluster() -> ClusterState {
        cluster_for(None)
    }

    /// Nodes node-0 to node-2 in two zones, and a Service `ns/web` with endpoints on two of them.
    fn cluster_for(only_node: Option<&str>) -> ClusterState {
        let mut web = service("web", "10.96.0.1");
        web.ports[0].node_port = Some(number(30080));
        web.load_balancer_ips = vec![[192, 0, 2, 1].into()];
        let endpoints = vec![endpoint("10.0.0.1", "node-0"), endpoint("10.0.0.2", "node-1")];
        let nodes = [("node-0", "zone-a"), ("node-1", "zone-b"), ("node-2", "zone-b")];
        let nodes = nodes.map(|(name, zone)| ClusterObject::from(node(name, zone)));
        let objects = nodes.into_iter().chain([web.into(), slice("x", "web", endpoints).into()]);
        let mut index = Index::new(time(0), Default::default(), ServicePolicy::default());
        index.limit_to_node(only_node.map(Into::into));
        let cluster = ClusterState::new(Epoch(1), index, ChangeLog::new(Config::default().history));
        initial(objects).into_iter().for_each(|update| cluster.index().apply(update));
        let commit = cluster.commit(|_| ()).unwrap();
        cluster.publish(commit.revision, commit.kind_versions);
        cluster
    }

    fn plan(cluster: &ClusterState, documents: &[Value]) -> v1::PlanResponse {
        let documents = documents.iter().map(Value::to_string).collect();
        response(cluster, &v1::PlanRequest { documents }).unwrap()
    }

    fn manifest(name: &str, spec: Value) -> Value {
        let metadata = json!({ "name": name, "namespace": "ns" });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })
    }

    fn web(more: &[(&str, Value)]) -> Value {
        let mut spec = json!({ "type": "LoadBalancer", "ports": [{ "name": "http", "port": 80 }] });
        more.iter().for_each(|(field, value)| spec[*field] = value.clone());
        manifest("web", spec)
    }

    fn names(group: Option<&v1::NodeGroup>) -> Vec<&str> {
        group.unwrap().names.iter().map(String::as_str).collect()
    }

    #[test]
    fn what_the_api_server_keeps_is_no_change() {
        let cluster = cluster();
        let same = plan(&cluster, &[web(&[])]);
        assert_eq!((same.change_count, same.problems.len(), same.ignored.len()), (0, 0, 0), "{same:?}");
    }

    #[test]
    fn node_ports_are_kept_by_port_or_name() {
        let cluster = cluster();
        let kept_with = |allocates: Value, ports: Value| {
            let mut document = web(&[("ports", ports), ("allocateLoadBalancerNodePorts", allocates)]);
            cluster.index().complete_service(&mut document, 1);
            let ports = document["spec"]["ports"].as_array().unwrap();
            ports.iter().map(|port| port["nodePort"].as_u64()).collect::<Vec<_>>()
        };
        let kept = |ports| kept_with(Value::Null, ports);
        let port = |name: &str, port: u16| json!({ "name": name, "port": port });
        assert_eq!(kept(json!([port("web", 80)])), [Some(30080)]);
        assert_eq!(kept(json!([port("http", 81)])), [Some(30080)]);
        assert_eq!(kept(json!([port("http", 81), port("web", 80)])), [None, Some(30080)]);
        assert_eq!(kept(json!([port("web", 81)])), [None]);
        assert_eq!(kept_with(json!(false), json!([port("http", 81)])), [None]);
        assert_eq!(kept_with(json!(false), json!([port("http", 80)])), [Some(30080)]);
    }

    #[test]
    fn nodes_that_lose_all_endpoints_are_named() {
        let cluster = cluster();
        let planned = plan(&cluster, &[web(&[("internalTrafficPolicy", json!("Local"))])]);
        assert_eq!((planned.change_count, planned.losing_count, planned.conflict_count), (1, 1, 0));
        let change = &planned.changes[0];
        assert_eq!(change.summary, "internal_policy Cluster -> Local");
        assert_eq!(change.nodes.as_ref().unwrap().count, 3);
        let [lost] = &change.lost_endpoints[..] else { panic!("{planned:?}") };
        assert_eq!((&*lost.traffic, names(lost.nodes.as_ref())), ("internalTrafficPolicy Local, IPv4", vec!["node-2"]));
        assert_eq!(cluster.index().take_changes().ports.len(), 0, "the index is as before");
    }

    #[test]
    fn plan_of_one_node_concerns_all_nodes() {
        let documents = [web(&[("internalTrafficPolicy", json!("Local"))])];
        let cluster_of_node = cluster_for(Some("node-0"));
        assert_eq!(plan(&cluster_of_node, &documents), plan(&cluster(), &documents));

        // Later commits have pools of that node only, as before.
        let endpoints = vec![endpoint("10.0.0.1", "node-0"), endpoint("10.0.0.3", "node-2")];
        cluster_of_node.index().apply(put(slice("x", "web", endpoints)));
        cluster_of_node.commit(|_| ()).unwrap();
        let log = cluster_of_node.log();
        let key = ServicePortKey::new("ns", "web", "http", Protocol::Tcp);
        let nodes: Vec<_> = log.view(&key).unwrap().nodes().map(|node| &**node).collect();
        assert_eq!(nodes, ["node-0"]);
    }

    #[test]
    fn renamed_port_is_not_lost() {
        let cluster = cluster();
        let renamed = web(&[("ports", json!([{ "name": "web", "port": 80 }]))]);
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "x", "namespace": "ns", "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "name": "web", "port": 8080 }], "endpoints": [{ "addresses": ["10.0.0.1"] }],
        });
        let planned = plan(&cluster, &[renamed.clone(), slice]);
        assert_eq!((planned.change_count, planned.losing_count), (2, 0), "{planned:?}");
        let planned = plan(&cluster, &[renamed]);
        let lost = planned.changes.iter().flat_map(|change| &change.lost_endpoints);
        let lost: Vec<_> = lost.map(|lost| &*lost.traffic).collect();
        let cluster_policy = |direction: &str| format!("{direction}TrafficPolicy Cluster, IPv4, as ns/web:web/tcp");
        assert_eq!(lost, [cluster_policy("external"), cluster_policy("internal")], "slices have the old name");
        let other = web(&[("ports", json!([{ "name": "web", "port": 81 }]))]);
        let planned = plan(&cluster, &[other]);
        let lost = &planned.changes[0].lost_endpoints[0];
        assert_eq!((&*lost.traffic, lost.nodes.as_ref().unwrap().count), ("IPv4: the service port is removed", 3));
    }

    #[test]
    fn slices_concern_the_nodes_that_use_them() {
        let cluster = cluster();
        let hinted = |address: &str, zone: &str| json!({ "addresses": [address], "nodeName": "node-0", "hints": { "forZones": [{ "name": zone }] } });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "x", "namespace": "ns", "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "name": "http", "port": 8080 }],
            "endpoints": [hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b")],
        });
        let planned = plan(&cluster, &[slice]);
        let mut changed = names(planned.changes[0].nodes.as_ref());
        changed.sort_unstable();
        assert_eq!(changed, ["node-0", "node-1", "node-2"], "hints narrow the pools of both zones");
        assert_eq!(planned.losing_count, 0, "{planned:?}");
    }

    #[test]
    fn conflicts_and_problems_are_listed() {
        let cluster = cluster();
        let config = json!({ "clientIP": { "timeoutSeconds": 0 } });
        let spec = json!({
            "ports": [{ "port": 80 }], "externalIPs": ["192.0.2.1", "198.51.100.1"],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": config,
        });
        let planned = plan(&cluster, &[manifest("new", spec)]);
        assert_eq!((planned.change_count, planned.losing_count, planned.conflict_count), (1, 0, 1), "{planned:?}");
        assert_eq!(planned.changes[0].gained_vips, ["198.51.100.1:80", "a new cluster IP"]);
        let fields: Vec<_> = planned.problems.iter().map(|problem| &*problem.field).collect();
        assert_eq!(fields, ["spec.externalIPs", "spec.sessionAffinityConfig.clientIP.timeoutSeconds"]);
    }

    #[test]
    fn objects_that_are_ignored_as_a_whole_are_listed() {
        let cluster = cluster();
        let port = json!([{ "name": "http", "port": "80" }]);
        let planned = plan(&cluster, &[web(&[("ports", port)]), web(&[]), manifest("", json!({}))]);
        assert_eq!((planned.change_count, planned.problems.len()), (0, 0), "{planned:?}");
        let [second, nameless, web] = &planned.ignored[..] else { panic!("{planned:?}") };
        assert!(second.contains("is in an earlier document"), "{second}");
        assert_eq!(nameless, "document 3: metadata.name is missing; ignored");
        assert!(web.starts_with("Service ns/web: spec.ports[0].port: invalid type"), "{web}");
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "x", "namespace": "ns" }, "endpoints": [],
        });
        let planned = plan(&cluster, &[slice]);
        assert_eq!((planned.losing_count, planned.problems.len(), planned.ignored.len()), (1, 1, 1), "{planned:?}");
    }

    #[test]
    fn addresses_of_a_wrong_type_are_not_taken_for_absent() {
        let cluster = cluster();
        for (field, value) in [("clusterIP", json!(10)), ("clusterIPs", json!("10.96.0.1"))] {
            let planned = plan(&cluster, &[manifest("new", json!({ "ports": [{ "port": 80 }], field: value }))]);
            assert_eq!(planned.change_count, 0, "{planned:?}");
            let expected = format!("Service ns/new: spec.{field}: invalid type");
            assert!(planned.ignored.iter().any(|ignored| ignored.starts_with(&expected)), "{planned:?}");
        }
    }

    #[test]
    fn large_requests_are_refused() {
        let cluster = cluster();
        let services: Vec<_> =
            (0..65).map(|n| manifest(&format!("s{n}"), json!({ "ports": [{ "port": 80 }] }))).collect();
        let documents = services.iter().map(Value::to_string).collect();
        let error = response(&cluster, &v1::PlanRequest { documents }).unwrap_err();
        assert_eq!(error.message(), "65 objects, more than 64: split the files");
        assert_eq!(plan(&cluster, &services[..64]).change_count, 64, "their cluster IPs do not conflict");
        let error = |document: Value| {
            let request = v1::PlanRequest { documents: document.to_string() };
            response(&cluster, &request).unwrap_err().message().to_owned()
        };
        let long = manifest(&"s".repeat(254), json!({ "ports": [{ "port": 80 }] }));
        let start = "s".repeat(64);
        let expected = format!("Service ns/{start}...: metadata.name: 254 bytes, more than 253");
        assert_eq!(error(long.clone()), expected);
        let wide = manifest("wide", json!({ "ports": vec![json!({}); MAX_PORTS + 1] }));
        assert_eq!(error(wide), "Service ns/wide: spec.ports: 101 entries, more than 100");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [long] });
        assert_eq!(error(list), "documents: an object is neither a Service of v1 nor an EndpointSlice");
    }

    #[test]
    fn only_the_first_changes_are_listed() {
        let cluster = cluster();
        let ports: Vec<_> = (1..=100).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let services = ["a", "b", "c"].map(|name| manifest(name, json!({ "ports": ports })));
        let planned = plan(&cluster, &services);
        assert_eq!((planned.changes.len(), planned.change_count, planned.losing_count), (256, 300, 0));
    }
}
