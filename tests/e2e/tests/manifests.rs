//! The manifests of the test cluster have the same fields as objects from an API server.

use std::{fs, path::Path};

use e2e::{
    Cluster, Protocol,
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy},
    plan,
};
use serde_json::{Value, json};

fn read(directory: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory.join(file)).expect("a manifest");
    text.split("---\n").map(|document| serde_saphyr::from_str(document).expect("YAML")).collect()
}

#[test]
fn cluster_writes_its_nodes_and_services() {
    let cluster = Cluster::builder().pods_per_node(1).ports(&[]).start();
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = cluster.manifests(&directory.path().join("cluster"));

    let node = &read(manifests.directory(), "node-b.yaml")[0];
    assert_eq!(node["kind"], "Node");
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "b");
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.244.2.0/24", "fd00:10:244:2::/64"]));
    let address = json!({ "type": "InternalIP", "address": "172.16.0.12" });
    assert_eq!(node["status"]["addresses"][0], address);

    let web = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).pods(cluster.pods());
    manifests.apply(&web);
    let [service, v4, v6] = &read(manifests.directory(), "default.web.yaml")[..] else {
        panic!("a service and its slices")
    };
    assert_eq!(service["spec"]["type"], "ClusterIP");
    assert_eq!(service["spec"]["clusterIPs"], json!(["10.96.0.1", "fd00:10:96::1"]));
    assert_eq!(service["spec"]["externalTrafficPolicy"], Value::Null);
    assert_eq!(service["spec"]["ports"][2]["protocol"], "SCTP");
    assert_eq!((&v4["addressType"], &v6["addressType"]), (&json!("IPv4"), &json!("IPv6")));
    assert_eq!(v4["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    assert_eq!(v6["endpoints"][1]["addresses"], json!(["fd00:10:244:2::11"]));
    assert_eq!(v4["ports"][0], json!({ "name": "tcp-80", "protocol": "TCP", "port": 8080 }));

    manifests.delete(&web);
    let mut left = fs::read_dir(manifests.directory())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect::<Vec<_>>();
    left.sort();
    assert_eq!(left, ["node-a.yaml", "node-b.yaml", "service-cidrs.yaml"]);
}

#[test]
fn service_with_all_fields_is_written() {
    let cluster = Cluster::builder().pods_per_node(1).ports(&[]).start();
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = cluster.manifests(directory.path());
    let service = Service::new("all")
        .namespace("shop")
        .cluster_ip(plan::cluster_ip(1))
        .port(Protocol::Tcp, 80, 8080)
        .node_port(30080)
        .external_ip(plan::external_ip(1))
        .load_balancer_ip(plan::load_balancer_ip(1))
        .source_ranges(&["203.0.113.1/32"])
        .internal_policy(TrafficPolicy::Local)
        .external_policy(TrafficPolicy::Local)
        .health_check_node_port(32000)
        .affinity(10800)
        .endpoints([
            Endpoint::of(cluster.pod("pod-a-1")).for_zones(&["a"]).for_nodes(&["node-a"]),
            Endpoint::of(cluster.pod("pod-b-1")).state(EndpointState::Draining),
        ]);
    manifests.apply(&service);
    let objects = read(manifests.directory(), "shop.all.yaml");
    let spec = &objects[0]["spec"];
    assert_eq!(spec["type"], "LoadBalancer");
    assert_eq!(spec["ports"][0]["nodePort"], 30080);
    assert_eq!(spec["externalIPs"][0], "198.51.100.1");
    assert_eq!(spec["externalTrafficPolicy"], "Local");
    assert_eq!(spec["internalTrafficPolicy"], "Local");
    assert_eq!(spec["loadBalancerSourceRanges"], json!(["203.0.113.1/32"]));
    assert_eq!(spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    assert_eq!(spec["healthCheckNodePort"], 32000);
    let ingress = json!({ "ip": "192.0.2.1", "ipMode": "VIP" });
    assert_eq!(objects[0]["status"]["loadBalancer"]["ingress"][0], ingress);

    let [hinted, draining] = [0, 1].map(|number| &objects[1]["endpoints"][number]);
    assert_eq!(hinted["hints"], json!({ "forZones": [{ "name": "a" }], "forNodes": [{ "name": "node-a" }] }));
    assert_eq!((&hinted["nodeName"], &hinted["zone"]), (&json!("node-a"), &json!("a")));
    let conditions = json!({ "ready": false, "serving": true, "terminating": true });
    assert_eq!(draining["conditions"], conditions);
    assert_eq!(draining["hints"], Value::Null);
}
