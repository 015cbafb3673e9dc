//! The gRPC edge: connections, the wire form of what sessions say, and errors as statuses. Nothing is decided here.
//!
//! ```text
//!   TLS listener ──▶ tls: handshake ──┐
//!   unix socket ──────────────────────┴─▶ gate: Identity ──▶ watch: a session, status
//! ```
//!
//! A session runs inside the stream of its answers and not in a task of its own: it lives exactly as long as the client
//! takes answers, and stops when the client goes away.

mod gate;
mod listener;
mod status;
mod tls;
mod watch;

use std::time::Duration;

use anyhow::{Context as _, Result};
use proto::{
    MAX_MESSAGE_BYTES,
    v1::{
        self,
        server::{Fairlead, FairleadServer},
    },
};
use runtime::Shutdown;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};
use tracing::info;

use crate::{Frontend, identity::Identity, metrics::Rejection};

use self::{gate::Entrance, watch::WatchStream};
pub use self::{
    gate::Gate,
    listener::Listener,
    tls::{Tls, TlsFiles},
};

/// How often a silent connection is asked whether it is alive; a node that lost its network is gone after this and
/// [`KEEPALIVE_TIMEOUT`]. Clients ask on their side.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the answer may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// What the server waits longer than its streams do.
const DRAIN_SLACK: Duration = Duration::from_millis(500);

/// The service of the contract.
#[derive(Debug)]
struct Service {
    frontend: Frontend,
    entrance: Entrance,
    shutdown: Shutdown,
}

impl Frontend {
    /// Serves streams until the shutdown; those that are open are asked to go elsewhere then.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(&self, listener: Listener, shutdown: Shutdown) -> Result<()> {
        info!(address = %listener, "listening");
        let entrance = listener.entrance();
        let service = Service { frontend: self.clone(), entrance, shutdown: shutdown.clone() };
        let service = FairleadServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let router = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(service);
        let mut stop = shutdown.clone();
        let stop = async move { stop.recv().await };
        let serving = async {
            match listener {
                Listener::Tcp(incoming, _) => router.serve_with_incoming_shutdown(incoming, stop).await,
                Listener::Tls(incoming, _, gate) => {
                    let connections = ReceiverStream::new(tls::accept(incoming, gate.tls));
                    let connections = connections.map(Ok::<_, std::convert::Infallible>);
                    router.serve_with_incoming_shutdown(connections, stop).await
                }
                Listener::Unix(incoming, _) => router.serve_with_incoming_shutdown(incoming, stop).await,
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
    pub async fn follow_tls(&self, tls: Tls, shutdown: Shutdown) -> Result<()> {
        self.shared.tls.get_or_init(|| tls.clone());
        tls.follow(shutdown).await
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
        let identified = self.entrance.identify(request).await;
        identified.inspect_err(|status| {
            let why = match status.code() {
                Code::Unavailable => Rejection::Unavailable,
                _ => Rejection::Unauthenticated,
            };
            self.frontend.shared.metrics.rejected(why);
        })
    }
}

#[async_trait]
impl Fairlead for Service {
    type WatchStream = WatchStream;

    async fn watch(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<WatchStream>, Status> {
        let identity = self.identify(&request).await?;
        let messages = request.into_inner();
        let stream =
            WatchStream::new(self.frontend.shared.clone(), identity, messages, self.shutdown.clone());
        Ok(Response::new(stream))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let identity = self.identify(&request).await?;
        let shared = &self.frontend.shared;
        identity.may_see_all().map_err(|denied| {
            shared.metrics.rejected(Rejection::NotPermitted);
            gate::denied(&denied)
        })?;
        let request = request.into_inner();
        status::wait(shared, &request, self.shutdown.clone()).await?;
        Ok(Response::new(status::response(shared, &request)))
    }
}
