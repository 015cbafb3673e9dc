//! TCP packets outside of the window. To conntrack they belong to no connection, so replies like that would reach the
//! client with the source address of the endpoint, and its kernel would reset the connection.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use crate::{
    client::{DEADLINE, probe::strip_ip_header},
    cluster::Pod,
    deployment::{Backend, Deployment},
    manifests::Service,
    plan::{self, IpFamily},
    tcp_segment::Segment,
};

const PORT: u16 = 80;
const TARGET_PORT: u16 = 8080;
/// Far outside of every window.
const OUTSIDE: u32 = 1 << 30;
/// After this time without a packet, all packets have arrived.
const QUIET: Duration = Duration::from_millis(500);

// === the cases ===

/// They are dropped, and the connection continues.
pub fn replies_outside_of_the_window_are_dropped(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| vec![web(cluster.pod("pod-b-1"))]);
    for family in IpFamily::ALL {
        let sources = sources_of_replies_outside_of_the_window(&deployment, family);
        assert!(sources.is_empty(), "{family}: {sources:?}");
    }
}

/// Where conntrack is liberal they belong to their connection, and nothing is dropped.
pub fn liberal_conntrack_translates_them(backend: Backend) {
    let deployment = Deployment::builder(backend).argument("--conntrack-tcp-be-liberal");
    let deployment = deployment.start(|cluster| vec![web(cluster.pod("pod-b-1"))]);
    for family in IpFamily::ALL {
        let vip = plan::cluster_ip(1).ip(family);
        assert_eq!(sources_of_replies_outside_of_the_window(&deployment, family), [vip], "{family}");
    }
}

// === helpers ===

fn web(pod: &Pod) -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, TARGET_PORT).pods([pod])
}

/// Sends a packet outside of the window from the endpoint to a connected client. Returns the source addresses with
/// which it arrives, and checks that the connection still works.
#[track_caller]
fn sources_of_replies_outside_of_the_window(deployment: &Deployment, family: IpFamily) -> Vec<IpAddr> {
    let cluster = deployment.cluster();
    let (client, server) = (cluster.pod("pod-a-1"), cluster.pod("pod-b-1"));
    let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
    let (mut stream, capture) = client.netns.run(|| {
        let capture = raw_socket(vip);
        let stream = TcpStream::connect_timeout(&vip, DEADLINE).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let mut greeting = String::new();
        BufReader::new(&stream).read_line(&mut greeting).expect("a greeting");
        (stream, capture)
    });
    let port = stream.local_addr().expect("an address").port();
    let (_, last) = segments(&capture, port).pop().expect("the greeting");
    let (source, destination) = (server.address.ip(family), client.address.ip(family));
    let reply = Segment {
        source_port: TARGET_PORT,
        destination_port: port,
        sequence: last.sequence.wrapping_add(OUTSIDE),
        acknowledgment: last.acknowledgment,
    };
    server.netns.run(|| {
        let sent = raw_socket(vip).send_to(&reply.encode(source, destination), SocketAddr::new(destination, 0));
        sent.expect("a packet is sent");
    });
    let arrived = segments(&capture, port).into_iter().filter(|(_, segment)| segment.sequence == reply.sequence);
    let sources = arrived.map(|(source, _)| source).collect();
    stream.write_all(b"x").expect("the connection continues");
    let mut echo = [0];
    stream.read_exact(&mut echo).expect("the connection continues");
    sources
}

/// A raw socket, as the standard library's type for UDP, which also provides `recv_from` and `send_to`.
fn raw_socket(family: SocketAddr) -> UdpSocket {
    let socket = Socket::new(Domain::for_address(family), Type::RAW, Some(socket2::Protocol::TCP)).expect("a socket");
    socket.set_read_timeout(Some(QUIET)).expect("a timeout");
    socket.into()
}

/// The segments to this port that arrive, with their source addresses.
fn segments(capture: &UdpSocket, port: u16) -> Vec<(IpAddr, Segment)> {
    let mut segments = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok((length, source)) = capture.recv_from(&mut buffer) {
        let segment = Segment::decode(strip_ip_header(source, &buffer[..length]));
        segments
            .extend(segment.filter(|segment| segment.destination_port == port).map(|segment| (source.ip(), segment)));
    }
    segments
}
