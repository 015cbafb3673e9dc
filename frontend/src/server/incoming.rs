//! Accepts TCP connections and performs their TLS handshakes. Accepting never waits: which connections are kept is
//! decided by `admission`.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Error, Result};
use runtime::failure::{Recovery, Repeated, chain};
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::StreamExt as _;
use tonic::transport::server::TcpIncoming;
use tracing::{debug, info, warn};

use super::{
    admission::Admission,
    authn::TlsAuth,
    connection::{Connection, Peer},
    listener::client_address,
};
use crate::identity::certificate::Names;

/// The delay after `accept` has failed: without free file descriptors it would fail again at once.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// How many connections wait for the server after their handshake.
const MAX_READY_CONNECTIONS: usize = 16;

/// The connections that have completed their handshake. Dropping the receiver ends the task.
pub(super) fn accept(
    incoming: TcpIncoming,
    auth: TlsAuth,
    admission: Arc<Admission>,
) -> mpsc::Receiver<Connection<TlsStream<TcpStream>>> {
    let (sender, receiver) = mpsc::channel(MAX_READY_CONNECTIONS);
    tokio::spawn(accept_all(incoming, auth, admission, sender));
    receiver
}

async fn accept_all(
    mut incoming: TcpIncoming,
    auth: TlsAuth,
    admission: Arc<Admission>,
    ready: mpsc::Sender<Connection<TlsStream<TcpStream>>>,
) {
    let mut handshakes = JoinSet::new();
    let mut failures = Repeated::default();
    loop {
        let accepted = tokio::select! {
            () = ready.closed() => return,
            _ = handshakes.join_next(), if !handshakes.is_empty() => continue,
            next = incoming.next() => match next {
                Some(accepted) => accepted,
                None => return,
            },
        };

        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                let error = chain(&error);
                if failures.failed(&error).is_news {
                    warn!(error, retry_ms = ACCEPT_RETRY_DELAY.as_millis(), "cannot accept connections, retrying");
                }
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        if let Some(Recovery { count, duration }) = failures.recovered() {
            info!(count, duration_ms = duration.as_millis(), "accepting connections again");
        }

        let Some(address) = client_address(&stream) else { continue };
        let peer = Peer::new(admission.clone(), Some(address));
        handshakes.spawn(prepare(stream, auth.clone(), address, peer, ready.clone()));
    }
}

/// Performs a handshake, and passes the connection on, unless it is closed for another one.
async fn prepare(
    stream: TcpStream,
    auth: TlsAuth,
    address: SocketAddr,
    peer: Arc<Peer>,
    ready: mpsc::Sender<Connection<TlsStream<TcpStream>>>,
) {
    let shaken = tokio::select! {
        shaken = handshake(stream, &auth, address, &peer) => shaken,
        () = peer.evicted() => {
            debug!(client = %address, "closing a connection in favour of another");
            return;
        }
    };
    match shaken {
        Ok(connection) => {
            drop(peer);
            // Fails when the server has just stopped.
            let _ = ready.send(connection).await;
        }
        Err(error) => log_failure(&error, address, &peer),
    }
}

/// Performs a handshake. A client with a known certificate is identified by it.
async fn handshake(
    stream: TcpStream,
    auth: &TlsAuth,
    address: SocketAddr,
    peer: &Arc<Peer>,
) -> Result<Connection<TlsStream<TcpStream>>> {
    let limits = peer.admission.limits;
    // A client that sends nothing keeps no other from its handshake.
    timeout(limits.handshake, stream.readable()).await.map_err(|_| timed_out())??;

    let permit = peer.admission.start_handshake(address.ip()).await?;
    let accepting = TlsAcceptor::from(auth.tls.config()).accept(stream);
    let stream = timeout(limits.handshake, accepting).await.map_err(|_| timed_out())??;
    drop(permit);

    let certificates = stream.get_ref().1.peer_certificates();
    if let Some(certificate) = certificates.and_then(<[_]>::first) {
        let names = Names::read(certificate).context("client certificate")?;
        if let Ok(identity) = auth.authenticator.by_certificate(&names) {
            peer.set_identity(&identity);
        }
        // Fails only if they are set already.
        let _ = peer.names.set(names);
    }
    Ok(Connection::new(stream, peer.clone()))
}

fn log_failure(error: &Error, client: SocketAddr, peer: &Peer) {
    let text = format!("{error:#}");
    if is_disconnect(error) {
        debug!(%client, error = text, "client disconnected during its TLS handshake");
        return;
    }
    match peer.admission.count_rejection(peer.ip()) {
        Some(count) => info!(%client, error = text, count, "TLS handshake failed"),
        None => debug!(%client, error = text, "TLS handshake failed"),
    }
}

fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the client did not complete its TLS handshake in time")
}

/// Whether the client has just disconnected or sent nothing, such as the health check of a load balancer.
fn is_disconnect(error: &Error) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    matches!(
        kind,
        Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::TimedOut)
    )
}
