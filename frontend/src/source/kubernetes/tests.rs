//! The real client against a server that lists, watches, forgets, cuts and hangs.

use runtime::Trigger;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::testing::{ApiServer, PATIENCE, Watch};
use super::*;
use crate::object::{Object, ObjectName};

/// A source on a server of its own.
struct Fixture {
    server: ApiServer,
    updates: mpsc::Receiver<Update>,
    running: JoinHandle<Result<()>>,
    trigger: Trigger,
}

impl Fixture {
    /// Starts; the server has been asked nothing yet.
    async fn new(watch_seconds: u32) -> Self {
        let server = ApiServer::start().await;
        let config = Config::new(format!("http://{}", server.address).parse().unwrap());
        let (sender, updates) = mpsc::channel(1);
        let (trigger, shutdown) = Shutdown::channel();
        let client = client_from(config).unwrap();
        let running = tokio::spawn(run_with(client, watch_seconds, sender, shutdown));
        Self { server, updates, running, trigger }
    }

    /// Starts on nodes alone: the first list has been delivered, and the first watch has begun.
    async fn on_nodes(nodes: &[Value]) -> (Self, Watch) {
        let mut fixture = Self::new(WATCH_SECONDS).await;
        fixture.server.list(Kind::Node, "10", nodes).await;
        assert!(
            matches!(fixture.next().await, Update::Replace(Kind::Node, found) if found.len() == nodes.len())
        );
        let watch = fixture.server.watch(Kind::Node, "10").await;
        (fixture, watch)
    }

    async fn next(&mut self) -> Update {
        timeout(PATIENCE, self.updates.recv()).await.expect("an update").expect("the source runs")
    }

    async fn next_in_short(&mut self) -> String {
        in_short(&self.next().await)
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

fn in_short(update: &Update) -> String {
    let nodes = |parsed: &Parsed| match &parsed.object {
        Some(Object::Node(node)) => format!("{} in {}", parsed.name, node.zone),
        other => panic!("{other:?}"),
    };
    match update {
        Update::Apply(parsed) => nodes(parsed),
        Update::Delete(kind, name) => format!("{kind} {name} gone"),
        Update::Replace(kind, all) => {
            format!("all {kind}: {}", all.iter().map(nodes).collect::<Vec<_>>().join(", "))
        }
    }
}

#[tokio::test]
async fn lists_and_watches_each_kind_with_its_selectors() {
    let mut fixture = Fixture::new(WATCH_SECONDS).await;
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
    let services = [
        "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name",
        "fieldSelector=spec.clusterIP%21%3DNone",
    ];
    let slices = ["labelSelector=%21service.kubernetes.io%2Fheadless"];
    for (kind, object, selectors) in [
        (Kind::Service, service, &services[..]),
        (Kind::EndpointSlice, slice, &slices[..]),
        (Kind::Node, node("n1", "x", "7"), &[][..]),
        (Kind::ServiceCidr, cidr, &[][..]),
    ] {
        let call = fixture.server.call(kind).await;
        call.assert(selectors);
        call.assert(&["limit=500"]);
        assert_eq!(call.query.matches("Selector=").count(), selectors.len(), "{}", call.query);
        call.list("10", &[object], None);
        let Update::Replace(replaced, objects) = fixture.next().await else { panic!("no Replace of {kind}") };
        assert_eq!((replaced, objects.len()), (kind, 1));
        assert_eq!((objects[0].object.is_some(), &objects[0].problems[..]), (true, &[][..]));
        let call = fixture.server.call(kind).await;
        call.assert(selectors);
        call.assert(&["watch=true", "resourceVersion=10", "allowWatchBookmarks=true", "timeoutSeconds=60"]);
        assert_eq!(call.query.matches("Selector=").count(), selectors.len(), "{}", call.query);
    }
}

#[tokio::test]
async fn pages_make_one_replace() {
    let mut fixture = Fixture::new(WATCH_SECONDS).await;
    fixture.server.call(Kind::Node).await.list("10", &[node("n1", "x", "1")], Some("second"));
    let call = fixture.server.call(Kind::Node).await;
    call.assert(&["continue=second"]);
    call.list("10", &[node("n2", "x", "2")], None);
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x, n2 in x");
}

#[tokio::test]
async fn follows_changes() {
    let (mut fixture, mut watch) = Fixture::on_nodes(&[node("n1", "x", "1")]).await;
    watch.send("ADDED", &node("n2", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in x");
    watch.send("MODIFIED", &node("n2", "y", "12")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in y");
    watch.send("DELETED", &node("n1", "x", "13")).await;
    assert_eq!(fixture.next_in_short().await, "Node n1 gone");
}

#[tokio::test]
async fn watch_that_ends_is_taken_up_where_it_ended() {
    let (mut fixture, mut watch) = Fixture::on_nodes(&[]).await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
    // In order.
    drop(watch);
    let mut watch = fixture.server.watch(Kind::Node, "11").await;
    watch.bookmark(Kind::Node, "20").await;
    drop(watch);
    // In the middle of an event.
    fixture.server.watch(Kind::Node, "20").await.cut().await;
    let mut watch = fixture.server.watch(Kind::Node, "20").await;
    watch.send("MODIFIED", &node("n1", "y", "21")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in y");
}

#[tokio::test]
async fn gone_within_a_watch_lists_anew() {
    let (mut fixture, mut watch) = Fixture::on_nodes(&[node("n1", "x", "1"), node("n2", "x", "2")]).await;
    watch.error(410).await;
    fixture.server.list(Kind::Node, "50", &[node("n2", "y", "40")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n2 in y");
    fixture.server.watch(Kind::Node, "50").await;
}

#[tokio::test]
async fn watch_that_the_server_refuses_to_begin_lists_anew() {
    for code in [400, 410, 504] {
        let (mut fixture, watch) = Fixture::on_nodes(&[node("n1", "x", "1")]).await;
        drop(watch);
        fixture.server.call(Kind::Node).await.refuse(code);
        fixture.server.list(Kind::Node, "5", &[node("n1", "y", "3")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
        // A version below the earlier one is as good as any.
        fixture.server.watch(Kind::Node, "5").await;
    }
}

#[tokio::test]
async fn api_that_fails_empties_nothing() {
    let (mut fixture, watch) = Fixture::on_nodes(&[node("n1", "x", "1")]).await;
    drop(watch);
    for code in [500, 503, 429, 403] {
        let call = fixture.server.call(Kind::Node).await;
        call.assert(&["watch=true", "resourceVersion=10"]);
        call.refuse(code);
    }
    fixture.server.watch(Kind::Node, "10").await.error(410).await;
    // The list fails as well, once in the middle.
    fixture.server.call(Kind::Node).await.refuse(500);
    fixture.server.call(Kind::Node).await.list("50", &[node("half", "x", "2")], Some("second"));
    fixture.server.call(Kind::Node).await.refuse(500);
    assert!(fixture.updates.try_recv().is_err(), "an update came of failures alone");
    fixture.server.list(Kind::Node, "60", &[node("n1", "x", "1")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x");
}

#[tokio::test]
async fn kind_that_hangs_holds_up_no_other() {
    let mut fixture = Fixture::new(WATCH_SECONDS).await;
    fixture.server.call(Kind::Service).await.hang();
    fixture.server.call(Kind::EndpointSlice).await.refuse(500);
    fixture.server.list(Kind::Node, "10", &[]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: ");
}

/// An older cluster, or one that does not let us read it. Of a kind that must be there that would be trouble.
#[tokio::test]
async fn service_cidrs_that_are_not_offered_are_none_until_they_are() {
    for code in [404, 403] {
        let mut fixture = Fixture::new(1).await;
        fixture.server.call(Kind::Node).await.refuse(code);
        fixture.server.call(Kind::ServiceCidr).await.refuse(code);
        assert_eq!(fixture.next_in_short().await, "all ServiceCIDR: ", "{code}");
        // It is looked for again, in silence.
        fixture.server.call(Kind::ServiceCidr).await.refuse(code);
        let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
        fixture.server.list(Kind::ServiceCidr, "10", &[cidr]).await;
        let Update::Replace(Kind::ServiceCidr, objects) = fixture.next().await else { panic!("no Replace") };
        assert!(matches!(&objects[0].object, Some(Object::ServiceCidr(found)) if found.cidrs.len() == 1));
    }
}

/// What is known stays: the server may be on its way back from a backup.
#[tokio::test]
async fn service_cidrs_that_are_offered_no_more_stay() {
    let mut fixture = Fixture::new(1).await;
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
    fixture.server.list(Kind::ServiceCidr, "10", &[cidr]).await;
    assert!(matches!(fixture.next().await, Update::Replace(Kind::ServiceCidr, found) if found.len() == 1));
    fixture.server.watch(Kind::ServiceCidr, "10").await.error(410).await;
    fixture.server.call(Kind::ServiceCidr).await.refuse(404);
    fixture.server.list(Kind::ServiceCidr, "20", &[]).await;
    assert!(matches!(fixture.next().await, Update::Replace(Kind::ServiceCidr, found) if found.is_empty()));
}

/// A failure is no answer: the cluster is not complete before there is one.
#[tokio::test]
async fn service_cidrs_that_cannot_be_listed_are_waited_for() {
    let mut fixture = Fixture::new(WATCH_SECONDS).await;
    fixture.server.call(Kind::ServiceCidr).await.refuse(503);
    fixture.server.call(Kind::ServiceCidr).await.refuse(500);
    assert!(fixture.updates.try_recv().is_err(), "an update came of failures alone");
    fixture.server.list(Kind::ServiceCidr, "10", &[]).await;
    assert_eq!(fixture.next_in_short().await, "all ServiceCIDR: ");
}

#[tokio::test]
async fn watch_that_has_died_without_a_word_is_noticed() {
    let mut fixture = Fixture::new(1).await;
    fixture.server.list(Kind::Node, "10", &[]).await;
    fixture.next().await;
    let mut silent = fixture.server.watch(Kind::Node, "10").await;
    silent.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
    let mut watch = fixture.server.watch(Kind::Node, "11").await;
    watch.send("ADDED", &node("n2", "x", "12")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in x");
    drop(silent);
}

#[tokio::test]
async fn object_of_the_wrong_shape_stands_in_nobodys_way() {
    let mut poison = node("poison", "x", "2");
    poison["spec"] = json!({"taints": "none"});
    let mut fixture = Fixture::new(WATCH_SECONDS).await;
    fixture.server.list(Kind::Node, "10", &[node("n1", "x", "1"), poison.clone()]).await;
    let Update::Replace(Kind::Node, nodes) = fixture.next().await else { panic!("no Replace") };
    assert_eq!(nodes[1].name, ObjectName::new("", "poison"));
    assert_eq!((&nodes[1].object, nodes[1].problems[0].field.as_str()), (&None, "spec.taints"));
    assert!(nodes[0].object.is_some());
    let mut watch = fixture.server.watch(Kind::Node, "10").await;
    poison["metadata"]["resourceVersion"] = "11".into();
    watch.send("MODIFIED", &poison).await;
    assert!(matches!(fixture.next().await, Update::Apply(Parsed { object: None, .. })));
    drop(watch);
    fixture.server.watch(Kind::Node, "11").await;
}

#[tokio::test]
async fn ends_with_the_shutdown_or_when_nobody_receives() {
    let (mut fixture, _watch) = Fixture::on_nodes(&[]).await;
    fixture.trigger.fire();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap().unwrap();
    let (mut fixture, _watch) = Fixture::on_nodes(&[]).await;
    fixture.updates.close();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn kubeconfig_that_is_missing_is_named() {
    let error = client(Some(Path::new("/no/such/kubeconfig"))).await.err().unwrap();
    assert!(format!("{error:#}").contains("/no/such/kubeconfig"), "{error:#}");
}
