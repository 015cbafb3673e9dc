//! UDP: the server echoes each datagram after its reply line.

use std::{io, net::SocketAddr};

use tokio::{net::UdpSocket, task::spawn_local};

use crate::wire::Reply;

pub(super) fn bind(name: &str, address: SocketAddr) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let pod = name.to_owned();
    spawn_local(async move {
        let mut buffer = [0; 2048];
        loop {
            // An error is an ICMP message about an earlier answer, whose client has gone.
            if let Ok((length, seen_source)) = socket.recv_from(&mut buffer).await {
                let reply = Reply { pod: pod.clone(), seen_source, endpoint: address };
                let mut answer = format!("{reply}\n").into_bytes();
                answer.extend(&buffer[..length]);
                let _ = socket.send_to(&answer, seen_source).await;
            }
        }
    });
    Ok(())
}
