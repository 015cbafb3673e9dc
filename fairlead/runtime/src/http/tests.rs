//! Clients that open connections and leave them idle.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};

use super::*;
use crate::shutdown::Trigger;

struct Server {
    address: SocketAddr,
    connections: HttpConnections,
    shutdown: Trigger,
    /// How many requests it has got.
    asked: Arc<AtomicUsize>,
    task: JoinSet<()>,
}

impl Server {
    fn start() -> Self {
        Self::start_with(ListeningSockets::new())
    }

    fn start_with(sockets: ListeningSockets) -> Self {
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), HttpConnections::default());
        let mut task = JoinSet::new();
        let (shutdown, stopping) = Shutdown::channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let answer = move |request: &Request<Incoming>| {
            count.fetch_add(1, Ordering::Relaxed);
            let ok = response(StatusCode::OK, TEXT, "ok\n".to_owned());
            if request.uri().path() != "/at-shutdown" {
                return Answer::Ready(ok);
            }
            let Closed(mut closed) = request.extensions().get::<Closed>().unwrap().clone();
            let answered = async move {
                closed.recv().await;
                ok
            };
            Answer::Deferred(Duration::from_secs(60), Box::pin(answered))
        };
        let server = HttpServer { sockets, ..HttpServer::new("test", connections.clone(), answer, stopping) };
        task.spawn(server.serve(listener));
        Self { address, connections, shutdown, asked, task }
    }

    async fn connect(&self, source: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// The response to a request from 127.0.0.1.
    async fn get(&self) -> String {
        read(self.ask("/healthz").await).await
    }

    async fn ask(&self, path: &str) -> TcpStream {
        let mut stream = self.connect(Ipv4Addr::LOCALHOST).await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }
}

async fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Answers that wait end with the shutdown, and so do those to connections that the kernel has queued.
#[tokio::test]
async fn shutdown_answers_what_was_asked() {
    let mut server = Server::start();
    let waiting = server.ask("/at-shutdown").await;
    while server.connections.count() > 0 {
        yield_now().await;
    }
    let idle = server.connect(Ipv4Addr::new(127, 0, 0, 2)).await;
    server.shutdown.fire();
    // Not yet accepted, since this test has not awaited anything that the server could run at.
    let queued = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut &queued, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    queued.set_nonblocking(true).unwrap();

    assert!(read(waiting).await.ends_with("ok\n"));
    assert!(read(TcpStream::from_std(queued).unwrap()).await.ends_with("ok\n"));
    server.task.join_next().await.unwrap().unwrap();
    assert_eq!(server.connections.count(), 0);
    drop(idle);
    let refused = TcpStream::connect(server.address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// The kubelet asks for all pods of a node when they end together, beside its probes, and on a busy node it sends its
/// requests long after it has connected.
#[tokio::test]
async fn many_requests_at_once_wait_for_their_answers() {
    const REQUESTS: usize = 310;
    let server = Server::start();
    let mut waiting = Vec::new();
    for _ in 0..REQUESTS {
        waiting.push(server.connect(Ipv4Addr::LOCALHOST).await);
    }
    // All are accepted when a later one is.
    assert!(server.get().await.ends_with("ok\n"));

    for stream in &mut waiting {
        stream.write_all(b"GET /at-shutdown HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    }
    while server.asked.load(Ordering::Relaxed) < REQUESTS + 1 {
        yield_now().await;
    }

    server.shutdown.fire();
    for waiting in waiting {
        assert!(read(waiting).await.ends_with("ok\n"));
    }
}

/// A client that is sent to the same port would reach this server again, and the kubelet follows ten redirects.
#[tokio::test]
async fn answers_that_wait_for_the_end_come_when_no_socket_listens() {
    let other_socket = ListeningSockets::new();
    let server = Server::start_with(other_socket.clone());
    let waiting = server.ask("/at-shutdown").await;
    while server.connections.count() > 0 {
        yield_now().await;
    }

    server.shutdown.fire();
    while TcpStream::connect(server.address).await.is_ok() {}
    assert_eq!(waiting.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(other_socket);
    assert!(read(waiting).await.ends_with("ok\n"));
}

#[tokio::test]
async fn idle_sockets_do_not_silence_the_server() {
    let sources: [fn(u16) -> Ipv4Addr; 2] = [
        |_| Ipv4Addr::LOCALHOST,
        |number| {
            let [high, low] = number.to_be_bytes();
            Ipv4Addr::new(127, 1, high, low)
        },
    ];
    for source in sources {
        let server = Server::start();
        let mut idle = Vec::new();
        for number in 0..1000 {
            let mut stream = server.connect(source(number)).await;
            // Half a request for every second one.
            if number % 2 == 0 {
                // Fails if the connection has been evicted.
                let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n").await;
            }
            idle.push(stream);
            if number % 50 == 0 {
                assert!(server.get().await.ends_with("ok\n"), "{number}");
                assert!(server.connections.count() <= HttpConnections::MAX);
            }
        }
        assert!(server.get().await.ends_with("ok\n"));
    }
}

#[tokio::test]
async fn client_that_does_not_read_does_not_silence_the_server() {
    let server = Server::start();
    let mut unread = Vec::new();
    for _ in 0..300 {
        let mut stream = server.connect(Ipv4Addr::new(127, 0, 0, 2)).await;
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        unread.push(stream);
    }
    assert!(server.get().await.ends_with("ok\n"));
}

#[tokio::test]
async fn request_beyond_its_buffer_is_rejected() {
    let server = Server::start();
    let mut stream = server.connect(Ipv4Addr::LOCALHOST).await;
    let mut sent = 0;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let header = [b"X-Long: ".as_slice(), &[b'x'; 1000], b"\r\n"].concat();
    while sent < 1 << 20 && stream.write_all(&header).await.is_ok() {
        sent += header.len();
        yield_now().await;
    }
    let mut answer = Vec::new();
    // May fail with a reset: the server has not read everything.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

/// A client that waits for its response keeps its connection, whatever others of the same prefix do.
#[tokio::test]
async fn response_that_is_waited_for_is_not_evicted() {
    let server = Server::start();
    let waiting = server.ask("/at-shutdown").await;
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(server.ask("/at-shutdown").await);
        others.push(server.connect(Ipv4Addr::LOCALHOST).await);
        yield_now().await;
    }
    server.shutdown.fire();
    let text = read(waiting).await;
    assert!(text.ends_with("ok\n"), "{text:?}");
}
