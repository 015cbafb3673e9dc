//! Accepts TCP connections and performs their TLS handshakes. Accepting never waits: which connections are kept is
//! decided by `admission`.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
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
    mut incoming: TcpIncoming,
    auth: TlsAuth,
    admission: Arc<Admission>,
) -> mpsc::Receiver<Connection<TlsStream<TcpStream>>> {
    let (sender, receiver) = mpsc::channel(MAX_READY_CONNECTIONS);
    tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        let mut accept_failures = Repeated::default();
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                _ = handshakes.join_next(), if !handshakes.is_empty() => continue,
                next = incoming.next() => match next {
                    Some(accepted) => accepted,
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
                    if accept_failures.failed(&error).is_news {
                        warn!(error, retry_ms = ACCEPT_RETRY_DELAY.as_millis(), "cannot accept connections, retrying");
                    }
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(address) = client_address(&stream) else { continue };
            let peer = Peer::new(admission.clone(), Some(address));
            let (auth, sender) = (auth.clone(), sender.clone());
            handshakes.spawn(async move {
                let connection = tokio::select! {
                    connection = handshake(stream, &auth, address, &peer) => connection,
                    () = peer.evicted() => {
                        return debug!(client = %address, "closing a connection in favour of another");
                    }
                };
                drop(peer);
                if let Some(connection) = connection {
                    // Fails when the server has just stopped.
                    drop(sender.send(connection).await);
                }
            });
        }
    });
    receiver
}

/// Performs a handshake. A client with a known certificate is identified then.
async fn handshake(
    stream: TcpStream,
    auth: &TlsAuth,
    address: SocketAddr,
    peer: &Arc<Peer>,
) -> Option<Connection<TlsStream<TcpStream>>> {
    let limits = peer.admission.limits;
    let connecting = async {
        // A client that sends nothing keeps no other from its handshake.
        timeout(limits.handshake, stream.readable()).await.map_err(|_| timed_out())??;
        let accepting = async {
            let _permit = peer.admission.start_handshake(address.ip()).await?;
            let accepting = TlsAcceptor::from(auth.tls.config()).accept(stream);
            Ok::<_, anyhow::Error>(timeout(limits.handshake, accepting).await.map_err(|_| timed_out())??)
        };
        let stream = accepting.await?;
        let chain = stream.get_ref().1.peer_certificates();
        if let Some(certificate) = chain.and_then(<[_]>::first) {
            let names = Names::read(certificate).context("client certificate")?;
            if let Ok(identity) = auth.authenticator.by_certificate(&names) {
                peer.set_identity(&identity);
            }
            // Fails only if they are set already.
            let _ = peer.names.set(names);
        }
        Ok::<_, anyhow::Error>(Connection::new(stream, peer.clone()))
    };
    let error = match connecting.await {
        Ok(connection) => return Some(connection),
        Err(error) => error,
    };
    let is_disconnect = is_disconnect(&error);
    let count = (!is_disconnect).then(|| peer.admission.count_rejection(peer.ip())).flatten();
    let error = format!("{error:#}");
    match count {
        Some(count) => info!(client = %address, error, count, "TLS handshake failed"),
        None if is_disconnect => debug!(client = %address, error, "client disconnected during its TLS handshake"),
        None => debug!(client = %address, error, "TLS handshake failed"),
    }
    None
}

fn timed_out() -> std::io::Error {
    std::io::Error::new(ErrorKind::TimedOut, "the client did not complete its TLS handshake in time")
}

/// Whether the client has just disconnected or sent nothing, such as the health check of a load balancer.
fn is_disconnect(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(std::io::Error::kind);
    matches!(
        kind,
        Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::TimedOut)
    )
}
