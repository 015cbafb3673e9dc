//! SCTP: INIT is answered with INIT ACK on a served port and with ABORT on any other, as a host with SCTP would.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use socket2::{Domain, Socket, Type};
use tokio::{net::UdpSocket, task::spawn_local};

use crate::{
    client::probe::strip_ip_header,
    sctp::{Chunk, IPPROTO_SCTP, Packet},
    wire::Reply,
};

struct Responder {
    pod: String,
    address: IpAddr,
    ports: Vec<u16>,
}

pub(super) fn bind(name: &str, address: IpAddr, ports: &[u16]) -> io::Result<()> {
    let local = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(local), Type::RAW, Some(IPPROTO_SCTP.into()))?;
    socket.bind(&local.into())?;
    socket.set_nonblocking(true)?;
    // A raw socket in tokio's type for UDP, which also provides recvfrom and sendto. Its addresses have no port.
    let socket = UdpSocket::from_std(socket.into())?;
    let responder = Responder { pod: name.to_owned(), address, ports: ports.to_vec() };
    spawn_local(async move {
        let mut buffer = [0; 512];
        loop {
            // An error is an ICMP message about an earlier answer, whose client has gone.
            if let Ok((length, source)) = socket.recv_from(&mut buffer).await
                && let Some(answer) = responder.answer(&buffer[..length], source)
            {
                let _ = socket.send_to(&answer.encode(), SocketAddr::new(source.ip(), 0)).await;
            }
        }
    });
    Ok(())
}

// === impl Responder ===

impl Responder {
    fn answer(&self, packet: &[u8], source: SocketAddr) -> Option<Packet> {
        let init = Packet::decode(strip_ip_header(source, packet))?;
        let Chunk::Init { tag } = init.chunk else { return None };
        let chunk = if self.ports.contains(&init.destination_port) {
            let reply = Reply {
                pod: self.pod.clone(),
                seen_source: SocketAddr::new(source.ip(), init.source_port),
                endpoint: SocketAddr::new(self.address, init.destination_port),
            };
            Chunk::InitAck { tag: 1, cookie: reply.to_string().into_bytes() }
        } else {
            Chunk::Abort
        };
        Some(Packet {
            source_port: init.destination_port,
            destination_port: init.source_port,
            verification_tag: tag,
            chunk,
        })
    }
}
