//! The requests that a fake API server receives.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fake_api_server::{ApiServer, Fault, Resource};
use kube::{Client, Config};
use proto::model::{FailureKind, Protocol, ServicePortKey};
use serde_json::{Value, json};

use super::{recorder::add_failure, *};
use crate::object::{ObjectKind, ObjectProblem};

const PATIENCE: Duration = Duration::from_secs(60);

struct Fixture {
    events: Arc<EventQueue>,
    writes: mpsc::UnboundedReceiver<(String, Value)>,
    server: ApiServer,
}

async fn start() -> Fixture {
    let server = ApiServer::start().unwrap();
    let writes = server.writes();
    let mut config = Config::new(format!("http://{}", server.address()).parse().unwrap());
    config.default_retry = false;
    let events = Arc::<EventQueue>::default();
    let reports = events.receiver().unwrap();
    assert!(events.receiver().is_none(), "one recorder");
    let recorder = EventRecorder::new(Client::try_from(config).unwrap(), "frontend-0".to_owned());
    tokio::spawn(recorder.run(reports));
    Fixture { events, writes, server }
}

impl Fixture {
    fn failed(&self, node: &str, service: &str, reason: &str) {
        self.failed_to(FailureKind::Program, node, service, reason);
    }

    fn failed_to(&self, kind: FailureKind, node: &str, service: &str, reason: &str) {
        self.failed_in("shop", kind, node, service, reason);
    }

    fn failed_in(&self, namespace: &str, kind: FailureKind, node: &str, service: &str, reason: &str) {
        let key = ServicePortKey::new(namespace, service, "http", Protocol::Tcp);
        let failure = ServicePortFailure { key, reason: reason.to_owned(), retryable: true, kind };
        self.events.report(EventReport::Failed(node.into(), failure));
    }

    /// The method and path of the next write, and its body.
    async fn call(&mut self) -> (String, Value) {
        tokio::time::timeout(PATIENCE, self.writes.recv()).await.expect("a request").unwrap()
    }

    /// Another replica has created an Event.
    fn put(&self, event: &Value) {
        let _version = self.server.put(Resource::Event, event.clone());
    }
}

#[tokio::test]
async fn failures_of_many_nodes_for_one_reason_are_one_event() {
    let mut fixture = start().await;
    for number in 0..500 {
        fixture.failed(&format!("node-{number}"), "web", "invalid argument");
    }
    fixture.failed("node-0", "web", "no such set");
    let mut names = BTreeSet::new();
    for _ in 0..2 {
        let (call, event) = fixture.call().await;
        assert_eq!(call, "POST /apis/events.k8s.io/v1/namespaces/shop/events");
        assert_eq!(
            event["regarding"],
            json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"})
        );
        assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"FailedToProgram".into()));
        assert_eq!(event["reportingInstance"], "frontend-0");
        assert!(event["eventTime"].is_string() && event["note"].as_str().unwrap().contains("node-0"), "{event}");
        names.insert(event["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 2);
    assert!(fixture.writes.try_recv().is_err(), "nothing else");
}

/// `kubectl describe` selects Events by it.
#[tokio::test]
async fn event_has_the_uid_of_its_object() {
    let mut fixture = start().await;
    for (resource, name, uid) in
        [(Resource::Service, "other", "0"), (Resource::Service, "web", "1"), (Resource::EndpointSlice, "web", "2")]
    {
        let _version =
            fixture.server.put(resource, json!({"metadata": {"namespace": "shop", "name": name, "uid": uid}}));
    }
    fixture.failed("node-a", "web", "invalid argument");
    assert_eq!(fixture.call().await.1["regarding"]["uid"], "1");
    let notice = ObjectNotice { kind: ObjectKind::EndpointSlice, ..notice("shop", "web") };
    fixture.events.report(EventReport::Problem(notice));
    assert_eq!(fixture.call().await.1["regarding"]["uid"], "2");
}

/// `kubectl replace --force`: the Events of the deleted object are not shown on the new one.
#[tokio::test]
async fn object_that_is_created_again_has_an_event_of_its_own() {
    let mut fixture = start().await;
    let mut names = BTreeSet::new();
    for uid in ["1", "2"] {
        let service = json!({"metadata": {"namespace": "shop", "name": "web", "uid": uid}});
        let _version = fixture.server.put(Resource::Service, service);
        for _ in 0..2 {
            fixture.events.report(EventReport::Problem(notice("shop", "web")));
            let (_, event) = fixture.call().await;
            assert_eq!(event["regarding"]["uid"], uid);
            names.insert(event["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.starts_with("web.") && name.len() == "web.".len() + 16), "{names:?}");
}

#[test]
fn another_text_is_another_event() {
    let of = |message: &str| {
        let problems = vec![ObjectProblem { field: "spec".to_owned(), message: message.to_owned() }];
        let notice = ObjectNotice { problems, ..notice("shop", "web") };
        event::of_problems(&notice, k8s_openapi::jiff::Timestamp::now()).unwrap().metadata.name
    };
    assert_eq!(of("of shop/a"), of("of shop/a"));
    assert_ne!(of("of shop/a"), of("of shop/b"));
}

#[tokio::test]
async fn event_of_another_replica_is_enough() {
    let mut first = start().await;
    first.failed("node-a", "web", "invalid argument");
    let (_, created) = first.call().await;
    let mut second = start().await;
    second.put(&created);
    for node in ["node-b", "node-c", "node-d"] {
        second.failed(node, "web", "invalid argument");
    }
    let (call, again) = second.call().await;
    assert!(call.starts_with("POST") && again["metadata"]["name"] == created["metadata"]["name"], "{call} {again}");
    let more = tokio::time::timeout(Duration::from_secs(3), second.writes.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn failed_health_check_has_the_event_of_kube_proxy() {
    let mut fixture = start().await;
    fixture.failed_to(FailureKind::HealthCheck, "node-a", "web", "health-check node port 32000 (IPv4) is taken");
    let (_, event) = fixture.call().await;
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"FailedToStartServiceHealthcheck".into()));
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&"Service".into(), &"web".into()));
    assert_eq!(event["note"], "shop/web, first on node node-a: health-check node port 32000 (IPv4) is taken");
}

#[tokio::test]
async fn start_is_one_event_on_its_node_from_all_replicas() {
    let first_run = BackendStart { node: "node-a".into(), at: SystemTime::now(), backend: "nft 1.2.3".to_owned() };
    let mut first = start().await;
    first.events.report(EventReport::Started(first_run.clone()));
    let (call, event) = first.call().await;
    assert_eq!(call, "POST /apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(event["regarding"], json!({"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}));
    assert_eq!((&event["type"], &event["reason"]), (&"Normal".into(), &"Starting".into()));
    assert_eq!(event["note"], "Starting fairlead backend nft 1.2.3");
    // Another replica: creates nothing. A later run is another Event.
    let mut second = start().await;
    let name = event["metadata"]["name"].as_str().unwrap().to_owned();
    second.put(&event);
    second.events.report(EventReport::Started(first_run.clone()));
    assert_eq!(second.call().await.1["metadata"]["name"], name.as_str());
    second.events.report(EventReport::Started(BackendStart { at: first_run.at + Duration::from_secs(1), ..first_run }));
    let (call, later) = second.call().await;
    assert!(call.starts_with("POST") && later["metadata"]["name"] != name.as_str(), "{call} {later}");
}

#[tokio::test]
async fn degraded_node_has_one_event() {
    let mut fixture = start().await;
    fixture.events.report(EventReport::Degraded("node-a".into(), "IPv6 is not programmed: no such table".to_owned()));
    let (call, event) = fixture.call().await;
    assert_eq!(call, "POST /apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(event["regarding"], json!({"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}));
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"Degraded".into()));
    assert_eq!(event["note"], "IPv6 is not programmed: no such table");
    // The API server has it: another text, or another replica, creates none.
    fixture.events.report(EventReport::Degraded("node-a".into(), "another text".to_owned()));
    assert_eq!(fixture.call().await.1["metadata"]["name"], event["metadata"]["name"]);
}

#[tokio::test]
async fn forbidden_namespace_does_not_silence_others() {
    let mut fixture = start().await;
    fixture.server.set_faults(Resource::Event, |faults| faults.writes = Some(Fault::Refuse(403)));
    for number in 0..20 {
        let service = format!("web-{number}");
        fixture.failed_in("terminating", FailureKind::Program, "node-a", &service, "invalid argument");
    }
    // One request finds out, and the others of its second are not sent.
    assert!(fixture.call().await.0.contains("/terminating/"));
    let more = tokio::time::timeout(Duration::from_secs(3), fixture.writes.recv()).await;
    assert!(more.is_err(), "{more:?}");
    fixture.server.set_faults(Resource::Event, |faults| faults.writes = None);
    for service in ["a", "b", "c"] {
        fixture.failed("node-a", service, "invalid argument");
    }
    for _ in 0..3 {
        let (call, _) = fixture.call().await;
        assert_eq!(call, "POST /apis/events.k8s.io/v1/namespaces/shop/events");
    }
    let more = tokio::time::timeout(Duration::from_secs(3), fixture.writes.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn namespace_with_many_failures_leaves_others_their_events() {
    let mut fixture = start().await;
    for number in 0..2000 {
        fixture.failed_in("greedy", FailureKind::Program, "node-a", &format!("web-{number}"), "invalid argument");
    }
    fixture.failed("node-a", "web", "invalid argument");
    // At most 256 of the greedy namespace are remembered, and sent at 3 a second.
    for request in 0.. {
        assert!(request <= 256);
        if fixture.call().await.0.contains("/shop/") {
            return;
        }
    }
}

#[tokio::test]
async fn failures_leave_room_for_other_events() {
    let mut fixture = start().await;
    for number in 0..100 {
        fixture.failed("node-a", &format!("web-{number}"), "invalid argument");
    }
    fixture.events.report(EventReport::Degraded("node-b".into(), "no IPv6".to_owned()));
    for request in 0.. {
        assert!(request <= 50);
        if fixture.call().await.0.contains("/default/") {
            return;
        }
    }
}

/// A problem of a Service.
fn notice(namespace: &str, name: &str) -> ObjectNotice {
    ObjectNotice {
        kind: ObjectKind::Service,
        name: crate::object::ObjectName::new(namespace, name),
        problems: vec![ObjectProblem { field: "spec".to_owned(), message: "invalid".to_owned() }],
        count: 1,
        changes: 1,
        reason: "InvalidField",
    }
}

fn run_of(node: &str) -> BackendStart {
    BackendStart { node: node.into(), at: SystemTime::now(), backend: "nft 1.2.3".to_owned() }
}

#[tokio::test]
async fn starts_of_many_backends_leave_room_for_problems_of_objects() {
    let mut fixture = start().await;
    for number in 0..2100 {
        fixture.events.report(EventReport::Started(run_of(&format!("node-{number}"))));
    }
    fixture.events.report(EventReport::Problem(notice("default", "web")));
    for request in 0.. {
        assert!(request <= 20);
        if fixture.call().await.1["regarding"]["kind"] == "Service" {
            return;
        }
    }
}

#[tokio::test]
async fn problems_of_many_objects_leave_room_for_starts() {
    let mut fixture = start().await;
    for number in 0..2100 {
        fixture.events.report(EventReport::Problem(notice(&format!("team-{}", number % 40), &format!("web-{number}"))));
    }
    fixture.events.report(EventReport::Started(run_of("node-a")));
    for request in 0.. {
        assert!(request <= 20);
        if fixture.call().await.1["regarding"]["kind"] == "Node" {
            return;
        }
    }
}

#[test]
fn node_with_many_failures_leaves_others_their_events() {
    let mut failures = HashMap::new();
    let mut count_after = |node: &str, number: usize| {
        let key = ServicePortKey::new(format!("shop-{}", number % 16), "web", "http", Protocol::Tcp);
        let failure = ServicePortFailure::rejected(key, format!("reason {number}"));
        add_failure(&mut failures, node.into(), failure);
        failures.len()
    };
    assert_eq!((0..4000).map(|number| count_after("node-a", number)).max(), Some(512));
    assert_eq!(count_after("node-b", 4000), 513);
}

#[tokio::test]
async fn problem_of_an_object_is_one_event_on_it() {
    let problem = |field: &str, message: &str| ObjectProblem { field: field.to_owned(), message: message.to_owned() };
    let notice = |reason| ObjectNotice {
        kind: ObjectKind::Service,
        name: crate::object::ObjectName::new("shop", "web"),
        problems: vec![problem("spec.externalIPs", "1000 addresses"), problem("spec.ports[0]", "invalid")],
        count: 3,
        changes: 1,
        reason,
    };
    let mut fixture = start().await;
    fixture.events.report(EventReport::Problem(notice("LimitExceeded")));
    fixture.events.report(EventReport::Problem(ObjectNotice { problems: vec![], ..notice("LimitExceeded") }));
    fixture.events.report(EventReport::Problem(notice("LimitExceeded")));
    let (call, event) = fixture.call().await;
    assert_eq!(call, "POST /apis/events.k8s.io/v1/namespaces/shop/events");
    assert_eq!(event["regarding"], json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"}));
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"LimitExceeded".into()));
    assert_eq!(event["note"], "3 problems: spec.externalIPs: 1000 addresses; spec.ports[0]: invalid");
    fixture.events.report(EventReport::Problem(notice("VIPConflict")));
    loop {
        let (_, event) = fixture.call().await;
        if event["reason"] == "VIPConflict" {
            return;
        }
        // The same again, if the first one had been sent already.
        assert_eq!(event["reason"], "LimitExceeded");
    }
}

#[test]
fn report_without_a_receiver_is_dropped() {
    let events = EventQueue::default();
    let key = ServicePortKey::new("shop", "web", "http", Protocol::Tcp);
    let failure = ServicePortFailure::rejected(key, "");
    events.report(EventReport::Failed("node-a".into(), failure));
}
