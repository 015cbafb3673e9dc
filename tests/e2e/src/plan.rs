//! The addresses of a test cluster, in both families. Namespaces are private to a cluster, so all clusters use the same
//! ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use proto::model::IpFamily;

/// The fabric that joins the nodes and the outside client.
pub const FABRIC: [&str; 2] = ["172.16.0.0/24", "fd00:172:16::/64"];
/// The cluster IPs of services.
pub const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// The pods of all nodes.
pub const CLUSTER_CIDRS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
/// The addresses of load balancers in front of the cluster.
pub const LOAD_BALANCER_CIDRS: [&str; 2] = ["192.0.2.0/24", "2001:db8:192::/64"];
/// The external IPs of services.
pub const EXTERNAL_CIDRS: [&str; 2] = ["198.51.100.0/24", "2001:db8:198::/64"];
/// The number of additional source addresses of the outside namespace ([`client_source`]).
pub const CLIENT_SOURCES: u8 = 8;
/// The outside client's own address.
pub const OUTSIDE: DualStack =
    DualStack::new(Ipv4Addr::new(172, 16, 0, 1), Ipv6Addr::new(0xfd00, 0x172, 0x16, 0, 0, 0, 0, 1));

/// An IPv4 and an IPv6 address of one host or VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DualStack {
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address.
    pub v6: Ipv6Addr,
}

// === impl DualStack ===

impl DualStack {
    /// Both addresses.
    pub const fn new(v4: Ipv4Addr, v6: Ipv6Addr) -> Self {
        Self { v4, v6 }
    }

    /// The address in one family.
    pub fn ip(self, family: IpFamily) -> IpAddr {
        match family {
            IpFamily::V4 => self.v4.into(),
            IpFamily::V6 => self.v6.into(),
        }
    }

    /// Both, IPv4 first.
    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

// === addresses by number ===
// The last part is written with the same digits in both families: decimal in IPv4, hexadecimal in IPv6.

/// The address of node `node` (from 1) on the fabric.
pub fn node(node: u8) -> DualStack {
    let host = 10 + node;
    DualStack::new(Ipv4Addr::new(172, 16, 0, host), v6(&format!("fd00:172:16::{host}")))
}

/// The address by which the pods of node `node` (from 1) reach their node.
pub fn gateway(node: u8) -> DualStack {
    DualStack::new(Ipv4Addr::new(10, 244, node, 1), v6(&format!("fd00:10:244:{node}::1")))
}

/// The address of pod `pod` (from 1) of node `node` (from 1).
pub fn pod(node: u8, pod: u8) -> DualStack {
    let host = 10 + pod;
    DualStack::new(Ipv4Addr::new(10, 244, node, host), v6(&format!("fd00:10:244:{node}::{host}")))
}

/// The pod CIDRs of node `node` (from 1), IPv4 first.
pub fn pod_cidrs(node: u8) -> [String; 2] {
    [format!("10.244.{node}.0/24"), format!("fd00:10:244:{node}::/64")]
}

/// An additional source address of the outside namespace, from 1 to [`CLIENT_SOURCES`].
pub fn client_source(number: u8) -> DualStack {
    DualStack::new(Ipv4Addr::new(203, 0, 113, number), v6(&format!("2001:db8:203::{number}")))
}

/// A cluster IP: `number` in both service CIDRs.
pub fn cluster_ip(number: u8) -> DualStack {
    DualStack::new(Ipv4Addr::new(10, 96, 0, number), v6(&format!("fd00:10:96::{number}")))
}

/// A load balancer's address.
pub fn load_balancer_ip(number: u8) -> DualStack {
    DualStack::new(Ipv4Addr::new(192, 0, 2, number), v6(&format!("2001:db8:192::{number}")))
}

/// An external IP.
pub fn external_ip(number: u8) -> DualStack {
    DualStack::new(Ipv4Addr::new(198, 51, 100, number), v6(&format!("2001:db8:198::{number}")))
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an IPv6 address")
}
