//! A small HTTP/1.1 server for what is asked now and then: metrics and health. A request is answered at once, from memory; a client
//! that is slow, or one of too many, delays nobody.

mod listen;

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
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
/// How long it may take for everything, reading the answer included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted when that fails: what a process or a machine has run out of does not come back at once.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// Answers everybody who connects, one request each, until it is dropped, and all connections with it. `name` is what log lines
/// call it.
pub async fn serve<A>(listener: TcpListener, name: &'static str, answer: A)
where
    A: Fn(&Request<Incoming>) -> Response<String> + Send + Sync + 'static,
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

async fn connection<A>(stream: TcpStream, name: &'static str, answer: Arc<A>)
where
    A: Fn(&Request<Incoming>) -> Response<String>,
{
    let service = service_fn(|request| {
        let response = answer(&request);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(server = name, %error, "a request failed"),
        Err(_) => debug!(server = name, "a request took too long"),
    }
}
