//! Node objects that are deleted or lose their addresses while their backend is connected, at a real list and watch.

use fairlead_frontend::{
    Config,
    source::{KubernetesApi, Source},
};
use fake_api_server::{ApiServer, Resource};
use proto::v1::{self, operation, server_message};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Duration, RunningFrontend, Server, Stream, TIMEOUT, Transport, hello, timeout};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "spec": {"podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.1.1"}]},
    })
}

/// A frontend that follows an API server with these nodes.
async fn follow(api: &ApiServer) -> Server {
    for name in NODES {
        let _ = api.put(Resource::Node, node(name));
    }
    let server = Server::start(Transport::Unix, Config::default(), Vec::new()).await;
    let kubeconfig = server.directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
    let source = Source::Kubernetes(KubernetesApi::new(Some(&kubeconfig)).await.unwrap());
    let (updates, freshness) = (server.updates.clone(), server.frontend.freshness());
    let RunningFrontend { shutdown, trigger, .. } = RunningFrontend::start(Config::default());
    tokio::spawn(async move {
        // Runs until the test ends.
        let _trigger = trigger;
        source.run(updates, freshness, shutdown).await
    });
    server
}

/// The problems of Nodes, once there are this many.
async fn problems(server: &Server, count: usize) -> Vec<String> {
    let reached = async {
        loop {
            let problems = server.status().await.problems.into_iter().filter(|problem| problem.object.contains("Node"));
            let problems: Vec<_> = problems.map(|problem| format!("{}: {}", problem.object, problem.message)).collect();
            if problems.len() == count {
                return problems;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, reached).await.expect("wrong number of problems")
}

async fn joined(server: &Server, name: &str) -> Stream {
    let mut stream = server.hello(hello(name)).await;
    stream.commit().await;
    stream
}

/// The next facts of its node that a stream receives. Everything before is acknowledged.
async fn facts(stream: &mut Stream) -> v1::NodeInfo {
    loop {
        match stream.next().await.unwrap() {
            Some(server_message::Message::Batch(batch)) => {
                if batch.commit {
                    stream.ack().await;
                }
                for operation in batch.operations {
                    if let Some(operation::Operation::PutNode(node)) = operation.operation {
                        return node;
                    }
                }
            }
            Some(server_message::Message::Bookmark(_)) => drop(stream.ack().await),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn deleted_node_of_a_connected_backend_is_reported_until_it_returns() {
    let api = ApiServer::start().unwrap();
    let server = follow(&api).await;
    let mut one = joined(&server, "node-1").await;
    let two = joined(&server, "node-2").await;
    problems(&server, 0).await;
    assert!(api.delete(Resource::Node, "", "node-1"));
    // A Node without a connected backend is deleted on purpose.
    assert!(api.delete(Resource::Node, "", "node-3"));
    let found = problems(&server, 1).await;
    assert!(found[0].starts_with("Node node-1: there is no such Node, but its backend is connected"), "{found:?}");
    assert_eq!(facts(&mut one).await.addresses.len(), 0, "the backend retains what it has");

    // All of them, and a watch that ends with it.
    api.delete(Resource::Node, "", "node-2");
    api.compact();
    api.cut_watches();
    problems(&server, 2).await;
    let _ = api.put(Resource::Node, node("node-1"));
    assert_eq!(facts(&mut one).await.addresses.len(), 1);
    let found = problems(&server, 1).await;
    assert!(found[0].starts_with("Node node-2:"), "{found:?}");
    drop(two);
    problems(&server, 0).await;
}

#[tokio::test]
async fn node_that_loses_its_addresses_is_reported_until_it_has_some() {
    let api = ApiServer::start().unwrap();
    let server = follow(&api).await;
    let mut one = joined(&server, "node-1").await;
    let without = |name: &str| {
        let mut node = node(name);
        node["status"]["addresses"] = json!([]);
        node
    };
    let _ = api.put(Resource::Node, without("node-4"));
    let _ = api.put(Resource::Node, without("node-1"));
    let found = problems(&server, 1).await;
    assert!(found[0].starts_with("Node node-1: it has no InternalIP or ExternalIP any more"), "{found:?}");
    assert_eq!(facts(&mut one).await.addresses.len(), 0, "the backend retains what it has");
    let _ = api.put(Resource::Node, node("node-1"));
    assert_eq!(facts(&mut one).await.addresses.len(), 1);
    problems(&server, 0).await;
}

#[tokio::test]
async fn cluster_without_node_objects_lacks_none() {
    let server = Server::of(1).await;
    let _stream = joined(&server, "node-1").await;
    problems(&server, 0).await;
}
