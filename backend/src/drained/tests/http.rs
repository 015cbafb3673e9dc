//! Requests, places, and what a pod is told.

use std::net::SocketAddr;

use hyper::{Request, StatusCode, header::LOCATION};
use prometheus_client::metrics::gauge::Gauge;
use runtime::{
    Shutdown, TokenBucket,
    http::{Answer, Client, Closed, OriginalDestination},
};

use super::*;
use crate::drained::{
    decide::AddressClass,
    http::{Question, is_logged},
    places::{Asker, Place, Places},
};

fn drains(message: DrainLevels) -> Drains {
    Drains::new(Frontends::new([("one", message)]))
}

fn in_use() -> DrainLevels {
    message(&[], vec![level(DrainState::InUse)])
}

/// A pod asks for itself.
fn ask(drains: &Drains, path: &str) -> Answer {
    let mut request = Request::get(path).body(()).unwrap();
    request.extensions_mut().insert(Client(SocketAddr::new(pod(), 40_000)));
    drains.answer(&request)
}

async fn body(answer: Answer) -> (StatusCode, String) {
    let response = match answer {
        Answer::Ready(response) => response,
        Answer::Deferred(_, response) => response.await,
    };
    (response.status(), response.into_body())
}

fn address(number: u16) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number])
}

fn is_kept(place: &mut Place) -> bool {
    place.given_up().now_or_never().is_none()
}

/// The attacks: 200 probes of another tenant through the kubelet, and three a second, ask about a pod that ends.
#[test]
fn questions_of_the_kubelet_about_an_address_share_a_place() {
    let waiting = Gauge::default();
    let places = Places::counted(waiting.clone());
    let ending = |_| AddressClass::Ending;
    let mut held: Vec<_> = (0..5_000).map(|_| places.take(pod(), Asker::Node, ending).unwrap()).collect();
    assert!(held.iter_mut().all(is_kept));
    let mut of_pods: Vec<_> = (0..1_000).map(|pod| places.take(address(pod), Asker::Node, ending).unwrap()).collect();
    assert!(of_pods.iter_mut().all(is_kept));
    assert_eq!(waiting.get(), 1_001);
    drop((held, of_pods));
    assert_eq!(waiting.get(), 0);
}

/// The attack: a host with many addresses, of which none is that of a pod, and a pod that does not end, ask in a loop.
#[test]
fn what_does_not_end_gives_way_first() {
    let places = Places::counted(Gauge::default());
    let class_of = |asked: IpAddr| match asked {
        IpAddr::V4(_) => AddressClass::Ending,
        asked if asked == address(0) => AddressClass::InUse,
        IpAddr::V6(_) => AddressClass::Unknown,
    };
    let hook = |number: u8| IpAddr::from([10, 0, 0, number]);
    let mut hooks: Vec<_> =
        (0..100).map(|number| places.take(hook(number), Asker::Address, class_of).unwrap()).collect();
    let mut in_use: Vec<_> = (0..500).map(|_| places.take(address(0), Asker::Address, class_of).unwrap()).collect();
    let mut strangers: Vec<_> =
        (1..2_000).filter_map(|number| places.take(address(number), Asker::Address, class_of)).collect();
    assert!(hooks.iter_mut().chain(&mut in_use).all(is_kept));
    assert_eq!(strangers.iter_mut().map(is_kept).filter(|is_kept| *is_kept).count(), 424);

    drop(strangers);
    let more: Vec<_> = (0..600).map(|_| places.take(hook(200), Asker::Address, class_of).unwrap()).collect();
    assert!(hooks.iter_mut().all(is_kept));
    assert_eq!(in_use.iter_mut().map(is_kept).filter(|is_kept| *is_kept).count(), 324);

    // All end: the address with the most gives way.
    drop(in_use);
    let mut late: Vec<_> =
        (100..200).map(|number| places.take(hook(number), Asker::Address, class_of).unwrap()).collect();
    let many: Vec<_> = (0..1_000).map(|_| places.take(hook(200), Asker::Address, class_of).unwrap()).collect();
    assert!(hooks.iter_mut().chain(&mut late).all(is_kept));
    drop((more, many));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_way_is_told_to_try_again() {
    let drains = drains(message(&[], Vec::new()));
    let asked = ask(&drains, "/drained");
    let ask_of_node = |number| {
        let mut request = Request::get("/drained").body(()).unwrap();
        request.extensions_mut().insert(OriginalDestination(address(number)));
        drains.answer(&request)
    };
    let _others: Vec<_> = (0..1_024).map(ask_of_node).collect();
    let (status, text) = body(asked).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("try again"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn log_lines_are_bounded() {
    let logged = Mutex::new(TokenBucket::full(Instant::now()));
    let lines = || (0..1000).filter(|_| is_logged(&logged)).count();
    assert_eq!(lines(), 100);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(lines(), 10);
}

/// The question of a pod, or of the kubelet about it.
fn question(path: &str, is_redirected: bool) -> Request<()> {
    let mut request = Request::get(path).body(()).unwrap();
    if is_redirected {
        request.extensions_mut().insert(OriginalDestination(pod()));
    } else {
        request.extensions_mut().insert(Client(SocketAddr::new(pod(), 40_000)));
    }
    request
}

#[tokio::test]
async fn health_of_a_pod_is_not_answered() {
    let drains = Drains::new(Arc::new(Frontends::default()));
    let status = |answer: Option<Answer>| match answer? {
        Answer::Ready(response) => Some(response.status()),
        Answer::Deferred(..) => panic!("it waits"),
    };

    assert_eq!(status(drains.answer_at_health_port(&question("/healthz", false))), None);
    assert_eq!(status(drains.answer_at_health_port(&question("/healthz", true))), Some(StatusCode::NOT_FOUND));
    for is_redirected in [false, true] {
        let answered = drains.answer(&question("/healthz", is_redirected));
        assert_eq!(status(Some(answered)), Some(StatusCode::NOT_FOUND));
    }
}

/// A hook that does not know the port of `/drained` yet, of either kind, and a question that is not valid.
#[tokio::test(start_paused = true)]
async fn hooks_at_the_port_of_health_checks_are_answered_and_counted() {
    let drains = drains(in_use());

    let answers: Vec<_> = [true, false]
        .into_iter()
        .map(|is_redirected| drains.answer_at_health_port(&question("/drained?timeout=1s", is_redirected)))
        .collect();
    let refused = drains.answer_at_health_port(&question("/drained?timeout=x", true));

    assert!(answers.iter().all(|answer| matches!(answer, Some(Answer::Deferred(..)))));
    assert!(matches!(refused, Some(Answer::Ready(response)) if response.status() == StatusCode::BAD_REQUEST));
    drop(drains.answer(&question("/drained", true)));
    assert_eq!(drains.metrics.at_health_port.get(), 2);
}

#[test]
fn pod_asks_about_itself() {
    let parse = |query: &str| Question::parse(Some(pod()), query);
    assert_eq!(parse("").unwrap(), Question { address: pod(), timeout: Duration::from_secs(20) });
    let question = parse("timeout=7&address=10.0.0.1,fd00%3A%3A1").unwrap();
    assert_eq!(question, Question { address: pod(), timeout: Duration::from_secs(7) });
    for (query, field) in [
        ("timeout=x", "timeout"),
        ("timeout=301", "timeout"),
        ("address=10.0.0.2", "address"),
        ("address=10.0.0.1&address=10.0.0.2&address=10.0.0.3", "address"),
        ("address=10.0.0.1,10.0.0.2", "address"),
        ("address=web", "address"),
        ("wait=1", "wait"),
    ] {
        let error = parse(query).unwrap_err();
        assert!(error.starts_with(field), "{query}: {error}");
    }
    // The address of the client is the one that is known to be the pod's.
    let question = Question::parse(Some("fd00::1".parse().unwrap()), "address=10.0.0.1,fd00::1").unwrap();
    assert_eq!(question.address, "fd00::1".parse::<IpAddr>().unwrap());
    // From the node itself, for tests by hand.
    let question = Question::parse(Some("127.0.0.1".parse().unwrap()), "address=10.0.0.2").unwrap();
    assert_eq!(question.address, "10.0.0.2".parse::<IpAddr>().unwrap());
}

/// A backend that ends sends hooks to the next one for the rest of their time: those that wait, and those that come.
#[tokio::test(start_paused = true)]
async fn shutdown_sends_hooks_to_the_next_backend() {
    let drains = drains(in_use());
    let (trigger, shutdown) = Shutdown::channel();
    let mut hook = question("/drained?timeout=60s", true);
    hook.extensions_mut().insert(Closed(shutdown));
    let Answer::Deferred(_, waiting) = drains.answer(&hook) else { panic!("it waits") };
    let waiting = tokio::spawn(waiting);
    sleep(Duration::from_millis(20_500)).await;
    assert!(!waiting.is_finished());

    trigger.fire();
    let waited = waiting.await.unwrap();
    let Answer::Deferred(_, late) = drains.answer(&hook) else { panic!("it is asked as the others") };
    for (response, left) in [(waited, 40), (late.await, 60)] {
        assert_eq!(response.status(), StatusCode::FOUND);
        let location = response.headers()[LOCATION].to_str().unwrap();
        assert_eq!(location, format!("/drained?timeout={left}s&address=10.0.0.1"));
        assert_eq!(
            Question::parse(Some(pod()), location.split_once('?').unwrap().1).unwrap().timeout,
            Duration::from_secs(left)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_pod_names_no_services_and_no_nodes() {
    for state in [DrainState::InUse, DrainState::Behind] {
        let drains = drains(message(&[], vec![level(state)]));
        let (status, text) = body(ask(&drains, "/drained")).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
        assert!(!text.contains("web") && !text.contains("node-7"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_says_what_is_known() {
    for (message, expected, text) in [
        (drained(&NODES), StatusCode::OK, "sends new connections to this pod\n"),
        (drained(&["a", "b"]), StatusCode::OK, "except perhaps for 1 nodes"),
        (in_use(), StatusCode::GATEWAY_TIMEOUT, "not drained in time"),
        (message(&NODES, Vec::new()), StatusCode::NOT_FOUND, "no EndpointSlice"),
    ] {
        let (status, body) = body(ask(&drains(message), "/drained")).await;
        assert_eq!(status, expected, "{body}");
        assert!(body.contains(text), "{body}");
    }
    let silent = Drains::new(Arc::new(Frontends::default()));
    assert_eq!(body(ask(&silent, "/drained")).await.0, StatusCode::BAD_GATEWAY);
}
