//! Binds the addresses of HTTP servers: both IP families for an unspecified address, with retries while the address is
//! in use.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hyper::{Request, body::Incoming};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, time::sleep};
use tracing::{info, warn};

use super::{Answer, HttpConnections, HttpServer, bind_error::describe_bind_error};
use crate::{Shutdown, failure::Repeated};

/// The delay between attempts to bind. In an update, the old process has the address until it ends.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Connections that the kernel queues while the server accepts none.
pub(super) const BACKLOG: i32 = 128;

/// What a server does when it cannot bind its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBindError {
    /// It logs the error and retries.
    Retry,
    /// It returns the error.
    Fail,
}

/// Listens at an address. An IPv6 listener takes no IPv4 connections.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    listen(socket(address)?, address)
}

/// Listens at an address that this machine need not have yet, as [`bind`] does otherwise.
///
/// # Errors
/// The address cannot be bound.
pub fn bind_early(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    listen(socket, address)
}

/// Listens at an address; at an unspecified one with one socket for both IP families, or in IPv4 alone on a machine
/// that lacks IPv6. Clients over IPv4 then have IPv4-mapped addresses.
///
/// # Errors
/// The address cannot be bound.
pub fn bind_both_families(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address);
    }

    match bind_dual_stack(address.port()) {
        Err(error) if is_no_such_family(&error) => bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))),
        bound => bound,
    }
}

fn bind_dual_stack(port: u16) -> io::Result<TcpListener> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let socket = socket(any)?;
    socket.set_only_v6(false)?;
    listen(socket, any)
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn listen(socket: Socket, address: SocketAddr) -> io::Result<TcpListener> {
    // Connections in TIME_WAIT from a previous run do not block the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves HTTP at `address` until the shutdown; at both IP families if it is unspecified. `name` is that of the flag
/// with the address, without dashes, and names the server in log lines. Both families share the bounds of connections.
///
/// # Errors
/// The address cannot be bound, with [`OnBindError::Fail`]. A machine that lacks one IP family serves the other.
pub async fn serve_at<A, R>(
    address: SocketAddr,
    name: &'static str,
    on_error: OnBindError,
    answer: A,
    shutdown: Shutdown,
) -> io::Result<()>
where
    A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
    R: Into<Answer> + 'static,
{
    let server = HttpServer::new(name, HttpConnections::default(), answer, shutdown);
    if !address.ip().is_unspecified() {
        return server.serve_at(address, on_error).await;
    }

    let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
    let v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    // Each ends early only with an error, or where the machine lacks its IP family.
    tokio::try_join!(server.clone().serve_at(v4, on_error), server.serve_at(v6, on_error))?;
    Ok(())
}

impl HttpServer {
    /// As [`serve_at`], with one socket.
    async fn serve_at(mut self, address: SocketAddr, on_error: OnBindError) -> io::Result<()> {
        let name = self.name;
        let flag = format!("--{name}");
        let mut binding = Repeated::default();
        while !self.shutdown.is_triggered() {
            match bind(address) {
                Ok(listener) => {
                    info!(server = name, %address, "listening");
                    self.serve(listener).await;
                    return Ok(());
                }
                Err(error) if address.ip().is_unspecified() && is_no_such_family(&error) => {
                    info!(server = name, %address, "not listening: this machine lacks the IP family");
                    return Ok(());
                }
                Err(error) if on_error == OnBindError::Fail => {
                    return Err(io::Error::new(error.kind(), describe_bind_error(&flag, address, &error)));
                }
                Err(error) => {
                    if binding.failed(&error.to_string()).is_news {
                        let error = describe_bind_error(&flag, address, &error);
                        warn!(server = name, error, retry_in_ms = RETRY_DELAY.as_millis(), "cannot listen, retrying");
                    }
                    self.shutdown.run_until_started(sleep(RETRY_DELAY)).await;
                }
            }
        }
        Ok(())
    }
}

/// Whether this machine lacks the IP family, for example because of `ipv6.disable=1`.
fn is_no_such_family(error: &io::Error) -> bool {
    // The kernel lacks the module. `io::ErrorKind` has no equivalent.
    const EAFNOSUPPORT: i32 = nix::errno::Errno::EAFNOSUPPORT as i32;
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener as Blocking;

    use hyper::StatusCode;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;
    use crate::http::{TEXT, response};

    fn hello(_: &Request<Incoming>) -> hyper::Response<String> {
        response(StatusCode::OK, TEXT, "hello".to_owned())
    }

    async fn get(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// A port without a listener.
    fn free_port() -> u16 {
        Blocking::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn unspecified_address_listens_in_both_families() {
        let (_trigger, shutdown) = Shutdown::channel();
        let any = SocketAddr::from(([0, 0, 0, 0], free_port()));
        let server = tokio::spawn(serve_at(any, "test", OnBindError::Retry, hello, shutdown));
        for ip in ["127.0.0.1", "::1"] {
            let address = SocketAddr::new(ip.parse().unwrap(), any.port());
            let answer = loop {
                match get(address).await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert!(answer.ends_with("hello"), "{address}: {answer}");
        }
        server.abort();
    }

    #[tokio::test]
    async fn one_socket_accepts_connections_of_both_families() {
        for unspecified in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind_both_families(unspecified.parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            for ip in ["127.0.0.1", "::1"] {
                let ip: std::net::IpAddr = ip.parse().unwrap();
                let _client = TcpStream::connect((ip, port)).await.unwrap();
                let (_, client) = listener.accept().await.unwrap();
                assert_eq!(client.ip().to_canonical(), ip);
            }
        }
    }

    #[tokio::test]
    async fn address_in_use_is_retried_or_an_error() {
        let taken = Blocking::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (_trigger, shutdown) = Shutdown::channel();
        let error = serve_at(address, "test", OnBindError::Fail, hello, shutdown.clone()).await.unwrap_err();
        let this_process = format!("(pid {}) listens there", std::process::id());
        let parts = [&format!("--test: cannot listen at {address}"), &this_process, "another address with --test"];
        assert!(parts.iter().all(|part| error.to_string().contains(*part)), "{error}");

        tokio::time::pause();
        let server = tokio::spawn(serve_at(address, "test", OnBindError::Retry, hello, shutdown));
        sleep(2 * RETRY_DELAY).await;
        assert!(!server.is_finished());
        drop(taken);
        // Probes of a load balancer may not fail for long.
        sleep(Duration::from_secs(1)).await;
        tokio::time::resume();
        assert!(get(address).await.unwrap().ends_with("hello"));
        server.abort();
    }

    #[tokio::test]
    async fn shutdown_ends_the_server() {
        let (trigger, shutdown) = Shutdown::channel();
        trigger.fire();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        serve_at(any, "test", OnBindError::Retry, hello, shutdown).await.unwrap();
    }
}
