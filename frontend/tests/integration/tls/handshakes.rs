//! Clients that do not complete their TLS handshake.

use std::time::Duration;

use fairlead_frontend::{Config, ConnectionLimits, identity::AuthnOptions};
use proto::v1::Role;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    server::{Server, TIMEOUT},
    unidentified::open,
};

/// The beginning of a ClientHello: a handshake record of 512 bytes, of which 5 come.
const HALF: [u8; 10] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];

/// Far longer than others take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(8);

#[tokio::test]
async fn incomplete_handshakes_do_not_delay_others_and_time_out() {
    let connections = ConnectionLimits { handshake: HANDSHAKE_TIMEOUT, ..ConnectionLimits::default() };
    let server = Server::with(Config { connections, ..Config::default() }, AuthnOptions::default()).await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(&HALF).await.unwrap();
        }
        silent.push(stream);
    }
    let node = server.client(Some(server.authority.node("node-a"))).await;
    node.watch("node-a", Role::Backend).await.unwrap().commit().await;
    assert!(open(&silent).await > 0, "other clients waited until the handshakes timed out");
    for mut stream in silent {
        let mut rest = Vec::new();
        // May fail with a reset: the server has not read everything.
        let _ = timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("the connection is not closed");
    }
}

#[tokio::test]
async fn plaintext_is_rejected() {
    let server = Server::plain().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("the connection is not closed");
    // At most a TLS alert, and no HTTP/2 frame.
    assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
}
