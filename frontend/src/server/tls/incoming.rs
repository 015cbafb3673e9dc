//! Connections that have come through their handshake. The others wait beside, so many at most and not for long.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::StreamExt as _;
use tonic::transport::server::TcpIncoming;
use tracing::{debug, info};

use super::ReloadingTls;
use crate::{
    identity::certificate::Names,
    server::connection::{Connection, ConnectionLimits, Peer},
};

/// How long a handshake may take. A client of ours gives a connection up as soon.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// How many handshakes are under way at most: a reconnect of thousands of nodes passes at about a thousand a second and
/// core, so only clients that say nothing fill this.
const MAX_HANDSHAKES: usize = 1024;
/// How long nothing is accepted after that has failed: when there are no file descriptors left, it fails at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How many connections wait for the server.
const CONNECTIONS: usize = 16;

/// The connections that come through. Handshakes end when the receiver is dropped.
pub(in crate::server) fn accept(
    mut incoming: TcpIncoming,
    tls: ReloadingTls,
    limits: ConnectionLimits,
) -> mpsc::Receiver<Connection<TlsStream<TcpStream>>> {
    let (sender, receiver) = mpsc::channel(CONNECTIONS);
    let slots = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        loop {
            let next = async {
                let slot = slots.clone().acquire_owned().await.ok()?;
                incoming.next().await.map(|accepted| (slot, accepted))
            };
            let (slot, accepted) = tokio::select! {
                () = sender.closed() => return,
                _ = handshakes.join_next(), if !handshakes.is_empty() => continue,
                next = next => match next {
                    Some(next) => next,
                    None => return,
                },
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    info!(%error, "a connection could not be taken");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (tls, sender) = (tls.clone(), sender.clone());
            handshakes.spawn(async move {
                let _slot = slot;
                match timeout(HANDSHAKE_TIMEOUT, handshake(stream, &tls, &limits)).await {
                    // Fails when the server has stopped just now.
                    Ok(Some(connection)) => drop(sender.send(connection).await),
                    Ok(None) => {}
                    Err(_) => debug!("a client did not end its handshake within {HANDSHAKE_TIMEOUT:?}"),
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
    let shaken = async {
        let stream = TlsAcceptor::from(tls.config()).accept(stream).await?;
        let names = names(&stream).context("its certificate")?;
        Ok::<_, anyhow::Error>(Connection::new(stream, Peer::new(Some(address), names), limits))
    };
    match shaken.await {
        Ok(connection) => Some(connection),
        Err(error) if has_gone(&error) => {
            debug!(client = %address, %error, "a client left during its handshake");
            None
        }
        Err(error) => {
            info!(client = %address, error = format!("{error:#}"), "TLS handshake failed");
            None
        }
    }
}

/// Whether nobody is there to complain: a load balancer that only looks whether the port is open, say.
fn has_gone(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn names(stream: &TlsStream<TcpStream>) -> Result<Option<Arc<Names>>> {
    let chain = stream.get_ref().1.peer_certificates();
    let names = chain.and_then(<[_]>::first).map(Names::read).transpose()?;
    Ok(names.map(Arc::new))
}
