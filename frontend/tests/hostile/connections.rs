//! Connections that are there for nothing.

use std::time::Duration;

use fairlead_frontend::{Config, ConnectionLimits, object::SourceUpdate};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{BAD, PATIENCE, client::Client, cluster::slice, fixture::Server};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const SHORT: Duration = Duration::from_millis(300);

/// How a client begins.
#[derive(Clone, Copy, Debug)]
enum Beginning {
    Silent,
    Half,
    Garbage,
    /// Begins well, and never calls.
    Idle,
}

impl Beginning {
    async fn connect(self, server: &Server) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let said = match self {
            Self::Silent => Vec::new(),
            Self::Half => PREFACE[..10].to_vec(),
            Self::Garbage => vec![0xff; 64],
            Self::Idle => [PREFACE, SETTINGS].concat(),
        };
        stream.write_all(&said).await.unwrap();
        stream
    }
}

async fn are_closed(beginning: Beginning, limits: ConnectionLimits) {
    let server = Server::start(Config { connections: limits, ..Config::default() }, 5).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for _ in 0..BAD {
        bad.push(beginning.connect(&server).await);
    }
    server.beside(&mut good, &alone).await;
    for mut stream in bad {
        let mut rest = Vec::new();
        // The end may be hard: not all that was sent has been read.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is not closed");
    }
    // Quiet for longer than any of that, and still there.
    sleep(2 * SHORT).await;
    server.updates.send(SourceUpdate::Apply(slice(2, 3))).await.unwrap();
    good.change().await;
}

#[tokio::test]
async fn without_a_word_of_http2() {
    for beginning in [Beginning::Silent, Beginning::Half] {
        are_closed(beginning, ConnectionLimits { preface: SHORT, ..ConnectionLimits::default() }).await;
    }
}

#[tokio::test]
async fn with_something_else_than_http2() {
    are_closed(Beginning::Garbage, ConnectionLimits::default()).await;
}

#[tokio::test]
async fn without_a_call() {
    are_closed(Beginning::Idle, ConnectionLimits { idle: SHORT, ..ConnectionLimits::default() }).await;
}

#[tokio::test]
async fn a_byte_now_and_then_is_no_beginning() {
    let limits = ConnectionLimits { preface: SHORT, ..ConnectionLimits::default() };
    let server = Server::start(Config { connections: limits, ..Config::default() }, 5).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let trickle = async {
        for byte in PREFACE {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(SHORT / 4).await;
        }
        panic!("all of it was taken");
    };
    timeout(PATIENCE, trickle).await.unwrap();
}
