//! A small HTTP/1.1 server for what is asked now and then: metrics and health. A request is answered at once, from memory, but for
//! what has to be measured first; a client that is slow, or one of too many, delays nobody.

mod listen;

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tracing::{Instrument as _, debug, warn};

pub use listen::{Taken, bind, serve_at};

/// What people read.
pub const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// What programs read.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The most connections that one listener has open. More have to wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take for its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take for everything, reading the answer included, beside the time in which an answer is made.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted when that fails: what a process or a machine has run out of does not come back at once.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// What a request is answered with.
pub enum Answer {
    /// What there is already.
    Now(Response<String>),
    /// What takes so long to be made.
    Later(Duration, Making),
}

/// An answer that is being made.
pub type Making = Pin<Box<dyn Future<Output = Response<Vec<u8>>> + Send>>;

impl From<Response<String>> for Answer {
    fn from(response: Response<String>) -> Self {
        Self::Now(response)
    }
}

/// Answers everybody who connects, one request each, until it is dropped, and all connections with it. `name` is what log lines
/// call it.
pub async fn serve<A, R>(listener: TcpListener, name: &'static str, answer: A)
where
    A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
    R: Into<Answer> + 'static,
{
    let answer = Arc::new(answer);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, name, answer.clone()).in_current_span());
            }
            Err(error) => {
                warn!(server = name, %error, "connections are not accepted");
                sleep(ACCEPT_DELAY).await;
            }
        }
    }
}

/// An answer of this kind. Nobody is to guess another kind from its content.
#[must_use]
pub fn response(status: StatusCode, kind: HeaderValue, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn connection<A, R>(stream: TcpStream, name: &'static str, answer: Arc<A>)
where
    A: Fn(&Request<Incoming>) -> R,
    R: Into<Answer>,
{
    let (deadline, until) = watch::channel(Instant::now() + CONNECTION_TIMEOUT);
    let service = service_fn(|request| {
        let answer = answer(&request).into();
        if let Answer::Later(takes, _) = &answer {
            deadline.send_modify(|deadline| *deadline += *takes);
        }
        async {
            Ok::<_, Infallible>(match answer {
                Answer::Now(response) => response.map(|text| Full::new(Bytes::from(text))),
                Answer::Later(_, making) => making.await.map(|bytes| Full::new(Bytes::from(bytes))),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    loop {
        let deadline = *until.borrow();
        tokio::select! {
            ended = &mut connection => {
                return ended.unwrap_or_else(|error| debug!(server = name, %error, "a request failed"));
            }
            // It may have been put off meanwhile.
            () = sleep_until(deadline) => if deadline == *until.borrow() {
                return debug!(server = name, "a request took too long");
            }
        }
    }
}
