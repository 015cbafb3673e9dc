//! Accepts TCP connections and performs their TLS handshakes, a limited number at a time and each for a limited time.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use runtime::{
    connect_advice::client_clock_advice,
    failure::{Recovery, Repeated, chain},
};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::StreamExt as _;
use tonic::transport::server::TcpIncoming;
use tracing::{debug, info, warn};

use super::ReloadingTls;
use crate::{
    identity::certificate::Names,
    server::connection::{Connection, ConnectionLimits},
};

/// How long a handshake may take. A backend gives up on a connection after the same time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of concurrent handshakes. One CPU core performs about a thousand a second, so a reconnect of
/// thousands of nodes does not reach it; clients that connect and send nothing do.
const MAX_HANDSHAKES: usize = 1024;
/// The delay after `accept` has failed: without free file descriptors it would fail again at once.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// How many connections wait for the server after their handshake.
const MAX_READY_CONNECTIONS: usize = 16;

/// The connections that have completed their handshake. Dropping the receiver ends the task.
pub(in crate::server) fn accept(
    mut incoming: TcpIncoming,
    tls: ReloadingTls,
    limits: ConnectionLimits,
) -> mpsc::Receiver<Connection<TlsStream<TcpStream>>> {
    let (sender, receiver) = mpsc::channel(MAX_READY_CONNECTIONS);
    let permits = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        let mut accept_failures = Repeated::default();
        loop {
            let next = async {
                let permit = permits.clone().acquire_owned().await.ok()?;
                incoming.next().await.map(|accepted| (permit, accepted))
            };
            let (permit, accepted) = tokio::select! {
                () = sender.closed() => return,
                _ = handshakes.join_next(), if !handshakes.is_empty() => continue,
                next = next => match next {
                    Some(next) => next,
                    None => return,
                },
            };
            let stream = match accepted {
                Ok(stream) => {
                    if let Some(Recovery { count, duration }) = accept_failures.recovered() {
                        info!(count, duration_ms = duration.as_millis(), "accepting connections again");
                    }
                    stream
                }
                Err(error) => {
                    let error = chain(&error);
                    if accept_failures.failed(&error).is_news() {
                        warn!(error, retry_ms = ACCEPT_RETRY_DELAY.as_millis(), "cannot accept connections, retrying");
                    }
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let (tls, sender) = (tls.clone(), sender.clone());
            handshakes.spawn(async move {
                let _permit = permit;
                match timeout(HANDSHAKE_TIMEOUT, handshake(stream, &tls, &limits)).await {
                    // Fails when the server has just stopped.
                    Ok(Some(connection)) => drop(sender.send(connection).await),
                    Ok(None) => {}
                    Err(_) => debug!(
                        timeout_ms = HANDSHAKE_TIMEOUT.as_millis(),
                        "client did not complete its TLS handshake in time"
                    ),
                }
            });
        }
    });
    receiver
}

async fn handshake(
    stream: TcpStream,
    tls: &ReloadingTls,
    limits: &ConnectionLimits,
) -> Option<Connection<TlsStream<TcpStream>>> {
    let address = stream.peer_addr().ok()?;
    let connecting = async {
        let stream = TlsAcceptor::from(tls.config()).accept(stream).await?;
        let names = names(&stream).context("client certificate")?;
        Ok::<_, anyhow::Error>(Connection::new(stream, Some(address), names, limits))
    };
    match connecting.await {
        Ok(connection) => Some(connection),
        Err(error) if is_disconnect(&error) => {
            debug!(client = %address, error = format!("{error:#}"), "client disconnected during its TLS handshake");
            None
        }
        Err(error) => {
            let advice = client_clock_advice(error.as_ref());
            info!(client = %address, error = format!("{error:#}"), advice, "TLS handshake failed");
            None
        }
    }
}

/// Whether the client has just disconnected, such as the health check of a load balancer.
fn is_disconnect(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn names(stream: &TlsStream<TcpStream>) -> Result<Option<Arc<Names>>> {
    let chain = stream.get_ref().1.peer_certificates();
    let names = chain.and_then(<[_]>::first).map(Names::read).transpose()?;
    Ok(names.map(Arc::new))
}
