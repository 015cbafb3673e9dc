//! Connections that are not used for calls.

use std::time::Duration;

use fairlead_frontend::{Config, ConnectionLimits, object::SourceUpdate};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    BAD_CLIENTS, TIMEOUT,
    client::Client,
    fixture::{Server, slice},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The well-behaved client needs less, also on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a client sends first.
#[derive(Clone, Copy, Debug)]
enum Opening {
    Silent,
    Half,
    Garbage,
    /// Sends the preface and SETTINGS, but makes no call.
    Idle,
}

impl Opening {
    async fn connect(self, server: &Server) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let bytes = match self {
            Self::Silent => Vec::new(),
            Self::Half => PREFACE[..10].to_vec(),
            Self::Garbage => vec![0xff; 64],
            Self::Idle => [PREFACE, SETTINGS].concat(),
        };
        stream.write_all(&bytes).await.unwrap();
        stream
    }
}

async fn are_closed(opening: Opening, limits: ConnectionLimits) {
    let server = Server::start(Config { connections: limits, ..Config::default() }, 5).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for _ in 0..BAD_CLIENTS {
        bad.push(opening.connect(&server).await);
    }
    server.check_round(&mut good, &baseline).await;
    for mut stream in bad {
        let mut rest = Vec::new();
        // May fail with a reset: the server has not read everything.
        let _ = timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("the connection is not closed");
    }
    // The well-behaved client is idle for longer and stays connected.
    sleep(SHORT_TIMEOUT * 5 / 4).await;
    server.updates.send(SourceUpdate::Apply(slice(2, 3))).await.unwrap();
    good.change().await;
}

#[tokio::test]
async fn connection_with_another_protocol_is_closed() {
    are_closed(Opening::Garbage, ConnectionLimits::default()).await;
}

#[tokio::test]
async fn connection_without_a_call_is_closed() {
    for opening in [Opening::Silent, Opening::Half, Opening::Idle] {
        are_closed(opening, ConnectionLimits { idle: SHORT_TIMEOUT, ..ConnectionLimits::default() }).await;
    }
}

#[tokio::test]
async fn connection_with_a_slow_preface_is_closed() {
    let limits = ConnectionLimits { idle: SHORT_TIMEOUT, ..ConnectionLimits::default() };
    let server = Server::start(Config { connections: limits, ..Config::default() }, 5).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let trickle = async {
        for byte in PREFACE {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(SHORT_TIMEOUT / 4).await;
        }
        panic!("the whole preface was accepted");
    };
    timeout(TIMEOUT, trickle).await.unwrap();
}
