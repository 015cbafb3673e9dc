//! The answers of the health endpoints in each condition, and the pages.

use std::time::Duration;

use hyper::{
    Request, StatusCode,
    header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use proto::model::{Epoch, IpFamily, PerFamily, Revision, ServicePortFailure};
use serde_json::Value;
use tokio::time::{Instant, advance};

use super::{
    health::{LOOP_TIMEOUT, SYNC_FAILING, SYNC_TIMEOUT},
    *,
};
use crate::testing::mk_key;

const SECOND: Duration = Duration::from_secs(1);

/// A process played by the test.
struct FakeLoop {
    progress: watch::Sender<Progress>,
    observer: Observer,
}

fn mk_loop() -> FakeLoop {
    let progress = watch::Sender::default();
    let (version, started) = ("1.2.3".to_owned(), SystemTime::now());
    let identity = BackendIdentity { node: "node-a".into(), backend: "nftables", version, started };
    let observer = Observer { identity: identity.into(), progress: progress.subscribe(), metrics: Arc::default() };
    FakeLoop { progress, observer }
}

impl FakeLoop {
    fn iterate(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(|progress| {
            progress.stream.last_iteration = Some(Instant::now());
            change(progress);
        });
    }

    /// The first commit is programmed.
    fn programmed(&self) {
        self.iterate(|progress| {
            progress.node.eligible = true;
            progress.programmed = Some((Epoch(1), Revision(7)));
            progress.kernel.last_success = Some(SystemTime::now());
            progress.changes.pending_since = None;
        });
    }

    fn status(&self, path: &str) -> u16 {
        self.observer.health(&request(path)).status().as_u16()
    }

    /// `/healthz`, `/livez`, `/readyz`
    fn statuses(&self) -> [u16; 3] {
        ["/healthz", "/livez", "/readyz"].map(|path| self.status(path))
    }

    fn body(&self, path: &str) -> Value {
        serde_json::from_str(self.observer.health(&request(path)).body()).unwrap()
    }
}

fn request(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn without_a_first_frontend_the_backend_is_alive_but_neither_healthy_nor_ready() {
    let backend = mk_loop();
    backend.iterate(|_| {});
    assert_eq!(backend.statuses(), [503, 200, 503]);
    advance(3600 * SECOND).await;
    backend.iterate(|_| {});
    assert_eq!(backend.statuses(), [503, 200, 503]);
    let body = backend.body("/healthz");
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&false.into(), &false.into()), "{body}");
    backend.programmed();
    assert_eq!(backend.statuses(), [200, 200, 200]);
}

#[tokio::test(start_paused = true)]
async fn node_about_to_be_removed_is_alive_but_not_healthy() {
    let backend = mk_loop();
    backend.programmed();
    backend.iterate(|progress| progress.node.eligible = false);
    assert_eq!(backend.statuses(), [503, 200, 200]);
    let body = backend.body("/healthz");
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&true.into(), &false.into()), "{body}");
    assert_eq!(backend.body("/livez").get("nodeEligible"), None);
}

/// A node without IPv6 serves the IPv4 VIPs of Services that have both.
#[tokio::test(start_paused = true)]
async fn node_is_not_healthy_if_the_only_family_with_vips_cannot_be_programmed() {
    let backend = mk_loop();
    backend.programmed();
    let [v4, v6] = IpFamily::ALL;
    for (unusable, with_vips, expected) in [
        (v6, [2, 0], 200),
        (v6, [2, 2], 200),
        (v4, [2, 1], 200),
        (v4, [2, 0], 503),
        (v6, [0, 1], 503),
        (v6, [0, 0], 200),
    ] {
        backend.iterate(|progress| {
            progress.kernel.unusable_families = vec![(unusable, "no such table".to_owned())];
            progress.kernel.with_vips = PerFamily { v4: with_vips[0], v6: with_vips[1] };
        });
        assert_eq!(backend.statuses(), [expected, 200, expected], "{unusable} {with_vips:?}");
        let body = backend.body("/healthz");
        assert_eq!(body["status"][unusable.name()]["healthy"], false, "{body}");
        let ready = backend.observer.health(&request("/readyz")).into_body();
        let answer = if expected == 200 { "ready" } else { "not ready: no VIP is served" };
        assert_eq!(ready, format!("{answer}\n{unusable} is not programmed: no such table\n"));
    }
    backend.iterate(|progress| progress.kernel.unusable_families.clear());
    assert_eq!(backend.statuses(), [200, 200, 200]);
}

#[tokio::test(start_paused = true)]
async fn backend_that_fails_for_a_minute_or_hangs_for_five_is_not_alive() {
    for (error, patience) in [(Some("no memory"), SYNC_FAILING), (None, SYNC_TIMEOUT)] {
        let backend = mk_loop();
        backend.programmed();
        backend.iterate(|progress| {
            progress.changes.pending_since = Some(Instant::now());
            progress.kernel.error = error.map(str::to_owned);
        });
        advance(patience - SECOND).await;
        assert_eq!(backend.statuses(), [200, 200, 200], "{error:?}");
        advance(SECOND).await;
        assert_eq!(backend.statuses(), [503, 503, 200], "{error:?}");
        backend.programmed();
        assert_eq!(backend.statuses(), [200, 200, 200], "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_that_does_not_run_is_not_alive() {
    let backend = mk_loop();
    backend.programmed();
    advance(LOOP_TIMEOUT - SECOND).await;
    assert_eq!(backend.status("/livez"), 200);
    advance(SECOND).await;
    assert_eq!(backend.status("/livez"), 503);
}

#[tokio::test(start_paused = true)]
async fn body_has_the_fields_of_kube_proxy() {
    let backend = mk_loop();
    backend.programmed();
    let answer = backend.observer.health(&request("/healthz"));
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    let body = backend.body("/healthz");
    let time = body["currentTime"].as_str().unwrap();
    assert!(time.parse::<Timestamp>().is_ok(), "{time}");
    assert_eq!(body["lastUpdated"], body["currentTime"], "while it is healthy");
    for family in ["IPv4", "IPv6"] {
        assert_eq!(body["status"][family]["healthy"], true, "{body}");
        assert_eq!(body["status"][family]["lastUpdated"], body["lastUpdated"]);
    }
    for method in ["HEAD", "OPTIONS", "POST", "PURGE"] {
        let request = Request::builder().method(method).uri("/healthz").body(()).unwrap();
        assert_eq!(backend.observer.health(&request).status(), StatusCode::OK, "{method}");
    }
    assert_eq!(backend.status("/"), 404);
}

#[tokio::test]
async fn pages_have_the_content_of_kube_proxys() {
    let backend = mk_loop();
    backend.programmed();
    backend.iterate(|progress| {
        progress.failures = vec![ServicePortFailure::rejected(mk_key("default/b"), "invalid argument").permanent()];
    });
    let pages = ObserverPages::new(backend.observer.clone(), "{}".to_owned(), [metrics::process()]);
    let page = |path| pages.answer(&request(path)).into_body();
    assert_eq!(page("/proxyMode"), "nftables");
    assert_eq!(page("/healthz"), "ok");
    assert_eq!(page("/configz"), "{}");
    let metrics = page("/metrics");
    assert!(metrics.contains("\nfairlead_backend_failures 1"), "{metrics}");
    assert!(metrics.contains("\nprocess_cpu_seconds_total "), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");

    let status: Value = serde_json::from_str(&page("/statusz")).unwrap();
    assert_eq!((&status["node"], &status["version"]), (&"node-a".into(), &"1.2.3".into()), "{status}");
    assert_eq!(status["programmedRevision"], 7);
    let failure = serde_json::json!({"servicePort": "default/b/tcp", "reason": "invalid argument"});
    assert_eq!(status["failures"], serde_json::json!([failure]));
    assert_eq!(pages.answer(&request("/")).status(), StatusCode::NOT_FOUND);
}
