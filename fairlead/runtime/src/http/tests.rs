//! Clients that open connections and leave them idle.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};

use super::*;

struct Server {
    address: SocketAddr,
    connections: HttpConnections,
    _task: JoinSet<()>,
}

impl Server {
    fn start() -> Self {
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), HttpConnections::default());
        let mut task = JoinSet::new();
        let answer = |_: &Request<Incoming>| response(StatusCode::OK, TEXT, "ok\n".to_owned());
        task.spawn(serve(listener, "test", connections.clone(), answer));
        Self { address, connections, _task: task }
    }

    async fn connect(&self, source: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// The response to a request from 127.0.0.1.
    async fn get(&self) -> String {
        let mut stream = self.connect(Ipv4Addr::LOCALHOST).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
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
        tokio::task::yield_now().await;
    }
    let mut answer = Vec::new();
    // May fail with a reset: the server has not read everything.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
}

/// A client that waits for its response keeps its connection, whatever others of the same prefix do.
#[tokio::test]
async fn response_that_is_waited_for_is_not_evicted() {
    let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let (respond, responds) = watch::channel(false);
    let answer = move |_: &Request<Incoming>| {
        let mut responds = responds.clone();
        let response = async move {
            let _ = responds.wait_for(|responds| *responds).await;
            Response::new("ok\n".to_owned())
        };
        Answer::Deferred(Duration::from_secs(60), Box::pin(response))
    };
    let connections = HttpConnections::default();
    let mut task = JoinSet::new();
    task.spawn(serve(listener, "test", connections.clone(), answer));
    let server = Server { address, connections, _task: task };
    let ask = async |server: &Server| {
        let mut stream = server.connect(Ipv4Addr::LOCALHOST).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        stream
    };
    let mut waiting = ask(&server).await;
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(ask(&server).await);
        others.push(server.connect(Ipv4Addr::LOCALHOST).await);
        tokio::task::yield_now().await;
    }
    respond.send_replace(true);
    let mut text = String::new();
    waiting.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("ok\n"), "{text:?}");
}
