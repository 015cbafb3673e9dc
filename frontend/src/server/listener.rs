//! Where clients connect: a TCP address, with TLS or without, or a unix socket.

use std::{
    fmt,
    fs::Permissions,
    io::ErrorKind,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use socket2::SockRef;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

use super::authn::{ListenerAuth, TlsAuth};

/// How long a connection is silent before the kernel probes it, besides HTTP/2's own probes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Who may open a socket: its owner and its group. That is all there is to know of clients there.
const SOCKET_MODE: u32 = 0o660;

/// How many connections wait to be accepted, if the kernel allows as many (`net.core.somaxconn`): all nodes of a cluster come at
/// once when another frontend ends.
const BACKLOG: i32 = 4096;

/// A bound address. Bind first and serve later, so that an address in use is seen at once.
#[derive(Debug)]
pub enum Listener {
    /// A TCP address, in the clear: for everybody who can reach it.
    Tcp(TcpIncoming, SocketAddr),
    /// A TCP address, with TLS, for those that [`TlsAuth`] identifies.
    Tls(TcpIncoming, SocketAddr, TlsAuth),
    /// A unix socket.
    Unix(UnixListenerStream, PathBuf),
}

impl Listener {
    /// Binds `unix:/path/of/socket` or `address:port`, the latter in the clear.
    ///
    /// The directory of a socket is made; a socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// When the address cannot be read or bound.
    pub async fn bind(address: &str) -> Result<Self> {
        match address.strip_prefix("unix:") {
            Some(path) => Self::bind_unix(Path::new(path)).await,
            None => bind_tcp(address).await.map(|(incoming, address)| Self::Tcp(incoming, address)),
        }
        .with_context(|| format!("bind {address}"))
    }

    /// Binds `address:port`, with TLS.
    ///
    /// # Errors
    /// When the address cannot be read or bound.
    pub async fn bind_tls(address: &str, auth: TlsAuth) -> Result<Self> {
        let bound = bind_tcp(address).await.with_context(|| format!("bind {address}"));
        bound.map(|(incoming, address)| Self::Tls(incoming, address, auth))
    }

    /// The TCP address, with the port that was chosen when 0 was asked for.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) | Self::Tls(_, address, _) => Some(*address),
            Self::Unix(..) => None,
        }
    }

    pub(super) fn auth(&self) -> ListenerAuth {
        match self {
            Self::Tcp(..) | Self::Unix(..) => ListenerAuth::Trusted,
            Self::Tls(_, _, auth) => ListenerAuth::Tls(auth.clone()),
        }
    }

    async fn bind_unix(path: &Path) -> Result<Self> {
        if let Some(directory) = path.parent() {
            let made = tokio::fs::create_dir_all(directory).await;
            made.with_context(|| format!("make the directory {}", directory.display()))?;
        }
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path).await?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        tokio::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).await?;
        SockRef::from(&listener).listen(BACKLOG)?;
        Ok(Self::Unix(UnixListenerStream::new(listener), path.to_owned()))
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, address) => address.fmt(f),
            Self::Tls(_, address, _) => write!(f, "{address} (TLS)"),
            Self::Unix(_, path) => write!(f, "unix:{}", path.display()),
        }
    }
}

async fn bind_tcp(address: &str) -> Result<(TcpIncoming, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    // Once more, since binding has chosen a smaller number.
    SockRef::from(&listener).listen(BACKLOG)?;
    let address = listener.local_addr()?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
    Ok((incoming, address))
}

/// Removes the socket file of a process that is gone.
async fn remove_stale(path: &Path) -> Result<()> {
    if !tokio::fs::symlink_metadata(path).await?.file_type().is_socket() {
        bail!("there is a file that is no socket");
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(tokio::fs::remove_file(path).await?),
        Ok(_) => bail!("another process listens there"),
        Err(error) => Err(error).context("find out whether somebody listens there"),
    }
}
