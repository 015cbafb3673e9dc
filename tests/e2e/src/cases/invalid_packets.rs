//! TCP packets outside of the window. To conntrack they belong to no connection, as packets of connections do of which
//! a node sees one direction. NAT does not translate them: a reply reaches the client with the source address of the
//! endpoint, and its kernel resets the connection. IPVS translates them.

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

/// The iptables backend drops them, and the connection continues. The others let them pass.
pub fn replies_outside_of_the_window(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| vec![web(cluster.pod("pod-b-1"))]);
    for family in IpFamily::ALL {
        let mut connection = Connection::open(&deployment, family);
        let sources = connection.sources_of_reply_outside_of_the_window();
        let endpoint = deployment.cluster().pod("pod-b-1").address.ip(family);
        match backend {
            Backend::Nft => assert_eq!(sources, [endpoint], "{family}"),
            Backend::IptablesNft | Backend::IptablesLegacy => {
                assert!(sources.is_empty(), "{family}: {sources:?}");
                connection.assert_continues();
            }
            Backend::Ipvs => {
                assert_eq!(sources, [plan::cluster_ip(1).ip(family)], "{family}");
                connection.assert_continues();
            }
        }
    }
}

/// Where conntrack is liberal they belong to their connection, and nothing is dropped.
pub fn liberal_conntrack_translates_them(backend: Backend) {
    let deployment = Deployment::builder(backend).argument("--conntrack-tcp-be-liberal");
    let deployment = deployment.start(|cluster| vec![web(cluster.pod("pod-b-1"))]);
    for family in IpFamily::ALL {
        let mut connection = Connection::open(&deployment, family);
        let vip = plan::cluster_ip(1).ip(family);
        assert_eq!(connection.sources_of_reply_outside_of_the_window(), [vip], "{family}");
        connection.assert_continues();
    }
}

// === helpers ===

fn web(pod: &Pod) -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, TARGET_PORT).pods([pod])
}

/// A connection of a pod to the endpoint, and all packets that arrive at the pod.
struct Connection<'a> {
    client: &'a Pod,
    server: &'a Pod,
    family: IpFamily,
    vip: SocketAddr,
    stream: TcpStream,
    capture: UdpSocket,
}

impl<'a> Connection<'a> {
    #[track_caller]
    fn open(deployment: &'a Deployment, family: IpFamily) -> Self {
        let cluster = deployment.cluster();
        let (client, server) = (cluster.pod("pod-a-1"), cluster.pod("pod-b-1"));
        let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
        let (stream, capture) = client.netns.run(|| {
            let capture = raw_socket(vip);
            let stream = TcpStream::connect_timeout(&vip, DEADLINE).expect("a connection");
            stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
            let mut greeting = String::new();
            BufReader::new(&stream).read_line(&mut greeting).expect("a greeting");
            (stream, capture)
        });
        Self { client, server, family, vip, stream, capture }
    }

    /// Sends a packet outside of the window from the endpoint to the client. Returns the source addresses with which it
    /// arrives.
    #[track_caller]
    fn sources_of_reply_outside_of_the_window(&mut self) -> Vec<IpAddr> {
        let port = self.stream.local_addr().expect("an address").port();
        let (_, last) = segments(&self.capture, port).pop().expect("the greeting");
        let (source, destination) = (self.server.address.ip(self.family), self.client.address.ip(self.family));
        let reply = Segment {
            source_port: TARGET_PORT,
            destination_port: port,
            sequence: last.sequence.wrapping_add(OUTSIDE),
            acknowledgment: last.acknowledgment,
        };
        let vip = self.vip;
        self.server.netns.run(|| {
            let sent = raw_socket(vip).send_to(&reply.encode(source, destination), SocketAddr::new(destination, 0));
            sent.expect("a packet is sent");
        });
        let arrived =
            segments(&self.capture, port).into_iter().filter(|(_, segment)| segment.sequence == reply.sequence);
        arrived.map(|(source, _)| source).collect()
    }

    #[track_caller]
    fn assert_continues(&mut self) {
        self.stream.write_all(b"x").expect("the connection continues");
        let mut echo = [0];
        self.stream.read_exact(&mut echo).expect("the connection continues");
    }
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
