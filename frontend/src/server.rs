//! The gRPC edge: connections, the wire form of what sessions say, and errors as statuses. Nothing is decided here.
//!
//! ```text
//!   TLS listener ──▶ tls: handshake ──┐
//!   unix socket ──────────────────────┴─▶ gate: Identity ──▶ watch: a session ──▶ body; status
//! ```
//!
//! A session lives exactly as long as the stream of its answers, and stops when the client goes away. What a client may do to the
//! connection itself is bounded here and in `connection`; what it may ask for, by its session.

mod authn;
mod connection;
mod endpoints;
mod listener;
mod router;
mod status;
mod tls;
mod watch;
mod watch_body;

use std::time::Duration;

use anyhow::{Context as _, Result};
use proto::v1;
use runtime::Shutdown;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming, transport::Server};
use tracing::info;

use crate::{Config, Frontend, identity::Identity, metrics::Rejection, session::oldest};

use self::{
    authn::ListenerAuth,
    connection::{Connection, Peer},
    router::CallRouter,
    watch::WatchStream,
};
pub use self::{
    authn::TlsAuth,
    connection::ConnectionLimits,
    listener::Listener,
    tls::{ReloadingTls, TlsFiles},
};

/// How much of what a client says is kept for a session that does not listen at the moment, in bytes. Larger messages come in
/// parts.
const STREAM_WINDOW: u32 = 64 << 10;
/// And for all calls of a connection.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// How large the headers of a call may be, in bytes; a token has about 1 KiB.
const HEADERS: u32 = 16 << 10;
/// So many calls may be given up before they are looked at. More, and the connection ends.
const RESETS: usize = 16;
/// So many calls may be ended because they are no HTTP/2. More, and the connection ends.
const ERRORS: usize = 64;
/// What the server waits longer than its streams do.
const DRAIN_SLACK: Duration = Duration::from_millis(500);

/// The service of the contract.
#[derive(Debug)]
struct Service {
    frontend: Frontend,
    auth: ListenerAuth,
    shutdown: Shutdown,
}

impl Frontend {
    /// Serves streams until the shutdown; those that are open are asked to go elsewhere then.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(&self, listener: Listener, shutdown: Shutdown) -> Result<()> {
        info!(address = %listener, "listening");
        let auth = listener.auth();
        let service = Service { frontend: self.clone(), auth, shutdown: shutdown.clone() };
        let limits = self.shared.config.connections;
        let router = self.server().add_service(CallRouter::new(service));
        let mut stop = shutdown.clone();
        let stop = async move { stop.recv().await };
        let serving = async {
            match listener {
                Listener::Tcp(incoming, _) => {
                    let connections = incoming.map(|accepted| {
                        accepted.map(|stream| {
                            let peer = Peer::new(stream.peer_addr().ok(), None);
                            Connection::new(stream, peer, &limits)
                        })
                    });
                    router.serve_with_incoming_shutdown(connections, stop).await
                }
                Listener::Tls(incoming, _, auth) => {
                    let connections = ReceiverStream::new(tls::accept(incoming, auth.tls, limits));
                    let connections = connections.map(Ok::<_, std::convert::Infallible>);
                    router.serve_with_incoming_shutdown(connections, stop).await
                }
                Listener::Unix(incoming, _) => {
                    let connections = incoming
                        .map(|accepted| accepted.map(|stream| Connection::new(stream, Peer::new(None, None), &limits)));
                    router.serve_with_incoming_shutdown(connections, stop).await
                }
            }
        };
        tokio::select! {
            served = serving => served.context("serve gRPC"),
            () = self.overdue(shutdown) => {
                info!("not all clients have gone, closing their connections");
                Ok(())
            }
        }
    }

    /// Follows the files of TLS until the shutdown; what cannot be used is a problem in `Status` from then on.
    ///
    /// # Errors
    /// Never: what cannot be used changes nothing.
    pub async fn watch_tls_files(&self, tls: ReloadingTls, shutdown: Shutdown) -> Result<()> {
        self.shared.tls.get_or_init(|| tls.clone());
        tls.follow(shutdown).await
    }

    /// HTTP/2 within its limits.
    fn server(&self) -> Server {
        let Config { connections, max_stream_age, drain_delay, drain_grace, .. } = &self.shared.config;
        let server = Server::builder()
            .http2_keepalive_interval(Some(connections.keepalive))
            .http2_keepalive_timeout(Some(connections.keepalive_timeout))
            .max_concurrent_streams(connections.calls)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(HEADERS)
            .http2_max_pending_accept_reset_streams(Some(RESETS))
            .http2_max_local_error_reset_streams(Some(ERRORS));
        match max_stream_age {
            None => server,
            // Of a client that does not read what it is told, only the connection can be ended.
            Some(age) => server
                .max_connection_age(oldest(*age) + *drain_delay + *drain_grace)
                .max_connection_age_grace(*drain_grace + DRAIN_SLACK),
        }
    }

    /// Returns when streams have had all the time there is to end after the shutdown. That of a client which does not read
    /// is not even asked to, because nothing can be sent to it.
    async fn overdue(&self, mut shutdown: Shutdown) {
        shutdown.recv().await;
        let config = &self.shared.config;
        tokio::time::sleep(config.drain_delay + config.drain_grace + DRAIN_SLACK).await;
    }
}

impl Service {
    async fn identify<T: Sync>(&self, request: &Request<T>) -> Result<Identity, Status> {
        let identified = self.auth.identify(request).await;
        identified.inspect_err(|status| {
            let why = match status.code() {
                Code::Unavailable => Rejection::Unavailable,
                _ => Rejection::Unauthenticated,
            };
            self.frontend.shared.metrics.rejected(why);
        })
    }

    async fn watch(&self, request: Request<Streaming<v1::ClientMessage>>) -> Result<WatchStream, Status> {
        let identity = self.identify(&request).await?;
        let call = request.extensions().get().map(Peer::call);
        let messages = request.into_inner();
        Ok(WatchStream::new(self.frontend.shared.clone(), identity, messages, call, self.shutdown.clone()))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let _call = request.extensions().get().map(Peer::call);
        self.must_see_all(&request).await?;
        let shared = &self.frontend.shared;
        let request = request.into_inner();
        status::wait(shared, &request, self.shutdown.clone()).await?;
        Ok(Response::new(status::response(shared, &request)))
    }

    async fn endpoints(
        &self,
        request: Request<v1::EndpointsRequest>,
    ) -> Result<Response<v1::EndpointsResponse>, Status> {
        let _call = request.extensions().get().map(Peer::call);
        self.must_see_all(&request).await?;
        endpoints::response(&self.frontend.shared, &request.into_inner()).map(Response::new)
    }

    /// Lets those pass who may look at everything.
    async fn must_see_all<T: Sync>(&self, request: &Request<T>) -> Result<(), Status> {
        let identity = self.identify(request).await?;
        identity.may_see_all().map_err(|denied| {
            self.frontend.shared.metrics.rejected(Rejection::NotPermitted);
            authn::denied(&denied)
        })
    }
}
