//! Clients that open a connection and do not go on.

use std::time::Duration;

use proto::v1::Role;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::server::{PATIENCE, Server};

/// The beginning of a ClientHello: a handshake record of 512 bytes, of which 5 come.
const HALF: [u8; 10] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];

/// Shorter than a handshake may take.
const SOON: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_client_that_does_not_go_on_delays_nobody_and_is_cut_off() {
    let server = Server::plain().await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(&HALF).await.unwrap();
        }
        silent.push(stream);
    }
    let others = async {
        let node = server.client(Some(server.authority.node("node-a"))).await;
        node.watch("node-a", Role::Backend).await.unwrap().commit().await;
    };
    timeout(SOON, others).await.expect("the others are delayed");
    for mut stream in silent {
        let mut rest = Vec::new();
        // The end may be hard: not all that was sent has been read.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is not cut off");
    }
}

#[tokio::test]
async fn plaintext_is_no_way_in() {
    let server = Server::plain().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("it is not cut off");
    // An alert at most: no frame of HTTP/2, of which the first would be its settings.
    assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
}
