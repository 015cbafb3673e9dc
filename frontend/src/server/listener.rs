//! Listening sockets: a TCP address with or without TLS, or a unix socket.

use std::{
    fmt,
    fs::Permissions,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use runtime::http::{bind_both_families, describe_bind_error};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

use super::authn::TlsAuth;

/// The flag of the commands that has the address.
const FLAG: &str = "--listen";
/// The mode of a unix socket: its owner and group may connect, and are trusted.
const SOCKET_MODE: u32 = 0o660;

/// How many connections may wait to be accepted, up to `net.core.somaxconn`: when another frontend stops, all its nodes
/// reconnect at once.
const BACKLOG: i32 = 4096;

/// A bound address, with the port that the kernel chose if 0 was given. Binding is apart from serving, so that an
/// address in use is reported at the start.
#[derive(Debug)]
pub enum Listener {
    /// A TCP address without TLS: every client that can reach it is trusted.
    Tcp(TcpIncoming, SocketAddr),
    /// A TCP address with TLS, for clients that [`TlsAuth`] identifies.
    Tls(TcpIncoming, SocketAddr, TlsAuth),
    /// A unix socket.
    Unix(UnixListenerStream, PathBuf),
}

impl Listener {
    /// Binds `unix:/path/of/socket`, or `address:port` without TLS; an unspecified address in both IP families.
    ///
    /// The directory of a socket is created. A socket file without a listening process is replaced.
    ///
    /// # Errors
    /// When the address is invalid or cannot be bound.
    pub async fn bind(address: &str) -> Result<Self> {
        match address.strip_prefix("unix:") {
            Some(path) => {
                Self::bind_unix(Path::new(path)).await.map_err(|error| describe_socket_error(address, &error))
            }
            None => bind_tcp(address).await.map(|(incoming, address)| Self::Tcp(incoming, address)),
        }
    }

    /// Binds `address:port` with TLS; an unspecified address in both IP families.
    ///
    /// # Errors
    /// When the address is invalid or cannot be bound.
    pub async fn bind_tls(address: &str, auth: TlsAuth) -> Result<Self> {
        bind_tcp(address).await.map(|(incoming, address)| Self::Tls(incoming, address, auth))
    }

    /// How it identifies its clients. `None`: not at all, every client is trusted.
    pub(super) fn auth(&self) -> Option<TlsAuth> {
        match self {
            Self::Tcp(..) | Self::Unix(..) => None,
            Self::Tls(_, _, auth) => Some(auth.clone()),
        }
    }

    async fn bind_unix(path: &Path) -> Result<Self> {
        if let Some(directory) = path.parent() {
            let created = tokio::fs::create_dir_all(directory).await;
            created.with_context(|| format!("cannot create the directory {}", directory.display()))?;
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

/// Why a unix socket cannot be bound, and what to do.
fn describe_socket_error(address: &str, error: &Error) -> Error {
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    let advice = match kind {
        Some(ErrorKind::PermissionDenied) => {
            format!("run as root, or set a path in a directory that this user may write to with {FLAG} unix:/PATH")
        }
        _ => format!("set another address with {FLAG}"),
    };
    anyhow!("{FLAG}: cannot listen at {address}: {error:#}; {advice}")
}

async fn bind_tcp(address: &str) -> Result<(TcpIncoming, SocketAddr)> {
    let bound = match address.parse() {
        Ok(address) => bind_both_families(address),
        // A host name.
        Err(_) => TcpListener::bind(address).await,
    };
    let listener = bound.map_err(|error| anyhow!(describe_bind_error(FLAG, address, &error)))?;

    // Again, because binding has set a smaller backlog.
    SockRef::from(&listener).listen(BACKLOG)?;
    let address = listener.local_addr()?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok((incoming, address))
}

/// The address of a client: of one over IPv4 the IPv4 address, also at a socket of both IP families. `None`: it has
/// disconnected.
pub(super) fn client_address(stream: &TcpStream) -> Option<SocketAddr> {
    let address = stream.peer_addr().ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Removes the socket file of a process that has ended.
async fn remove_stale(path: &Path) -> Result<()> {
    if !tokio::fs::symlink_metadata(path).await?.file_type().is_socket() {
        bail!("the file exists and is not a socket");
    }

    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(tokio::fs::remove_file(path).await?),
        Ok(stream) => {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            bail!("another process{pid} listens there")
        }
        Err(error) => Err(error).context("check whether another process listens on it"),
    }
}
