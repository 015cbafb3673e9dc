//! Addresses from slices, and discovery against an HTTP server.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
};

use serde_json::{Value, json};

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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let request = lines.next().unwrap();
        let _headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let list = json!({
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {},
            "items": [slice(&json!(["10.0.0.1"]), &json!(true))],
        });
        let body = list.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        request
    });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let discover = async || discover_frontends(&kubeconfig, "kube-system", "fairlead", Some("grpc")).await;
    assert_eq!(discover().await.unwrap(), ["10.0.0.1:7600".parse().unwrap()]);
    let request = server.join().unwrap();
    assert!(request.starts_with("GET /apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?"), "{request}");
    assert!(request.contains("labelSelector=kubernetes.io%2Fservice-name%3Dfairlead"), "{request}");

    // The server is gone.
    let error = format!("{:#}", discover().await.unwrap_err());
    assert!(error.contains("EndpointSlices of Service kube-system/fairlead"), "{error}");
    assert!(error.contains("Connection refused") && error.contains("nothing listens on that port"), "{error}");
    std::fs::remove_file(&kubeconfig).unwrap();
    assert!(format!("{:#}", discover().await.unwrap_err()).contains("kubeconfig"));
}
