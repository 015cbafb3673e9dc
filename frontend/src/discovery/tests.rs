//! Addresses from slices, and discovery on an API server.

use fake_api_server::{ApiServer, RequestKind, Resource, kubeconfig};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

fn slice(addresses: &Value, ready: &Value) -> Value {
    json!({
        "metadata": { "name": "fairlead-x", "namespace": "kube-system" },
        "addressType": "IPv4",
        "ports": [{ "name": "metrics", "port": 7601 }, { "name": "grpc", "port": 7600 }],
        "endpoints": [{ "addresses": addresses, "conditions": { "ready": ready } }],
    })
}

fn addresses_at(port: Option<&str>, slice: &Value) -> Vec<String> {
    let slice = serde_json::from_value(slice.clone()).unwrap();
    ready_addresses(&slice, port).into_iter().map(|address| address.to_string()).collect()
}

#[test]
fn ready_endpoints_are_discovered_at_the_requested_port() {
    let both = slice(&json!(["10.0.0.1", "10.0.0.2"]), &json!(true));
    assert_eq!(addresses_at(Some("grpc"), &both), ["10.0.0.1:7600", "10.0.0.2:7600"]);
    assert_eq!(addresses_at(Some("7600"), &both).len(), 2);
    assert_eq!(addresses_at(None, &both)[0], "10.0.0.1:7601", "the first one");
    assert_eq!(addresses_at(Some("http"), &both), [""; 0]);
    assert_eq!(addresses_at(Some("grpc"), &slice(&json!(["10.0.0.1"]), &json!(false))), [""; 0]);
    assert_eq!(addresses_at(Some("grpc"), &slice(&json!(["10.0.0.1"]), &Value::Null)).len(), 1);
    assert_eq!(addresses_at(Some("grpc"), &slice(&json!(["fd00::1", "x"]), &json!(true))), ["[fd00::1]:7600"]);
}

#[tokio::test]
async fn discovery_lists_the_slices_of_the_service_at_the_address_of_the_kubeconfig() {
    let server = ApiServer::start().unwrap();
    let put = |namespace: &str, service: &str, address: &str| {
        let mut slice = slice(&json!([address]), &json!(true));
        slice["metadata"] = json!({
            "name": format!("{service}-x"), "namespace": namespace, "labels": {"kubernetes.io/service-name": service},
        });
        let _version = server.put(Resource::EndpointSlice, slice);
    };
    put("kube-system", "fairlead", "10.0.0.1");
    put("kube-system", "other", "10.0.0.2");
    put("default", "fairlead", "10.0.0.3");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig()).unwrap();
    let discover = async || discover_frontends(&path, "kube-system", "fairlead", Some("grpc")).await;
    assert_eq!(discover().await.unwrap(), ["10.0.0.1:7600".parse().unwrap()]);
    assert_eq!(server.requests(Resource::EndpointSlice, RequestKind::List), 1);

    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    std::fs::write(&path, kubeconfig(unused)).unwrap();
    let error = format!("{:#}", discover().await.unwrap_err());
    assert!(error.contains("EndpointSlices of Service kube-system/fairlead"), "{error}");
    assert!(error.contains("Connection refused") && error.contains("nothing listens on that port"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(format!("{:#}", discover().await.unwrap_err()).contains("kubeconfig"));
}
