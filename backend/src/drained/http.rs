//! `GET /drained`: a pod asks about itself, from `preStop`. The pod is known by its source address, or, if the kubelet
//! asks for it, by the address that the kubelet connects to: the data plane redirects the connection to this node.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    header::{HeaderValue, LOCATION},
};
use runtime::{
    Rate, TokenBucket,
    http::{Answer, Client, Closed, DeferredResponse, OriginalDestination, TEXT, response},
    lock,
    metrics::Registry,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    DrainStreams, Drained, Follower, NotDrained,
    metrics::DrainMetrics,
    places::{Asker, Place, Places},
};

/// The timeout of a request without the parameter `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest timeout that a request may ask for, because a request that waits takes a place from others.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// How much longer than its timeout a response may take.
pub const RESPONSE_SLACK: Duration = Duration::from_secs(5);
/// The rate of log lines about answers, because any pod may ask. Further answers are logged at level DEBUG.
const LINE_RATE: Rate = Rate { burst: 100, every: Duration::from_secs(1) };

/// Answers requests for `/drained`. Clones share their places and their metrics.
#[derive(Clone, Debug)]
pub struct Drains {
    follower: Follower,
    places: Places,
    logged: Arc<Mutex<TokenBucket>>,
    pub(super) metrics: DrainMetrics,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// An address of the pod.
    pub(super) address: IpAddr,
    /// How long to wait until the pod is drained.
    pub(super) timeout: Duration,
}

impl Drains {
    /// Follows these frontends while something waits.
    #[must_use]
    pub fn new(streams: Arc<dyn DrainStreams>) -> Self {
        let metrics = DrainMetrics::default();
        Self {
            follower: Follower::new(streams),
            places: Places::counted(metrics.waiting.clone()),
            logged: Arc::new(Mutex::new(TokenBucket::full(Instant::now()))),
            metrics,
        }
    }

    /// The metrics of these requests.
    #[must_use]
    pub fn registry(&self) -> Registry {
        self.metrics.registry()
    }

    /// Answers a request at the port that serves `/drained` alone. When the server is closed, the client is sent to the
    /// process that serves the port next.
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

        let place = self.places.take(question.address, asker, |address| self.follower.class_of(address));
        let Some(place) = place else { return no_place().into() };
        let closed = extensions.get::<Closed>().cloned();
        Answer::Deferred(question.timeout + RESPONSE_SLACK, self.clone().wait(question, place, closed))
    }

    /// Answers a request at the port of health checks: for `/drained`, because hooks of the release before ask there;
    /// and every redirected request, because a client that asks a pod for its health must not take the answer of this
    /// process for that of the pod. `None` for the other paths of this process.
    #[must_use]
    pub fn answer_at_health_port<B>(&self, request: &Request<B>) -> Option<Answer> {
        let redirected = request.extensions().get().map(|OriginalDestination(pod)| *pod);
        if request.uri().path() != "/drained" && redirected.is_none() {
            return None;
        }

        let answer = self.answer(request);
        // Other answers are for strangers and for clients in a loop.
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

    fn wait(self, question: Question, mut place: Place, closed: Option<Closed>) -> DeferredResponse {
        Box::pin(async move {
            let begun = Instant::now();
            let Question { address, timeout } = question;
            let drained = tokio::select! {
                drained = self.follower.wait(address, timeout) => drained,
                () = place.given_up() => return no_place(),
                () = is_closed(closed) => {
                    let left = Question { timeout: timeout.saturating_sub(begun.elapsed()), ..question };
                    return ask_again(left);
                }
            };
            drop(place);

            let waited = begun.elapsed();
            self.metrics.finished(&drained, waited);
            if is_logged(&self.logged) {
                log(address, waited, &drained);
            } else {
                debug!(%address, ?drained, "answered a pod, as many others");
            }
            described(&drained)
        })
    }
}

impl Question {
    /// Parses a query: `timeout=20s` and `address=...`, which may be repeated, or be a list. A pod may name its
    /// addresses of both families, of which one must be the source: frontends know the other one from EndpointSlices.
    /// An error says what is wrong.
    pub(super) fn parse(source: Option<IpAddr>, query: &str) -> Result<Self, String> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        let mut timeout = DEFAULT_TIMEOUT;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "timeout" => timeout = parse_timeout(value)?,
                "address" => {
                    for address in value.replace("%2C", ",").replace("%3A", ":").split(',') {
                        addresses.push(parse_address(address)?);
                    }
                }
                _ => return Err(format!("{name}: unknown parameter; there are timeout and address")),
            }
        }

        let source = source.ok_or("the source address is unknown")?;
        if addresses.is_empty() {
            addresses.push(source);
        }
        if !addresses.contains(&source) && !source.is_loopback() {
            return Err(format!("address: a pod may ask about itself only, and the request comes from {source}"));
        }

        addresses.sort_unstable_by_key(|address| (*address != source, *address));
        addresses.dedup();
        match addresses[..] {
            [address] => Ok(Self { address, timeout }),
            [address, other] if address.is_ipv4() != other.is_ipv4() => Ok(Self { address, timeout }),
            _ => Err("address: a pod has one, or one of each IP family".to_owned()),
        }
    }
}

/// The path of a request, with the timeout in whole seconds, rounded up. Without addresses, the source is the pod.
#[must_use]
pub fn request_path(timeout: Duration, addresses: &[IpAddr]) -> String {
    let mut path = format!("/drained?timeout={}s", timeout.as_millis().div_ceil(1000));
    if !addresses.is_empty() {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        path += &format!("&address={}", addresses.join(","));
    }
    path
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("address: {text:?} is not an IP address"))?;
    Ok(address.to_canonical())
}

fn parse_timeout(value: &str) -> Result<Duration, String> {
    let max_seconds = MAX_TIMEOUT.as_secs();
    match value.strip_suffix('s').unwrap_or(value).parse() {
        Ok(seconds) if seconds <= max_seconds => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("timeout: {value:?} is not a number of seconds up to {max_seconds}")),
    }
}

/// Whether another answer is logged: clients that ask in a loop must not fill the log.
pub(super) fn is_logged(logged: &Mutex<TokenBucket>) -> bool {
    lock(logged).take(LINE_RATE, Instant::now()).is_ok()
}

/// Logs the reasons, which the answer to the pod leaves out: the pod need not know of Services and nodes.
fn log(address: IpAddr, waited: Duration, drained: &Drained) {
    let waited_ms = waited.as_millis();
    match drained {
        Drained::Yes { absent, silent } => info!(%address, waited_ms, absent, ?silent, "pod is drained"),
        Drained::No(reason) => info!(%address, waited_ms, %reason, "pod is not drained in time"),
        Drained::Unknown => debug!(%address, waited_ms, "pod is in no EndpointSlice"),
        Drained::NoAnswer(reason) => info!(%address, waited_ms, %reason, "cannot tell whether the pod is drained"),
    }
}

/// The answer to the pod.
fn described(drained: &Drained) -> Response<String> {
    match drained {
        Drained::Yes { absent: 0, silent } if silent.is_empty() => {
            text(StatusCode::OK, "drained: no node sends new connections to this pod")
        }
        Drained::Yes { absent: 0, .. } => {
            text(StatusCode::OK, "drained: no node that frontends know sends new connections to this pod")
        }
        Drained::Yes { absent, .. } => {
            let unknown = format!("except perhaps for {absent} nodes without a frontend");
            text(StatusCode::OK, &format!("drained: no node sends new connections to this pod, {unknown}"))
        }
        Drained::No(NotDrained { summary, .. }) => {
            text(StatusCode::GATEWAY_TIMEOUT, &format!("not drained in time: {summary}"))
        }
        Drained::Unknown => text(StatusCode::NOT_FOUND, "no EndpointSlice has the address of this pod"),
        Drained::NoAnswer(NotDrained { summary, .. }) => {
            text(StatusCode::BAD_GATEWAY, &format!("not known: {summary}"))
        }
    }
}

/// Sends the client to the same port. Until the next backend listens there, the kernel answers no attempt to connect,
/// so that the client keeps trying. The kubelet follows redirects to the same host.
fn ask_again(question: Question) -> Response<String> {
    let mut response = text(StatusCode::FOUND, "this backend ends: ask the next one");
    if let Ok(location) = HeaderValue::try_from(request_path(question.timeout, &[question.address])) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Ends when the server is closed.
async fn is_closed(closed: Option<Closed>) {
    match closed {
        Some(Closed(mut closed)) => closed.recv().await,
        None => std::future::pending().await,
    }
}

fn no_place() -> Response<String> {
    text(StatusCode::SERVICE_UNAVAILABLE, "too many pods and other clients wait on this node: try again")
}

fn text(status: StatusCode, line: &str) -> Response<String> {
    response(status, TEXT, format!("{line}\n"))
}
