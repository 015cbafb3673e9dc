//! Links, addresses and routes of a cluster, as one `ip -batch` script for each namespace.
//!
//! Each pod has a routed veth of its own, so that all its packets traverse the node's prerouting hook, including those
//! to itself through a VIP. Duplicate address detection is off: addresses would be unusable for a second.

use std::fmt::Write;

use super::{Cluster, Node, Pod};
use crate::plan;

const EVERYWHERE: &[(&str, &str)] = &[
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    // The kernel must send an ICMP error for each rejected packet.
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
];

/// The limits of ICMP errors to all peers, which some kernels have in each namespace.
const ICMP_LIMITS: &[(&str, &str)] = &[("ipv4/icmp_msgs_per_sec", "1000000"), ("ipv4/icmp_msgs_burst", "1000000")];

const ROUTER: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
];

/// Configures all namespaces of `cluster`, from the fabric to the pods.
pub(super) fn configure(cluster: &Cluster) {
    cluster.outside.sysctls(EVERYWHERE);
    for node in &cluster.nodes {
        node.netns.sysctls(&[EVERYWHERE, ROUTER].concat());
        node.netns.sysctls_if_any(ICMP_LIMITS);
        node.pods.iter().for_each(|pod| pod.netns.sysctls(EVERYWHERE));
    }
    cluster.outside.ip(&outside(&cluster.nodes));
    for (number, node) in (1..).zip(&cluster.nodes) {
        node.netns.ip(&node_script(number, node, &cluster.nodes));
        node.pods.iter().for_each(|pod| pod.netns.ip(&pod_script(number, pod)));
    }
}

/// Routes on `outside` to all VIP ranges, through one node.
pub(super) fn vip_routes(node: &Node) -> String {
    let mut script = String::new();
    for ranges in [plan::SERVICE_CIDRS, plan::LOAD_BALANCER_CIDRS, plan::EXTERNAL_CIDRS] {
        for (range, via) in ranges.iter().zip(node.address.both()) {
            line(&mut script, format_args!("route replace {range} via {via}"));
        }
    }
    script
}

/// `outside` contains the bridge and is a client on it. It forwards nothing, so that packets that no node has
/// translated are dropped here.
fn outside(nodes: &[Node]) -> String {
    let mut script = String::new();
    let mut add = |text: String| line(&mut script, format_args!("{text}"));
    add("link set lo up".into());
    // Without snooping: there is no multicast querier that would let neighbour discovery through.
    add("link add fabric type bridge stp_state 0 forward_delay 0 mcast_snooping 0".into());
    add("link set fabric up".into());
    for node in nodes {
        add(format!("link add {} type veth peer name eth0 netns {}", node.name, node.netns.name()));
        add(format!("link set {} master fabric up", node.name));
    }
    add(format!("address add {}/24 dev fabric", plan::OUTSIDE.v4));
    add(format!("address add {}/64 dev fabric nodad", plan::OUTSIDE.v6));
    for source in (1..=plan::CLIENT_SOURCES).map(plan::client_source) {
        add(format!("address add {}/32 dev fabric", source.v4));
        // The kernel does not choose it as a source by itself, as with an IPv4 address outside the subnet.
        add(format!("address add {}/128 dev fabric nodad preferred_lft 0", source.v6));
    }
    for node in nodes {
        for (cidr, via) in node.pod_cidrs.iter().zip(node.address.both()) {
            add(format!("route add {cidr} via {via}"));
        }
    }
    if let Some(first) = nodes.first() {
        add(vip_routes(first));
    }
    script
}

/// A node: an address on the fabric, a route to each other node's pods, a veth to each of its pods, and a default route
/// to `outside`, which VIPs from its own processes match as on a real node.
fn node_script(number: u8, node: &Node, all: &[Node]) -> String {
    let mut script = String::new();
    let mut add = |text: String| line(&mut script, format_args!("{text}"));
    add("link set lo up".into());
    add("link set eth0 up".into());
    add(format!("address add {}/24 dev eth0", node.address.v4));
    add(format!("address add {}/64 dev eth0 nodad", node.address.v6));
    plan::OUTSIDE.both().iter().for_each(|via| add(format!("route add default via {via}")));
    for other in all.iter().filter(|other| other.name != node.name) {
        for (cidr, via) in other.pod_cidrs.iter().zip(other.address.both()) {
            add(format!("route add {cidr} via {via}"));
        }
    }
    let gateway = plan::gateway(number);
    for pod in &node.pods {
        add(format!("link add {} type veth peer name eth0 netns {}", pod.name, pod.netns.name()));
        add(format!("link set {} up", pod.name));
        add(format!("address add {}/32 dev {}", gateway.v4, pod.name));
        add(format!("address add {}/128 dev {} nodad", gateway.v6, pod.name));
        pod.address.both().iter().for_each(|ip| add(format!("route add {ip} dev {}", pod.name)));
    }
    script
}

/// A pod: its addresses on one interface, and a default route through its node.
fn pod_script(number: u8, pod: &Pod) -> String {
    let mut script = String::new();
    let mut add = |text: String| line(&mut script, format_args!("{text}"));
    add("link set lo up".into());
    add("link set eth0 up".into());
    add(format!("address add {}/32 dev eth0", pod.address.v4));
    add(format!("address add {}/128 dev eth0 nodad", pod.address.v6));
    for gateway in plan::gateway(number).both() {
        add(format!("route add {gateway} dev eth0"));
        add(format!("route add default via {gateway} dev eth0"));
    }
    script
}

fn line(script: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(script, "{text}").expect("writing to a String cannot fail");
}
