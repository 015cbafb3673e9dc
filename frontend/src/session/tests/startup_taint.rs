//! When the startup taint of a node is removed.

use std::{convert::Infallible, time::Duration};

use fake_api_server::{ApiServer, Fault, Resource};
use kube::Client;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use super::*;
use crate::object::{NodeObject, STARTUP_TAINT};

/// Longer than the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(60);

struct Tainted {
    fixture: Fixture,
    server: ApiServer,
    writes: mpsc::UnboundedReceiver<(String, Value)>,
}

/// `node-0` and `node-1` have the taint, and another one.
async fn start() -> Tainted {
    let server = ApiServer::in_process();
    let node = |name| {
        let taints = [("other", "NoExecute"), (STARTUP_TAINT, "NoSchedule")];
        let taints = taints.map(|(key, effect)| json!({"key": key, "effect": effect}));
        let _version = server.put(Resource::Node, json!({"metadata": {"name": name}, "spec": {"taints": taints}}));
        ClusterObject::Node(NodeObject { info: node(name, "zone-a"), is_starting: true })
    };
    let fixture = Fixture::of(vec![service("web", "10.96.0.1").into(), node("node-0"), node("node-1")]).await;
    // Without a connection, so that time can be simulated.
    let api = server.clone();
    let service = tower::service_fn(move |request| {
        let api = api.clone();
        async move { Ok::<_, Infallible>(api.call(request).await) }
    });
    let (frontend, shutdown) = (fixture.frontend.clone(), fixture.shutdown.clone());
    tokio::spawn(async move { frontend.remove_startup_taints(Client::new(service, "default"), shutdown).await });
    let writes = server.writes();
    Tainted { fixture, server, writes }
}

impl Tainted {
    async fn write(&mut self) -> (String, Value) {
        timeout(PATIENCE, self.writes.recv()).await.expect("a request").unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn taint_is_removed_from_a_node_that_is_programmed() {
    let mut tainted = start().await;
    let mut client = tainted.fixture.connect(hello("node-0")).await;
    assert_eq!(client.welcome().await, SyncMode::Snapshot);
    assert!(timeout(Duration::from_secs(1), tainted.writes.recv()).await.is_err(), "before its first Ack");
    client.commit().await;
    let (call, patch) = tainted.write().await;
    assert_eq!(call, "PATCH /api/v1/nodes/node-0");
    assert_eq!(patch["spec"], json!({"taints": [{"key": "other", "effect": "NoExecute"}]}));
    assert!(patch["metadata"]["resourceVersion"].is_string(), "{patch}");
    let untainted = ClusterObject::from(node("node-0", "zone-a"));
    tainted.fixture.update(put(untainted)).await;
    let _second = tainted.fixture.joined("node-1").await;
    assert_eq!(tainted.write().await.0, "PATCH /api/v1/nodes/node-1");
}

#[tokio::test(start_paused = true)]
async fn failed_request_is_repeated() {
    let mut tainted = start().await;
    tainted.server.set_faults(Resource::Node, |faults| faults.writes = Some(Fault::Refuse(500)));
    let _client = tainted.fixture.joined("node-0").await;
    let refused = tainted.write().await;
    tainted.server.set_faults(Resource::Node, |faults| faults.writes = None);
    assert_eq!(tainted.write().await, refused);
}
