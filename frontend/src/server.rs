//! The gRPC server: connections, encoding, and errors as gRPC statuses.
//!
//! ```text
//!   TLS listener ──▶ admission ──▶ incoming: handshake ──┐
//!   unix socket ─────────────────────────────────────────┴─▶ authn: Identity ──▶ watch: a session
//!                                                            (headers only)  └──▶ status, endpoints, changes, plan
//! ```
//!
//! A session lives as long as the response stream of its call. Limits on connections are enforced here, in `admission`
//! and in `connection`, limits on streams by the session, limits on answers in `clients`. The body of a call is read
//! once its client is identified.

mod admission;
mod authn;
mod changes;
mod connection;
pub(crate) mod drains;
mod endpoints;
mod incoming;
mod listener;
mod plan;
mod router;
mod status;
mod watch;

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use futures::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use http::request::Parts;
use proto::v1;
use runtime::Shutdown;
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Response, Status,
    transport::{self, Server, server::Router},
};
use tracing::info;

use crate::{
    Config, Frontend,
    clients::{AnswerClient, AnswerPermit},
    cluster::ClusterState,
    context::FrontendContext,
    identity::{Identity, is_node_name},
    metrics::Rejection,
    session::max_jittered,
};

pub(crate) use self::drains::drains;
use self::{
    admission::Admission,
    connection::{CallGuard, Connection, Peer},
    listener::client_address,
};
pub use self::{authn::TlsAuth, listener::Listener};

/// The most concurrent calls of a connection, including streams. Further ones wait.
const MAX_CALLS: u32 = 16;
/// The HTTP/2 flow-control window of a stream, in bytes: how much of the client's messages is buffered for its session.
const STREAM_WINDOW: u32 = 16 << 10;
/// The HTTP/2 flow-control window of a connection, in bytes: the smallest that HTTP/2 knows.
const CONNECTION_WINDOW: u32 = 64 << 10;
/// The maximum size of the headers of a call, in bytes: clients without an identity send them. A token has about 1 KiB.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// A connection is closed when the client resets more calls than this before they are accepted.
const MAX_PENDING_RESETS: usize = 16;
/// A connection is closed after this many calls that violate HTTP/2.
const MAX_STREAM_ERRORS: usize = 64;
/// How much longer the server waits than its sessions do.
const DRAIN_SLACK: Duration = Duration::from_millis(500);

/// The gRPC service `fairlead.v1.Fairlead` on one listener.
#[derive(Clone, Debug)]
struct FairleadService {
    context: Arc<FrontendContext>,
    /// `None`: every client is trusted.
    auth: Option<TlsAuth>,
    shutdown: Shutdown,
}

#[derive(Clone, Debug)]
struct Caller {
    identity: Identity,
    /// `None` for a unix socket.
    address: Option<IpAddr>,
}

/// The result of a call with one answer.
type Answer<T> = Result<Response<T>, Status>;

impl Frontend {
    /// Serves clients until the shutdown, and drains open streams then.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(&self, listener: Listener, shutdown: Shutdown) -> Result<()> {
        info!(address = %listener, "listening");
        let auth = listener.auth();
        if let Some(auth) = &auth {
            self.context.tls.get_or_init(|| auth.clone());
        }

        let admission = Arc::new(Admission::new(self.context.clone(), auth.is_none()));
        let service = FairleadService { context: self.context.clone(), auth, shutdown: shutdown.clone() };
        let router = self.http2_server().add_service(service);
        tokio::select! {
            served = serve_connections(router, listener, admission, shutdown.clone()) => served.context("serve gRPC"),
            () = self.drain_timeout(shutdown) => {
                info!("clients did not disconnect in time, closing their connections");
                Ok(())
            }
        }
    }

    /// An HTTP/2 server with the configured limits.
    fn http2_server(&self) -> Server {
        let Config { connections, max_stream_age, drain_grace, .. } = &self.context.config;
        let server = Server::builder()
            .http2_keepalive_interval(Some(connections.keepalive))
            .http2_keepalive_timeout(Some(connections.keepalive_timeout))
            .max_concurrent_streams(MAX_CALLS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
            .http2_max_local_error_reset_streams(Some(MAX_STREAM_ERRORS));
        match max_stream_age {
            None => server,
            // A client that does not read cannot be sent a Drain: its connection is closed.
            Some(age) => server
                .max_connection_age(max_jittered(*age) + *drain_grace)
                .max_connection_age_grace(*drain_grace + DRAIN_SLACK),
        }
    }

    /// Returns when clients have had their time to disconnect after the shutdown. A client that does not read does not
    /// receive the request to reconnect.
    async fn drain_timeout(&self, mut shutdown: Shutdown) {
        shutdown.recv().await;
        let config = &self.context.config;
        tokio::time::sleep(config.max_drain_delay + config.drain_grace + DRAIN_SLACK).await;
    }
}

/// Serves the connections of a listener until they have all ended after the shutdown.
async fn serve_connections(
    router: Router,
    listener: Listener,
    admission: Arc<Admission>,
    mut shutdown: Shutdown,
) -> Result<(), transport::Error> {
    let stop = async move { shutdown.recv().await };
    match listener {
        Listener::Tcp(incoming, _) => {
            let connections = incoming.map_ok(|stream| {
                let address = client_address(&stream);
                Connection::new(stream, Peer::new(admission.clone(), address))
            });
            router.serve_with_incoming_shutdown(connections, stop).await
        }
        Listener::Tls(incoming, _, auth) => {
            let connections = ReceiverStream::new(incoming::accept(incoming, auth, admission));
            router.serve_with_incoming_shutdown(connections.map(Ok::<_, Infallible>), stop).await
        }
        Listener::Unix(incoming, _) => {
            let connections = incoming.map_ok(|stream| Connection::new(stream, Peer::new(admission.clone(), None)));
            router.serve_with_incoming_shutdown(connections, stop).await
        }
    }
}

impl FairleadService {
    /// Identifies the client of a call before its body is read.
    async fn identify(&self, request: &Parts) -> Result<Caller, Status> {
        let address = request.extensions.get().and_then(|peer: &Arc<Peer>| peer.ip());
        let Some(auth) = &self.auth else { return Ok(Caller { identity: Identity::Trusted, address }) };

        let identified = auth.identify(request).await.inspect_err(|status| {
            let reason = match status.code() {
                Code::Unavailable => Rejection::Unavailable,
                _ => Rejection::Unauthenticated,
            };
            self.context.metrics.rejected(reason);
        });
        Ok(Caller { identity: identified?, address })
    }

    /// Rejects clients that may not see the status of a node; empty: of all nodes.
    fn authorize(&self, caller: &Caller, node: &str) -> Result<(), Status> {
        caller.identity.may_inspect(node).map_err(|denied| {
            self.context.metrics.rejected(Rejection::NotPermitted);
            Status::permission_denied(denied.to_string())
        })
    }

    /// Waits until the client may be sent another answer.
    async fn permit(&self, Caller { identity, address }: &Caller) -> Arc<AnswerPermit> {
        self.context.answers.acquire(AnswerClient::new(identity.clone(), *address)).await
    }

    async fn status(&self, caller: Caller, request: v1::StatusRequest) -> Answer<v1::StatusResponse> {
        self.authorize(&caller, &request.node)?;
        status::wait(&self.context, &request, self.shutdown.clone()).await?;
        let permit = self.permit(&caller).await;
        Ok(answer(status::response(&self.context, &request, &caller.identity), permit))
    }

    async fn endpoints(&self, caller: Caller, request: v1::EndpointsRequest) -> Answer<v1::EndpointsResponse> {
        self.authorize(&caller, &request.node)?;
        let permit = self.permit(&caller).await;
        let response = endpoints::response(&self.context.cluster, &request, &caller.identity)?;
        Ok(answer(response, permit))
    }

    async fn changes(&self, caller: Caller, request: v1::ChangesRequest) -> Answer<v1::ChangesResponse> {
        self.authorize(&caller, &request.node)?;
        let permit = self.permit(&caller).await;
        let response = changes::response(&self.context.cluster, &request, &caller.identity)?;
        Ok(answer(response, permit))
    }

    /// Answers a client that may see all nodes. One plan is computed at a time, where no other task waits for it: the
    /// index may be locked for long.
    async fn plan(&self, request: v1::PlanRequest, permit: Arc<AnswerPermit>) -> Answer<v1::PlanResponse> {
        // Fails only when the semaphore is closed, which it never is.
        let turn = self.context.plans.clone().acquire_owned().await.ok();

        let context = self.context.clone();
        let planned = spawn_blocking(move || {
            // Also when the client has gone.
            let _turn = turn;
            plan::response(&context.cluster, &request)
        });
        let planned = planned.await.map_err(|error| Status::internal(format!("plan: {error}")))?;
        planned.map(|response| answer(response, permit))
    }

    /// The levels of a node's own pods, until its next such stream.
    fn drains(
        &self,
        caller: &Caller,
        request: &v1::DrainsRequest,
        call: Option<CallGuard>,
    ) -> Answer<BoxStream<'static, Result<v1::DrainLevels, Status>>> {
        if !is_node_name(&request.node) {
            return Err(Status::invalid_argument("node: is not the name of a Node"));
        }
        self.authorize(caller, &request.node)?;
        if !self.context.rate_limiter.open_drains(&caller.identity) {
            return Err(Status::resource_exhausted("too many streams of Drains were opened: try again in a second"));
        }

        let levels = drains(self.context.clone(), request.node.as_str().into(), call, self.shutdown.clone())?;
        Ok(Response::new(levels.map(Ok).boxed()))
    }
}

/// Rejects a call that needs all objects of the cluster.
fn require_ready(cluster: &ClusterState) -> Result<(), Status> {
    if !cluster.is_ready() {
        return Err(Status::unavailable("the frontend has not listed all objects yet: try again later"));
    }
    Ok(())
}

/// An answer whose body holds the permit.
fn answer<T>(message: T, permit: Arc<AnswerPermit>) -> Response<T> {
    let mut response = Response::new(message);
    response.extensions_mut().insert(permit);
    response
}
