//! `GET /drained`: a pod asks about itself, from `preStop`. It is known by its source address.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hyper::{Method, Request, Response, StatusCode};
use runtime::{
    failure::chain,
    http::{Answer, Client, TEXT, response},
    metrics::Registry,
};
use tokio::sync::Semaphore;
use tracing::info;

use super::{AskFrontends, Drained, metrics::DrainMetrics, wait};

/// How many requests wait at the same time: pods of one node that end together.
const MAX_WAITING: usize = 96;
/// Without the parameter `timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest timeout that a request may ask for.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// A pod has an address of each family.
const MAX_ADDRESSES: usize = 2;
/// What a response takes beyond its timeout.
const SLACK: Duration = Duration::from_secs(5);

/// Answers requests for `/drained`. Clones share their bound and their metrics.
#[derive(Clone, Debug)]
pub struct Drains {
    frontends: Arc<dyn AskFrontends>,
    waiting: Arc<Semaphore>,
    metrics: DrainMetrics,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) timeout: Duration,
}

impl Drains {
    /// Asks these frontends.
    #[must_use]
    pub fn new(frontends: Arc<dyn AskFrontends>) -> Self {
        Self { frontends, waiting: Arc::new(Semaphore::new(MAX_WAITING)), metrics: DrainMetrics::default() }
    }

    /// The metrics of these requests.
    #[must_use]
    pub fn registry(&self) -> Registry {
        self.metrics.registry()
    }

    /// Answers a request for `/drained`; `None`: it is for another path.
    #[must_use]
    pub fn answer<B>(&self, request: &Request<B>) -> Option<Answer> {
        if request.uri().path() != "/drained" {
            return None;
        }
        if request.method() != Method::GET {
            return Some(text(StatusCode::METHOD_NOT_ALLOWED, "GET only").into());
        }
        let source = request.extensions().get().map(|Client(address)| address.ip().to_canonical());
        let question = match Question::parse(source, request.uri().query().unwrap_or_default()) {
            Ok(question) => question,
            Err(reason) => return Some(text(StatusCode::BAD_REQUEST, &reason).into()),
        };
        let Ok(permit) = self.waiting.clone().try_acquire_owned() else {
            let reason = format!("{MAX_WAITING} pods of this node wait already: try again");
            return Some(text(StatusCode::SERVICE_UNAVAILABLE, &reason).into());
        };
        let frontends = self.frontends.clone();
        let timeout = question.timeout;
        let request = self.metrics.begin();
        let response = async move {
            let Question { addresses, timeout } = question;
            let drained = wait(&*frontends, &addresses, timeout).await;
            request.finish(&drained);
            info!(?addresses, answer = ?drained, "a pod that ends has asked whether it is drained");
            drop(permit);
            described(drained).map(String::into_bytes)
        };
        Some(Answer::Deferred(timeout + SLACK, Box::pin(response)))
    }
}

impl Question {
    /// `query`: `timeout=20s` and `address=...`, which may be repeated, or be a list. A pod may name its addresses of
    /// both families; one of them must be the source. An error says what is wrong.
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
        question.addresses.sort_unstable();
        question.addresses.dedup();
        let source = source.ok_or("the source address is unknown")?;
        if question.addresses.is_empty() {
            question.addresses.push(source);
        }
        if !question.addresses.contains(&source) && !source.is_loopback() {
            return Err(format!("address: a pod may ask about itself only, and the request comes from {source}"));
        }
        if question.addresses.len() > MAX_ADDRESSES {
            return Err("address: a pod has one, or one of each IP family".to_owned());
        }
        Ok(question)
    }
}

fn described(drained: anyhow::Result<Drained>) -> Response<String> {
    match drained {
        Ok(Drained::Yes { absent: 0, silent }) if silent.is_empty() => {
            text(StatusCode::OK, "drained: no node sends new connections to this pod")
        }
        Ok(Drained::Yes { absent, silent }) => {
            let silent = silent.iter().map(|frontend| format!("\n{frontend}")).collect::<String>();
            let unknown = format!("except perhaps for {absent} nodes without a frontend{silent}");
            text(StatusCode::OK, &format!("drained: no node sends new connections to this pod, {unknown}"))
        }
        Ok(Drained::No(reason)) => text(StatusCode::GATEWAY_TIMEOUT, &format!("not drained in time: {reason}")),
        Ok(Drained::Unknown) => text(StatusCode::NOT_FOUND, "no EndpointSlice has the address of this pod"),
        Err(error) => text(StatusCode::BAD_GATEWAY, &format!("not known: {}", chain(error.as_ref()))),
    }
}

fn text(status: StatusCode, line: &str) -> Response<String> {
    response(status, TEXT, format!("{line}\n"))
}
