//! Connections that have come through their handshake. The others wait beside, so many at most and not for long.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::StreamExt as _;
use tonic::transport::server::{Connected, TcpIncoming};
use tracing::{debug, info};

use super::Tls;
use crate::identity::certificate::Names;

/// How long a handshake may take. A client of ours gives a connection up as soon.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// How many handshakes are under way at most: a reconnect of thousands of nodes passes at about a thousand a second and
/// core, so only clients that say nothing fill this.
const MAX_HANDSHAKES: usize = 1024;
/// How long nothing is accepted after that has failed: when there are no file descriptors left, it fails at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How many connections wait for the server.
const CONNECTIONS: usize = 16;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(in crate::server) struct Peer {
    pub(in crate::server) address: SocketAddr,
    /// The names of its certificate, which a client authority of ours has signed.
    pub(in crate::server) names: Option<Arc<Names>>,
}

/// A connection after its handshake.
pub(in crate::server) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
}

/// The connections that come through. Handshakes end when the receiver is dropped.
pub(in crate::server) fn accept(mut incoming: TcpIncoming, tls: Tls) -> mpsc::Receiver<Connection> {
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
                match timeout(HANDSHAKE_TIMEOUT, handshake(stream, &tls)).await {
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

async fn handshake(stream: TcpStream, tls: &Tls) -> Option<Connection> {
    let address = stream.peer_addr().ok()?;
    let shaken = async {
        let stream = TlsAcceptor::from(tls.config()).accept(stream).await?;
        let names = names(&stream).context("its certificate")?;
        Ok::<_, anyhow::Error>(Connection { stream, peer: Peer { address, names } })
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

// === impl Connection ===

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
