//! `GET /drained`: a pod asks about itself, from `preStop`. It is known by its source address, or, if the kubelet asks
//! for it, by the address that the kubelet connects to: the data plane redirects that to this node.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, WeakShared},
};
use hyper::{Method, Request, Response, StatusCode};
use runtime::{
    Rate, TokenBucket,
    failure::chain,
    http::{Answer, Client, DeferredResponse, OriginalDestination, TEXT, response},
    lock,
    metrics::Registry,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    AskFrontends, Drained, NotDrained,
    metrics::DrainMetrics,
    sources::{Asker, Sources},
    wait,
};

/// Without the parameter `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest timeout that a request may ask for.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// What a response takes beyond its timeout.
const SLACK: Duration = Duration::from_secs(5);
/// How many answers are logged for operators; further ones at level DEBUG.
const LOGGED: Rate = Rate { burst: 100, every: Duration::from_secs(1) };
/// For how long a question is joined by the same ones: the hooks of a pod's containers are called together.
const JOINED: Duration = Duration::from_secs(1);

/// Answers requests for `/drained`. Clones share their bound and their metrics.
#[derive(Clone, Debug)]
pub struct Drains {
    frontends: Arc<dyn AskFrontends>,
    sources: Sources,
    /// Those that others may join.
    questions: Arc<Mutex<BTreeMap<Question, SharedQuestion>>>,
    logged: Arc<Mutex<TokenBucket>>,
    pub(super) metrics: DrainMetrics,
}

/// A question that waits, as long as one of those who have asked it does.
#[derive(Debug)]
struct SharedQuestion {
    since: Instant,
    answer: WeakShared<BoxFuture<'static, Arc<anyhow::Result<Drained>>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// The first one is that of the client.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) timeout: Duration,
}

impl Drains {
    /// Asks these frontends.
    #[must_use]
    pub fn new(frontends: Arc<dyn AskFrontends>) -> Self {
        let metrics = DrainMetrics::default();
        let sources = Sources::counted(metrics.waiting.clone());
        let logged = Arc::new(Mutex::new(TokenBucket::full(Instant::now())));
        Self { frontends, sources, questions: Arc::default(), logged, metrics }
    }

    /// The metrics of these requests.
    #[must_use]
    pub fn registry(&self) -> Registry {
        self.metrics.registry()
    }

    /// Answers a request at the port that serves `/drained` alone.
    #[must_use]
    pub fn answer<B>(&self, request: &Request<B>) -> Answer {
        if request.uri().path() != "/drained" {
            return text(StatusCode::NOT_FOUND, "this port answers /drained only").into();
        }
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "GET only").into();
        }

        let extensions = request.extensions();
        let client = extensions.get().map(|Client(address)| address.ip());
        let redirected = extensions.get().map(|OriginalDestination(pod)| *pod);
        // Only connections of the node itself are redirected.
        let is_of_node = redirected.is_some() || client.is_some_and(|client| client.is_loopback());
        let asker = if is_of_node { Asker::Node } else { Asker::Address };
        let source = redirected.or(client).map(|ip| ip.to_canonical());
        let question = match Question::parse(source, request.uri().query().unwrap_or_default()) {
            Ok(question) => question,
            Err(reason) => return text(StatusCode::BAD_REQUEST, &reason).into(),
        };

        let timeout = question.timeout;
        match self.ask(source.unwrap_or(question.addresses[0]), asker, question) {
            Ok(response) => Answer::Deferred(timeout + SLACK, response),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason).into(),
        }
    }

    /// Answers a request at the port of health checks: for `/drained`, where hooks ask that do not know its own port
    /// yet; and for anything else that was redirected here, because a client that asks a pod for its health must not
    /// take the answer of this process for that of the pod. `None`: it is for another path of this process.
    #[must_use]
    pub fn answer_at_health_port<B>(&self, request: &Request<B>) -> Option<Answer> {
        let redirected = request.extensions().get().map(|OriginalDestination(pod)| *pod);
        if request.uri().path() != "/drained" && redirected.is_none() {
            return None;
        }

        let answer = self.answer(request);
        // Other answers are for strangers, and clients in a loop.
        if matches!(answer, Answer::Deferred(..)) {
            self.metrics.at_health_port.inc();
            let client = request.extensions().get().map(|Client(address)| address.ip().to_canonical());
            let hook = if redirected.is_some() { "httpGet" } else { "exec" };
            if let Some(pod) = redirected.or(client)
                && is_logged(&self.logged)
            {
                warn!(%pod, hook, "preStop asks for /drained at the port of --healthz, which a later version will not \
                                   answer: change its port to that of --drained-port");
            }
        }
        Some(answer)
    }

    /// Asks, or waits with one who has just asked the same. An error says why the question is refused.
    fn ask(&self, source: IpAddr, asker: Asker, question: Question) -> Result<DeferredResponse, String> {
        let begun = Instant::now();
        let mut questions = lock(&self.questions);
        questions.retain(|_, known| begun - known.since < JOINED && known.answer.upgrade().is_some());
        if let Some(answer) = questions.get(&question).and_then(|known| known.answer.upgrade()) {
            let permit = self.sources.join(source, asker)?;
            return Ok(Box::pin(async move {
                let drained = answer.await;
                drop(permit);
                described(&drained)
            }));
        }
        let permit = self.sources.admit(source, asker)?;
        let frontends = self.frontends.clone();
        let logged = self.logged.clone();
        let metrics = self.metrics.clone();
        let Question { addresses, timeout } = question.clone();
        let answer = async move {
            let drained = wait(&*frontends, &addresses, timeout, || permit.is_scarce()).await;
            let waited = begun.elapsed();
            metrics.finished(&drained, waited);
            drop(permit);
            if is_logged(&logged) {
                log(&addresses, waited, &drained);
            } else {
                debug!(?addresses, ?drained, "answered a pod, as many others");
            }
            Arc::new(drained)
        };
        let answer = answer.boxed().shared();
        if let Some(answer) = answer.downgrade() {
            questions.insert(question, SharedQuestion { since: begun, answer });
        }
        Ok(Box::pin(async move { described(answer.await.as_ref()) }))
    }
}

impl Question {
    /// `query`: `timeout=20s` and `address=...`, which may be repeated, or be a list. A pod may name its addresses of
    /// both families; one of them must be the source, which comes first. An error says what is wrong.
    pub(super) fn parse(source: Option<IpAddr>, query: &str) -> Result<Self, String> {
        let mut question = Self { addresses: Vec::new(), timeout: DEFAULT_TIMEOUT };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "timeout" => {
                    let seconds = value.strip_suffix('s').unwrap_or(value).parse().ok();
                    let timeout = seconds.map(Duration::from_secs).filter(|timeout| *timeout <= MAX_TIMEOUT);
                    let invalid =
                        || format!("timeout: {value:?} is no number of seconds up to {}", MAX_TIMEOUT.as_secs());
                    question.timeout = timeout.ok_or_else(invalid)?;
                }
                "address" => {
                    for address in value.replace("%2C", ",").replace("%3A", ":").split(',') {
                        let parsed: IpAddr =
                            address.parse().map_err(|_| format!("address: {address:?} is no IP address"))?;
                        question.addresses.push(parsed.to_canonical());
                    }
                }
                _ => return Err(format!("{name}: unknown parameter; there are timeout and address")),
            }
        }
        let source = source.ok_or("the source address is unknown")?;
        if question.addresses.is_empty() {
            question.addresses.push(source);
        }
        if !question.addresses.contains(&source) && !source.is_loopback() {
            return Err(format!("address: a pod may ask about itself only, and the request comes from {source}"));
        }
        question.addresses.sort_unstable_by_key(|address| (*address != source, *address));
        question.addresses.dedup();
        match &question.addresses[..] {
            [_] => Ok(question),
            [one, other] if one.is_ipv4() != other.is_ipv4() => Ok(question),
            _ => Err("address: a pod has one, or one of each IP family".to_owned()),
        }
    }
}

/// Whether another answer is logged: clients that ask in a loop must not fill the log.
pub(super) fn is_logged(logged: &Mutex<TokenBucket>) -> bool {
    lock(logged).take(LOGGED, Instant::now()).is_ok()
}

/// What the answer to the pod does not say: it need not know of Services and nodes.
fn log(addresses: &[IpAddr], waited: Duration, drained: &anyhow::Result<Drained>) {
    let waited_ms = waited.as_millis();
    match drained {
        Ok(Drained::Yes { absent, silent }) => info!(?addresses, waited_ms, absent, ?silent, "pod is drained"),
        Ok(Drained::No(reason)) => info!(?addresses, waited_ms, %reason, "pod is not drained in time"),
        Ok(Drained::Unknown) => debug!(?addresses, waited_ms, "pod is in no EndpointSlice"),
        Err(error) => info!(?addresses, error = chain(error.as_ref()), "not known whether the pod is drained"),
    }
}

fn described(drained: &anyhow::Result<Drained>) -> Response<String> {
    match drained {
        Ok(Drained::Yes { absent: 0, silent }) if silent.is_empty() => {
            text(StatusCode::OK, "drained: no node sends new connections to this pod")
        }
        Ok(Drained::Yes { absent: 0, .. }) => {
            text(StatusCode::OK, "drained: no node that frontends know sends new connections to this pod")
        }
        Ok(Drained::Yes { absent, .. }) => {
            let unknown = format!("except perhaps for {absent} nodes without a frontend");
            text(StatusCode::OK, &format!("drained: no node sends new connections to this pod, {unknown}"))
        }
        Ok(Drained::No(NotDrained { summary, .. })) => {
            text(StatusCode::GATEWAY_TIMEOUT, &format!("not drained in time: {summary}"))
        }
        Ok(Drained::Unknown) => text(StatusCode::NOT_FOUND, "no EndpointSlice has the address of this pod"),
        Err(error) => text(StatusCode::BAD_GATEWAY, &format!("not known: {}", chain(error.as_ref()))),
    }
}

fn text(status: StatusCode, line: &str) -> Response<String> {
    response(status, TEXT, format!("{line}\n"))
}
