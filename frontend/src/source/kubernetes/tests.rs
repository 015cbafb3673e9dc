//! The real client against a fake API server that fails in every way.
//!
//! | module | subject |
//! |---|---|
//! | `lists` | lists, streamed and in pages |
//! | `watches` | watches |
//! | `optional` | a kind that is not served |
//! | `verification` | requests beside a watch |
//! | `outage` | an API server that is gone for some time |
//! | `freshness` | what `Freshness` reports |

mod freshness;
mod lists;
mod optional;
mod outage;
mod verification;
mod watches;

use std::{net::SocketAddr, path::Path};

use fake_api_server::{OpenWatch, PATIENCE, Resource, ScriptedApiServer};
use kube::Config;
use runtime::Trigger;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use super::{api::ApiSettings, request::MAX_RESPONSE_BYTES, *};
use proto::{model::SourceVersion, v1::WatchPhase};

use crate::{
    object::{ClusterObject, ObjectKind, ObjectName, ParsedObject, VersionProgress},
    source::KindFreshness,
};

/// A deadline that expires in a test with simulated time: far longer than a request, shorter than [`PATIENCE`].
const SHORT: Duration = Duration::from_secs(10);

/// The deadlines of production, with short delays between retries.
fn deadlines() -> Deadlines {
    let (min_retry, max_retry) = (Duration::from_millis(1), Duration::from_millis(20));
    let after_failure = Duration::from_secs(3_600);
    Deadlines { min_retry, max_retry, grace: Duration::from_millis(10), after_failure, ..Deadlines::default() }
}

impl From<ObjectKind> for Resource {
    fn from(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Service => Self::Service,
            ObjectKind::EndpointSlice => Self::EndpointSlice,
            ObjectKind::Node => Self::Node,
            ObjectKind::ServiceCidr => Self::ServiceCidr,
        }
    }
}

/// A source with a server of its own.
struct Fixture<S = ScriptedApiServer> {
    server: S,
    updates: mpsc::Receiver<SourceUpdate>,
    /// Received between the other updates.
    progress: Vec<(ObjectKind, VersionProgress)>,
    freshness: Freshness,
    running: JoinHandle<()>,
    trigger: Trigger,
}

impl Fixture {
    /// Starts; the server has received no request yet.
    async fn new(deadlines: Deadlines) -> Self {
        let server = ScriptedApiServer::start();
        Self::on(server.address(), server, deadlines)
    }

    /// Starts with nodes at version 10, delivered by a streaming list whose watch continues.
    async fn on_nodes(deadlines: Deadlines, nodes: &[Value]) -> (Self, OpenWatch) {
        let mut fixture = Self::new(deadlines).await;
        let watch = fixture.server.stream(ObjectKind::Node, "10", nodes).await;
        fixture.all_nodes(nodes.len()).await;
        (fixture, watch)
    }

    /// The same on a server that does not stream lists.
    async fn on_pages(deadlines: Deadlines, nodes: &[Value]) -> (Self, OpenWatch) {
        let mut fixture = Self::new(deadlines).await;
        fixture.server.reject_stream(ObjectKind::Node).await;
        fixture.server.list(ObjectKind::Node, "10", nodes).await;
        fixture.all_nodes(nodes.len()).await;
        let watch = fixture.server.watch(ObjectKind::Node, "10").await;
        (fixture, watch)
    }

    async fn all_nodes(&mut self, count: usize) {
        assert!(matches!(self.next().await, SourceUpdate::Replace(ObjectKind::Node, found) if found.len() == count));
    }
}

impl<S> Fixture<S> {
    /// Starts on a server.
    fn on(address: SocketAddr, server: S, deadlines: Deadlines) -> Self {
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let (sender, updates) = mpsc::channel(64);
        let (trigger, shutdown) = Shutdown::channel();
        let freshness = Freshness::default();
        let settings = ApiSettings::of_kubeconfig(Path::new("/test/kubeconfig"));
        let api = KubernetesApi::from_config(config, settings).unwrap();
        let running = tokio::spawn({
            let freshness = freshness.clone();
            async move { run(api, deadlines, sender, &freshness, shutdown).await }
        });
        Self { server, updates, progress: Vec::new(), freshness, running, trigger }
    }

    /// The next update of objects.
    async fn next(&mut self) -> SourceUpdate {
        loop {
            let update = timeout(PATIENCE, self.updates.recv()).await.expect("an update").expect("the source runs");
            match update {
                SourceUpdate::Progress(kind, progress) => self.progress.push((kind, progress)),
                update => return update,
            }
        }
    }

    async fn next_summary(&mut self) -> String {
        summary(&self.next().await)
    }

    fn row(&self, kind: ObjectKind) -> KindFreshness {
        self.freshness.snapshot().into_iter().find(|row| row.kind == kind).unwrap()
    }

    #[track_caller]
    fn assert_no_update(&mut self) {
        while let Ok(update) = self.updates.try_recv() {
            assert!(matches!(update, SourceUpdate::Progress(..)), "failures alone caused an update");
        }
    }
}

fn node(name: &str, zone: &str, version: &str) -> Value {
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "resourceVersion": version,
            "labels": {"topology.kubernetes.io/zone": zone},
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        },
    })
}

fn summary(update: &SourceUpdate) -> String {
    let nodes = |parsed: &ParsedObject| match &parsed.object {
        Some(ClusterObject::Node(node)) => format!("{} in {}", parsed.name, node.info.zone),
        other => panic!("{other:?}"),
    };
    match update {
        SourceUpdate::Apply(parsed) => nodes(parsed),
        SourceUpdate::Delete(kind, name) => format!("{kind} {name} deleted"),
        SourceUpdate::Replace(kind, all) => {
            format!("all {kind}: {}", all.iter().map(nodes).collect::<Vec<_>>().join(", "))
        }
        SourceUpdate::Progress(kind, progress) => format!("{kind} {progress:?}"),
    }
}

/// One object of each kind.
fn samples() -> [(ObjectKind, Value, &'static [&'static str]); 4] {
    let service = json!({
        "metadata": {"namespace": "shop", "name": "web", "resourceVersion": "5"},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]},
    });
    let slice = json!({
        "metadata": {
            "namespace": "shop",
            "name": "web-1",
            "resourceVersion": "6",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": null,
        "ports": null,
    });
    let cidr = json!({
        "metadata": {"name": "kubernetes", "resourceVersion": "8"},
        "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
    });
    [
        (ObjectKind::Service, service, &["fieldSelector=spec.clusterIP%21%3DNone"]),
        (ObjectKind::EndpointSlice, slice, &["labelSelector=%21service.kubernetes.io%2Fheadless"]),
        (ObjectKind::Node, node("n1", "x", "7"), &[]),
        (ObjectKind::ServiceCidr, cidr, &[]),
    ]
}

#[tokio::test]
async fn streams_and_watches_each_kind_with_its_selectors() {
    let mut fixture = Fixture::new(deadlines()).await;
    for (kind, object, selectors) in samples() {
        let call = fixture.server.call(kind).await;
        call.assert(selectors);
        assert_eq!(call.query.matches("Selector=").count(), selectors.len(), "{}", call.query);
        let mut watch = call.stream();
        watch.send("ADDED", &object).await;
        watch.initial_events_end(kind, "10").await;
        let SourceUpdate::Replace(replaced, objects) = fixture.next().await else { panic!("no Replace of {kind}") };
        assert_eq!((replaced, objects.len()), (kind, 1));
        assert_eq!((objects[0].object.is_some(), &objects[0].problems[..]), (true, &[][..]));
        drop(watch);
        let call = fixture.server.call(kind).await;
        call.assert(selectors);
        call.assert(&["resourceVersion=10", "timeoutSeconds=60"]);
        assert_eq!(call.query.matches("Selector=").count(), selectors.len(), "{}", call.query);
        call.watch();
    }
}

#[tokio::test]
async fn lists_each_kind_with_its_selectors() {
    let mut fixture = Fixture::new(deadlines()).await;
    for (kind, object, selectors) in samples() {
        let mut call = fixture.server.call(kind).await;
        // The other watchers know already, or have started before.
        if call.query.contains("sendInitialEvents") {
            call.reject(422);
            call = fixture.server.call(kind).await;
        }
        call.assert(selectors);
        call.assert(&["limit=500"]);
        assert_eq!(call.query.matches("Selector=").count(), selectors.len(), "{}", call.query);
        call.list("10", &[object], None);
        let SourceUpdate::Replace(replaced, objects) = fixture.next().await else { panic!("no Replace of {kind}") };
        assert_eq!((replaced, objects.len()), (kind, 1));
        assert_eq!((objects[0].object.is_some(), &objects[0].problems[..]), (true, &[][..]));
        fixture.server.watch(kind, "10").await;
    }
}

#[tokio::test]
async fn kind_without_response_does_not_delay_the_others() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.call(ObjectKind::Service).await.hang();
    fixture.server.call(ObjectKind::EndpointSlice).await.reject(500);
    fixture.server.stream(ObjectKind::Node, "10", &[]).await;
    assert_eq!(fixture.next_summary().await, "all Node: ");
}

#[tokio::test]
async fn object_of_the_wrong_type_does_not_affect_the_others() {
    let mut poison = node("poison", "x", "2");
    poison["spec"] = json!({"taints": "none"});
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    fixture.server.list(ObjectKind::Node, "10", &[node("n1", "x", "1"), poison.clone()]).await;
    let SourceUpdate::Replace(ObjectKind::Node, nodes) = fixture.next().await else { panic!("no Replace") };
    assert_eq!(nodes[1].name, ObjectName::new("", "poison"));
    assert_eq!((&nodes[1].object, nodes[1].problems[0].field.as_str()), (&None, "spec.taints"));
    assert!(nodes[0].object.is_some());
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    poison["metadata"]["resourceVersion"] = "11".into();
    watch.send("MODIFIED", &poison).await;
    assert!(matches!(fixture.next().await, SourceUpdate::Apply(ParsedObject { object: None, .. })));
    drop(watch);
    fixture.server.watch(ObjectKind::Node, "11").await;
}

#[tokio::test]
async fn ends_on_shutdown_or_when_the_receiver_is_dropped() {
    let (mut fixture, _watch) = Fixture::on_nodes(deadlines(), &[]).await;
    fixture.trigger.fire();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap();
    let (mut fixture, _watch) = Fixture::on_nodes(deadlines(), &[]).await;
    fixture.updates.close();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn missing_kubeconfig_is_named() {
    let error = KubernetesApi::new(Some(Path::new("/no/such/kubeconfig"))).await.err().unwrap();
    assert!(format!("{error:#}").contains("/no/such/kubeconfig"), "{error:#}");
}
