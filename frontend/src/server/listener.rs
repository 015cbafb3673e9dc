//! Where clients connect: a TCP address or a unix socket.

use std::{
    fmt,
    io::ErrorKind,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

/// How long a connection is silent before the kernel probes it, besides HTTP/2's own probes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// A bound address. Bind first and serve later, so that an address in use is seen at once.
#[derive(Debug)]
pub enum Listener {
    /// A TCP address.
    Tcp(TcpIncoming, SocketAddr),
    /// A unix socket.
    Unix(UnixListenerStream, PathBuf),
}

impl Listener {
    /// Binds `unix:/path/of/socket` or `address:port`.
    ///
    /// The directory of a socket is made; a socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// When the address cannot be read or bound.
    pub async fn bind(address: &str) -> Result<Self> {
        match address.strip_prefix("unix:") {
            Some(path) => Self::bind_unix(Path::new(path)).await,
            None => Self::bind_tcp(address).await,
        }
        .with_context(|| format!("bind {address}"))
    }

    /// The TCP address, with the port that was chosen when 0 was asked for.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(..) => None,
        }
    }

    async fn bind_tcp(address: &str) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let incoming =
            TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
        Ok(Self::Tcp(incoming, address))
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
        Ok(Self::Unix(UnixListenerStream::new(listener), path.to_owned()))
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, address) => address.fmt(f),
            Self::Unix(_, path) => write!(f, "unix:{}", path.display()),
        }
    }
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
