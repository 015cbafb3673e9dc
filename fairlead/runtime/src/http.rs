//! A small HTTP/1.1 server for metrics and health. Most responses are ready in memory; some are waited for.
//! Timeouts, and connections that are bounded in total and for each client, keep slow clients from blocking others.

mod bind_error;
mod connections;
mod listen;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    http::Extensions,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinSet, yield_now},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug, info};

use crate::{
    ClientSource, ConnectionPermit, Shutdown, Trigger,
    failure::{Recovery, Repeated, chain},
    warn_if_news,
};

pub use bind_error::describe_bind_error;
pub use connections::HttpConnections;
pub use listen::{OnBindError, bind, bind_both_families, bind_early, serve_at};

/// Content type of plain text.
pub const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Content type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The time a client has to send its request. An idle one keeps others out.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time a connection may last, without the time that a deferred response takes.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// The buffer for a request, in bytes. A larger request is rejected (431).
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// How long the shutdown waits for connections that are open. Only clients that send no request take as long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failed accept: exhausted file descriptors or memory do not come back at once.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

/// The address of the client, in the extensions of its request.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

/// The address that the client has connected to, in the extensions of a request from the machine itself that was
/// redirected here.
#[derive(Clone, Copy, Debug)]
pub struct OriginalDestination(pub IpAddr);

/// Starts when none of the server's sockets listens any more, after its shutdown; in the extensions of each request. A
/// client that is sent to the same port then connects to the next process, and never to this one again.
#[derive(Clone, Debug)]
pub struct Closed(pub Shutdown);

/// The sockets of a server that listen: one clone for each.
#[derive(Clone)]
struct ListeningSockets {
    closed: Closed,
    /// Starts `closed` when the last clone is dropped.
    _trigger: Arc<Trigger>,
}

/// The response to a request.
pub enum Answer {
    /// It is ready.
    Ready(Response<String>),
    /// It takes about this long to compute. Its connection no longer counts towards the bounds of the server, which
    /// would close it in favour of others: what computes responses limits how many there are.
    Deferred(Duration, DeferredResponse),
}

/// A response that is being computed.
pub type DeferredResponse = Pin<Box<dyn Future<Output = Response<String>> + Send>>;

/// What answers requests.
type Answers = Arc<dyn Fn(&Request<Incoming>) -> Answer + Send + Sync>;

impl From<Response<String>> for Answer {
    fn from(response: Response<String>) -> Self {
        Self::Ready(response)
    }
}

/// A server: each of its sockets has a clone. [`Closed`] starts when the last clone is dropped, so there must be no
/// other one.
#[derive(Clone)]
struct HttpServer {
    /// Names the server in log lines.
    name: &'static str,
    connections: HttpConnections,
    answer: Answers,
    sockets: ListeningSockets,
    shutdown: Shutdown,
}

/// The open connections of a listener.
struct Serving {
    server: HttpServer,
    tasks: JoinSet<()>,
}

/// Serves all connections, one request each, until the future is dropped. `name` names the server in log lines.
/// Listeners with the same `connections` share its bounds.
pub async fn serve<A, R>(listener: TcpListener, name: &'static str, connections: HttpConnections, answer: A)
where
    A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
    R: Into<Answer> + 'static,
{
    let (_never, shutdown) = Shutdown::channel();
    HttpServer::new(name, connections, answer, shutdown).serve(listener).await;
}

impl HttpServer {
    fn new<A, R>(name: &'static str, connections: HttpConnections, answer: A, shutdown: Shutdown) -> Self
    where
        A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
        R: Into<Answer> + 'static,
    {
        let answer: Answers = Arc::new(move |request: &Request<Incoming>| -> Answer { answer(request).into() });
        Self { name, connections, answer, sockets: ListeningSockets::new(), shutdown }
    }

    /// Serves all connections until the shutdown: the socket does not listen any more then, and the requests that
    /// clients have sent before are answered.
    async fn serve(self, listener: TcpListener) {
        let name = self.name;
        let mut shutdown = self.shutdown.clone();
        let mut serving = Serving { server: self, tasks: JoinSet::new() };
        let mut accepting = Repeated::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = serving.tasks.join_next() => continue,
                () = shutdown.recv() => break,
            };
            match accepted {
                // Fails when the client has disconnected.
                Ok((stream, _)) => {
                    if let Some(Recovery { count: failures, duration }) = accepting.recovered() {
                        let after_ms = duration.as_millis();
                        info!(server = name, failures, after_ms, "connections are accepted again");
                    }
                    serving.add(stream);
                }
                Err(error) => {
                    let occurrence = accepting.failed(&error.to_string());
                    warn_if_news!(occurrence, server = name, %error, "cannot accept connections");
                    shutdown.run_until_started(sleep(ACCEPT_DELAY)).await;
                }
            }
        }
        serving.finish(listener).await;
    }
}

impl ListeningSockets {
    fn new() -> Self {
        let (trigger, closed) = Shutdown::channel();
        Self { closed: Closed(closed), _trigger: Arc::new(trigger) }
    }
}

impl Serving {
    fn add(&mut self, stream: TcpStream) {
        let HttpServer { name, connections, answer, sockets, .. } = &self.server;
        let name = *name;
        let Ok(permit) = connections.admit(&stream) else { return };
        let answer = answer.clone();
        let closed = sockets.closed.clone();
        let serving = async move {
            tokio::select! {
                () = connection(stream, name, &permit, answer, closed) => {}
                () = permit.evicted() => debug!(server = name, "closing a connection in favour of another"),
            }
        };
        self.tasks.spawn(serving.in_current_span());
    }

    /// Answers the connected clients, and accepts no more.
    async fn finish(mut self, listener: TcpListener) {
        // The kernel would reset the connections that it has queued.
        for _ in 0..listen::BACKLOG {
            let Ok(Ok((stream, _))) = timeout(Duration::ZERO, listener.accept()).await else { break };
            self.add(stream);
            // After 128 operations without a pause tokio would say that none is queued.
            yield_now().await;
        }

        let Self { server, mut tasks } = self;
        let name = server.name;
        drop(listener);
        // With the last one, `Closed` starts.
        drop(server);

        let finished = async { while tasks.join_next().await.is_some() {} };
        if timeout(FINISH_TIMEOUT, finished).await.is_err() {
            debug!(server = name, connections = tasks.len(), "closing connections without an answer");
        }
    }
}

/// A response of this content type, which browsers must not guess otherwise.
#[must_use]
pub fn response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// What conntrack knows of a connection to a loopback address, which only the machine itself can redirect there.
fn original_destination(stream: &TcpStream) -> Option<OriginalDestination> {
    let local = stream.local_addr().ok()?;
    if !local.ip().is_loopback() {
        return None;
    }

    let socket = SockRef::from(stream);
    let original = if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    let address = original.ok()?.as_socket()?.ip();
    if address.is_loopback() { None } else { Some(OriginalDestination(address)) }
}

/// What is known of a connection, for the extensions of its request.
fn extensions(stream: &TcpStream, closed: Closed) -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(closed);
    if let Ok(address) = stream.peer_addr() {
        extensions.insert(Client(address));
    }
    if let Some(original) = original_destination(stream) {
        extensions.insert(original);
    }
    extensions
}

async fn connection(
    stream: TcpStream,
    name: &'static str,
    permit: &ConnectionPermit<ClientSource>,
    answer: Answers,
    closed: Closed,
) {
    let (deadline, until) = watch::channel(Instant::now() + CONNECTION_TIMEOUT);
    let extensions = extensions(&stream, closed);
    let service = service_fn(|mut request: Request<Incoming>| {
        permit.set_busy();
        request.extensions_mut().extend(extensions.clone());
        let answer = answer(&request);
        if let Answer::Deferred(duration, _) = &answer {
            deadline.send_modify(|deadline| *deadline += *duration);
            permit.release();
        }
        respond(answer)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);

    loop {
        let deadline = *until.borrow();
        tokio::select! {
            ended = &mut serving => {
                return ended.unwrap_or_else(|error| debug!(server = name, error = chain(&error), "request failed"));
            }
            // A deferred response extends the deadline.
            () = sleep_until(deadline) => if deadline == *until.borrow() {
                return debug!(server = name, "request timed out");
            }
        }
    }
}

async fn respond(answer: Answer) -> Result<Response<Full<Bytes>>, Infallible> {
    let response = match answer {
        Answer::Ready(response) => response,
        Answer::Deferred(_, response) => response.await,
    };
    Ok(response.map(|text| Full::new(Bytes::from(text))))
}
