//! Where a server listens: in both families where its address is none in particular, and again as long as somebody else is there.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hyper::{Request, body::Incoming};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, time::sleep};
use tracing::{info, warn};

use super::{Answer, serve};
use crate::Shutdown;

/// How long until an address that could not be had is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How many connections the kernel keeps for a listener that has enough.
const BACKLOG: i32 = 128;

/// What becomes of a server whose address cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It says so and tries again.
    Retry,
    /// It fails.
    Fail,
}

/// Listens at an address. IPv6 is for itself: who wants IPv4 too has another listener for that.
///
/// # Errors
/// When the address cannot be had.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections that linger from before do not keep the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Answers everybody who connects to `address` until the shutdown; where that is unspecified, in both families. `name` is what log
/// lines call it.
///
/// # Errors
/// When the address cannot be had and that is to be an error. A machine without one of the families has the other one.
pub async fn serve_at<A, R>(
    address: SocketAddr,
    name: &'static str,
    taken: Taken,
    answer: A,
    mut shutdown: Shutdown,
) -> io::Result<()>
where
    A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
    R: Into<Answer> + 'static,
{
    let answer = Arc::new(answer);
    let one = |address| one(address, name, taken, answer.clone());
    let all = async {
        if !address.ip().is_unspecified() {
            return one(address).await;
        }
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let [v4, v6] = any.map(|ip| one(SocketAddr::new(ip, address.port())));
        // Either ends only when it must not go on.
        tokio::try_join!(v4, v6).map(drop)
    };
    tokio::select! {
        ended = all => ended,
        () = shutdown.recv() => Ok(()),
    }
}

async fn one<A, R>(address: SocketAddr, name: &'static str, taken: Taken, answer: Arc<A>) -> io::Result<()>
where
    A: Fn(&Request<Incoming>) -> R + Send + Sync + 'static,
    R: Into<Answer> + 'static,
{
    let mut said = None;
    loop {
        match bind(address) {
            Ok(listener) => {
                info!(server = name, %address, "listening");
                serve(listener, name, move |request| answer(request)).await;
                return Ok(());
            }
            Err(error) if address.ip().is_unspecified() && is_no_such_family(&error) => {
                info!(server = name, %address, "not listening: this machine does not have that family");
                return Ok(());
            }
            Err(error) if taken == Taken::Fail => {
                return Err(io::Error::new(error.kind(), format!("{name}: cannot listen at {address}: {error}")));
            }
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    warn!(server = name, %address, error, retry_in = ?RETRY, "cannot listen, trying again");
                    said = Some(error);
                }
                sleep(RETRY).await;
            }
        }
    }
}

/// Whether the machine was told to do without this family.
fn is_no_such_family(error: &io::Error) -> bool {
    // EAFNOSUPPORT, which has no kind of its own: without the module.
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

    async fn asked(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// A port that nobody listens at.
    fn free_port() -> u16 {
        Blocking::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn an_unspecified_address_is_one_of_each_family() {
        let (_trigger, shutdown) = Shutdown::channel();
        let any = SocketAddr::from(([0, 0, 0, 0], free_port()));
        let server = tokio::spawn(serve_at(any, "test", Taken::Retry, hello, shutdown));
        for ip in ["127.0.0.1", "::1"] {
            let address = SocketAddr::new(ip.parse().unwrap(), any.port());
            let answer = loop {
                match asked(address).await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert!(answer.ends_with("hello"), "{address}: {answer}");
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_taken_address_is_an_error_only_where_that_is_wanted() {
        let taken = Blocking::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (_trigger, shutdown) = Shutdown::channel();
        let error = serve_at(address, "test", Taken::Fail, hello, shutdown.clone()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("cannot listen at {address}")), "{error}");

        tokio::time::pause();
        let server = tokio::spawn(serve_at(address, "test", Taken::Retry, hello, shutdown));
        sleep(2 * RETRY).await;
        assert!(!server.is_finished());
        drop(taken);
        sleep(2 * RETRY).await;
        tokio::time::resume();
        assert!(asked(address).await.unwrap().ends_with("hello"));
        server.abort();
    }

    #[tokio::test]
    async fn the_shutdown_ends_it() {
        let (trigger, shutdown) = Shutdown::channel();
        trigger.fire();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        serve_at(any, "test", Taken::Retry, hello, shutdown).await.unwrap();
    }
}
