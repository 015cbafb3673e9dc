//! What the answers of several frontends mean together, and how long it is waited for them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use anyhow::anyhow;
use hyper::{Request, StatusCode};
use runtime::{
    TokenBucket,
    http::{Answer, Client, OriginalDestination},
};
use tokio::time::sleep;

use super::{
    http::{Question, is_logged},
    *,
};

/// The address of a frontend that hangs.
const HANGS: &str = "hangs";

/// Answers each round with the next of these; the last one is repeated. A frontend that hangs takes the whole round.
#[derive(Debug)]
struct Rounds(Mutex<Vec<Vec<FrontendAnswer>>>);

impl AskFrontends for Rounds {
    fn ask(&self, request: DrainedRequest, limit: Duration) -> BoxFuture<'_, Result<Vec<FrontendAnswer>>> {
        Box::pin(async move {
            let answers = {
                let mut rounds = self.0.lock().unwrap();
                if rounds.len() > 1 { rounds.remove(0) } else { copy(&rounds[0]) }
            };
            let is_drained =
                |(_, answer): &FrontendAnswer| answer.as_ref().is_ok_and(|it| it.state() == DrainState::Drained);
            if answers.iter().any(|(address, _)| address == HANGS) {
                sleep(limit).await;
            } else if !answers.iter().all(is_drained) {
                sleep(Duration::from_millis(request.wait_millis.into())).await;
            }
            Ok(answers)
        })
    }
}

fn copy(answers: &[FrontendAnswer]) -> Vec<FrontendAnswer> {
    let copied = answers.iter().map(|(address, answer)| {
        let answer = match answer {
            Ok(answer) => Ok(answer.clone()),
            Err(error) => Err(anyhow!("{error}")),
        };
        (address.clone(), answer)
    });
    copied.collect()
}

fn set(nodes: &[&str]) -> Option<NodeSet> {
    let mut set = NodeSet::default();
    nodes.iter().for_each(|node| set.insert(node));
    Some(set)
}

/// A frontend that speaks for these nodes of three.
fn drained(nodes: &[&str], left: u64) -> FrontendAnswer {
    let answer = DrainedResponse {
        state: DrainState::Drained.into(),
        programmed: set(nodes),
        cluster: set(&["a", "b", "c"]),
        left,
        ..DrainedResponse::default()
    };
    ("one".to_owned(), Ok(answer))
}

fn of_state(state: DrainState) -> FrontendAnswer {
    let answer = DrainedResponse {
        state: state.into(),
        services: vec!["shop/web".to_owned()],
        behind: vec!["node-7".to_owned()],
        behind_count: 1,
        ..DrainedResponse::default()
    };
    ("other".to_owned(), Ok(answer))
}

fn silent() -> FrontendAnswer {
    ("gone".to_owned(), Err(anyhow!("connection refused")))
}

fn hanging() -> FrontendAnswer {
    (HANGS.to_owned(), Err(anyhow!("no answer")))
}

/// The result, and after how many seconds.
async fn asked(rounds: Vec<Vec<FrontendAnswer>>) -> (Drained, u64) {
    asked_for(rounds, 20).await
}

async fn asked_for(rounds: Vec<Vec<FrontendAnswer>>, seconds: u64) -> (Drained, u64) {
    let begun = Instant::now();
    let rounds = Rounds(Mutex::new(rounds));
    let drained = wait(&rounds, &["10.0.0.1".parse().unwrap()], Duration::from_secs(seconds), || false).await.unwrap();
    (drained, begun.elapsed().as_secs())
}

fn reason(drained: Drained) -> String {
    match drained {
        Drained::No(reason) => reason.to_string(),
        drained => panic!("{drained:?}"),
    }
}

fn yes(absent: u64) -> Drained {
    Drained::Yes { absent, silent: Vec::new() }
}

#[tokio::test(start_paused = true)]
async fn all_frontends_together_must_speak_for_each_node_once() {
    assert_eq!(asked(vec![vec![drained(&["a", "c"], 0), drained(&["b"], 0)]]).await, (yes(0), 0));
    // A node without a backend for long.
    assert_eq!(asked(vec![vec![drained(&["a"], 0), drained(&["b"], 0)]]).await, (yes(1), 0));
    // One that may be on its way to another frontend, and gets there, or does not.
    let moving = || vec![drained(&["a"], 1), drained(&["b"], 0)];
    assert_eq!(asked(vec![moving(), moving(), vec![drained(&["a"], 1), drained(&["b", "c"], 0)]]).await, (yes(0), 0));
    assert_eq!(asked(vec![moving()]).await, (yes(1), 10));
    // Counted by both: then another one is missing.
    assert_eq!(asked(vec![vec![drained(&["a", "b"], 1), drained(&["b"], 0)]]).await, (yes(0), 10));
}

#[tokio::test(start_paused = true)]
async fn frontend_that_does_not_answer_delays_the_answer() {
    let (result, seconds) = asked(vec![vec![drained(&["a", "b"], 0), silent()]]).await;
    let Drained::Yes { absent: 1, silent } = result else { panic!("{result:?}") };
    assert_eq!(silent, ["gone: connection refused"]);
    assert!((10..20).contains(&seconds), "{seconds}");
    let (result, _) = asked(vec![vec![self::silent()]]).await;
    assert_eq!(reason(result), "no frontend answers: gone: connection refused");
}

#[tokio::test(start_paused = true)]
async fn frontend_that_does_not_answer_matters_less_if_the_others_speak_for_all_nodes() {
    let whole = || drained(&["a", "b", "c"], 0);
    // Two seconds after the answers of the first round, which may come after one.
    for (other, text) in [(silent(), "gone: connection refused"), (hanging(), "hangs: no answer")] {
        let (result, seconds) = asked(vec![vec![whole(), other]]).await;
        assert_eq!((result, seconds), (Drained::Yes { absent: 0, silent: vec![text.to_owned()] }, 3));
    }
    // The pod is in use at first.
    let (result, seconds) = asked(vec![vec![of_state(DrainState::InUse), hanging()], vec![whole(), hanging()]]).await;
    assert!(matches!(result, Drained::Yes { absent: 0, .. }), "{result:?}");
    assert!((4..=7).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn frontend_that_hangs_delays_the_answer_for_ten_seconds_or_until_the_timeout() {
    let rounds = || vec![vec![drained(&["a", "b"], 0), hanging()]];
    let (result, seconds) = asked(rounds()).await;
    assert!(matches!(result, Drained::Yes { absent: 1, .. }) && seconds == 11, "{result:?} {seconds}");
    let (result, seconds) = asked_for(rounds(), 5).await;
    assert_eq!(seconds, 5);
    assert_eq!(reason(result), "1 nodes are connected to no frontend that answers: hangs: no answer");
    let (result, seconds) = asked_for(vec![vec![drained(&["a", "b", "c"], 0), hanging()]], 1).await;
    assert_eq!(seconds, 1);
    assert_eq!(reason(result), "frontends do not answer, or nodes change their frontend: hangs: no answer");
}

#[tokio::test(start_paused = true)]
async fn last_round_without_an_answer_hides_nothing() {
    let used = || vec![of_state(DrainState::InUse)];
    let (result, seconds) = asked_for(vec![used(), used(), used(), vec![hanging()]], 3).await;
    let Drained::No(NotDrained { summary, details }) = result else { panic!("{result:?}") };
    assert_eq!((&*summary, seconds), ("may get new connections of Services", 3));
    assert_eq!(details, "shop/web; then no frontend answers: hangs: no answer");
}

#[tokio::test(start_paused = true)]
async fn node_without_progress_counts_like_one_that_is_absent() {
    let (address, answer) = drained(&["a", "b"], 0);
    let answer = DrainedResponse { stalled: vec!["c".to_owned()], ..answer.unwrap() };
    let (result, seconds) = asked(vec![vec![(address, Ok(answer))]]).await;
    let Drained::Yes { absent: 1, silent } = result else { panic!("{result:?}") };
    assert_eq!((silent, seconds), (vec!["one: nodes that do not acknowledge: c".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn frontend_that_knows_no_node_speaks_for_none() {
    let empty = DrainedResponse {
        state: DrainState::Drained.into(),
        programmed: set(&[]),
        cluster: set(&[]),
        ..DrainedResponse::default()
    };
    let (result, seconds) = asked(vec![vec![("new".to_owned(), Ok(empty))]]).await;
    let Drained::Yes { absent: 0, silent } = result else { panic!("{result:?}") };
    assert_eq!((silent, seconds), (vec!["new: knows no node".to_owned()], 10));
}

#[tokio::test(start_paused = true)]
async fn one_frontend_with_the_pod_in_use_is_enough_to_wait() {
    let whole = || drained(&["a", "b", "c"], 0);
    for (state, expected) in [
        (DrainState::InUse, "may get new connections of Services: shop/web"),
        (DrainState::Behind, "nodes that are behind (1): node-7"),
    ] {
        let (result, seconds) = asked(vec![vec![whole(), of_state(state)]]).await;
        assert_eq!((&*reason(result), seconds), (expected, 20));
    }
    let rounds = vec![vec![whole(), of_state(DrainState::InUse)], vec![whole()]];
    assert_eq!(asked(rounds).await, (yes(0), 1));
}

#[tokio::test(start_paused = true)]
async fn address_may_be_unknown_at_first() {
    let unknown = || vec![of_state(DrainState::Unknown)];
    assert_eq!(asked(vec![unknown()]).await, (Drained::Unknown, 5));
}

#[tokio::test(start_paused = true)]
async fn questions_beyond_the_bound_are_refused() {
    let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![of_state(DrainState::InUse)]]))));
    let ask_of = |pod: usize, path: &str| {
        let mut request = Request::get(path).body(()).unwrap();
        request.extensions_mut().insert(Client(format!("10.0.0.{pod}:40000").parse().unwrap()));
        drains.answer(&request)
    };
    let ask = |path: &str| ask_of(100, path);
    let waiting: Vec<_> = (0..96).map(|question| ask_of(question, "/drained")).collect();
    let Answer::Ready(refused) = ask("/drained") else { panic!("one more waits") };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let answers = waiting.into_iter().map(|answer| match answer {
        Answer::Deferred(_, response) => response,
        Answer::Ready(response) => panic!("{response:?}"),
    });
    for response in futures::future::join_all(answers).await {
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    }
    assert!(matches!(ask("/drained"), Answer::Deferred(..)));
}

/// The attack: a host with many addresses, of which none is that of a pod, asks from another one again and again.
#[tokio::test(start_paused = true)]
async fn addresses_in_no_slice_leave_places_to_pods() {
    let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![of_state(DrainState::Unknown)]]))));
    for stranger in 0..1_000u16 {
        let mut request = Request::get("/drained").body(()).unwrap();
        let address = IpAddr::from([0xfd00, 0xbad, 0, 0, 0, 0, 0, stranger]);
        request.extensions_mut().insert(Client(SocketAddr::new(address, 40_000)));
        let Answer::Deferred(_, response) = drains.answer(&request) else { panic!("{stranger} is refused") };
        tokio::spawn(response);
        sleep(Duration::from_millis(10)).await;
    }
}

/// With the clock of the system, which does not stand still between two readings.
#[tokio::test]
async fn address_that_no_frontend_knows_does_not_wait_while_places_are_scarce() {
    for answer in [of_state(DrainState::Unknown), silent(), hanging()] {
        let begun = Instant::now();
        let rounds = Rounds(Mutex::new(vec![vec![answer]]));
        let addresses = ["fd00:bad::1".parse().unwrap()];
        let drained = wait(&rounds, &addresses, MAX_TIMEOUT, || true).await;
        assert!(matches!(drained, Ok(Drained::Unknown) | Err(_)), "{drained:?}");
        assert!(begun.elapsed() < Duration::from_millis(500));
    }
}

/// The hooks of two containers.
#[tokio::test(start_paused = true)]
async fn same_questions_of_a_pod_share_one_place() {
    let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![of_state(DrainState::InUse)]]))));
    let ask_of = |pod: usize| {
        let mut request = Request::get("/drained").body(()).unwrap();
        request.extensions_mut().insert(Client(format!("10.0.0.{pod}:40000").parse().unwrap()));
        drains.answer(&request)
    };
    let answers: Vec<_> = (0..96).flat_map(|pod| [ask_of(pod), ask_of(pod)]).collect();
    assert!(matches!(ask_of(96), Answer::Ready(_)), "96 pods have a place");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(matches!(ask_of(0), Answer::Ready(_)), "a later question needs one of its own");
    let answers = answers.into_iter().map(|answer| match answer {
        Answer::Deferred(_, response) => response,
        Answer::Ready(response) => panic!("{response:?}"),
    });
    for response in futures::future::join_all(answers).await {
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    }
    assert!(matches!(ask_of(0), Answer::Deferred(..)), "all places are free");
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
        request.extensions_mut().insert(OriginalDestination("10.0.0.1".parse().unwrap()));
    } else {
        request.extensions_mut().insert(Client("10.0.0.1:40000".parse().unwrap()));
    }
    request
}

#[test]
fn health_of_a_pod_is_not_answered() {
    let drains = Drains::new(Arc::new(Rounds(Mutex::default())));
    let status = |answer: Option<Answer>| match answer? {
        Answer::Ready(response) => Some(response.status()),
        Answer::Deferred(..) => panic!("it waits"),
    };

    assert_eq!(status(drains.answer_at_health_port(&question("/healthz", false))), None);
    assert_eq!(status(drains.answer_at_health_port(&question("/healthz", true))), Some(StatusCode::NOT_FOUND));
    for is_redirected in [false, true] {
        let answer = drains.answer(&question("/healthz", is_redirected));
        assert_eq!(status(Some(answer)), Some(StatusCode::NOT_FOUND));
    }
}

/// A hook that does not know the port of `/drained` yet, of either kind, and two questions beyond the bound of a pod.
#[tokio::test(start_paused = true)]
async fn hooks_at_the_port_of_health_checks_are_answered_and_counted() {
    let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![of_state(DrainState::InUse)]]))));

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
    let source = Some("10.0.0.1".parse().unwrap());
    let parse = |query: &str| Question::parse(source, query);
    let question = parse("").unwrap();
    assert_eq!((question.addresses, question.timeout), (vec!["10.0.0.1".parse().unwrap()], Duration::from_secs(20)));
    let question = parse("timeout=7&address=10.0.0.1,fd00%3A%3A1").unwrap();
    assert_eq!((question.addresses.len(), question.timeout), (2, Duration::from_secs(7)));
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
    // The address of the client comes first: only it is known to be the pod's.
    let question = Question::parse(Some("fd00::1".parse().unwrap()), "address=10.0.0.1,fd00::1").unwrap();
    assert_eq!(question.addresses, ["fd00::1", "10.0.0.1"].map(|address| address.parse::<IpAddr>().unwrap()));
    // From the node itself, for tests by hand.
    assert!(Question::parse(Some("127.0.0.1".parse().unwrap()), "address=10.0.0.2").is_ok());
}

async fn body(answer: Answer) -> (StatusCode, String) {
    let response = match answer {
        Answer::Ready(response) => response,
        Answer::Deferred(_, response) => response.await,
    };
    (response.status(), response.into_body())
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_pod_names_no_services_and_no_nodes() {
    for state in [DrainState::InUse, DrainState::Behind] {
        let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![of_state(state)]]))));
        let mut request = Request::get("/drained").body(()).unwrap();
        request.extensions_mut().insert(Client("10.0.0.1:40000".parse().unwrap()));
        let (status, text) = body(drains.answer(&request)).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
        assert!(!text.contains("web") && !text.contains("node-7"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_counts_nodes_without_a_frontend_if_there_are_any() {
    for (nodes, counted) in [(&["a", "b", "c"][..], false), (&["a", "b"][..], true)] {
        let drains = Drains::new(Arc::new(Rounds(Mutex::new(vec![vec![drained(nodes, 0), silent()]]))));
        let mut request = Request::get("/drained").body(()).unwrap();
        request.extensions_mut().insert(Client("10.0.0.1:40000".parse().unwrap()));
        let (status, text) = body(drains.answer(&request)).await;
        assert_eq!((status, text.contains("except perhaps for 1 nodes")), (StatusCode::OK, counted), "{text}");
        assert!(!text.contains(" 0 "), "{text}");
    }
}
