//! What must happen to a packet, computed for each question anew from the objects, without any state: slow and simple.

use std::{collections::BTreeMap, net::SocketAddr};

use e2e::{IpFamily, plan};
use ipnet::IpNet;

use crate::{
    cluster::{Cluster, Endpoint, Service},
    question::{Answer, Outcome, Question, Source, VipKind},
};

/// The number of the node that is asked.
const THIS_NODE: u8 = 1;

/// The endpoints of a port, as far as they may get new connections.
struct Endpoints {
    /// Under policy Cluster.
    cluster: Vec<SocketAddr>,
    /// Under policy Local.
    local: Vec<SocketAddr>,
}

/// What Fairlead must do with a packet.
pub(crate) fn answer(cluster: &Cluster, question: &Question) -> Answer {
    let service = question.service.map(|index| &cluster.services[index]);
    let Some(service) = service else { return Answer::one_of([Outcome::Dropped]) };
    if question.kind == VipKind::Loopback || !service.is_served() || !serves_family(service, question) {
        return Answer::one_of([Outcome::Untranslated]);
    }
    let is_port = |port: &&crate::cluster::Port| {
        let number = if question.kind == VipKind::NodePort { port.node_port } else { Some(port.number) };
        number == Some(question.destination.port()) && port.protocol == question.protocol
    };
    let Some(port) = service.ports.iter().find(is_port) else {
        let is_cluster_ip = question.kind == VipKind::ClusterIp;
        return Answer::one_of([if is_cluster_ip { Outcome::Rejected } else { Outcome::Untranslated }]);
    };
    if question.kind == VipKind::LoadBalancerIp {
        if service.load_balancer_ips.iter().any(|ip| ip.is_proxy) {
            return Answer::one_of([Outcome::Untranslated]);
        }
        if !is_in_ranges(service, question) {
            return Answer::one_of([Outcome::Dropped]);
        }
    }
    let endpoints = Endpoints::of(service, port, question);
    let is_pod = matches!(question.source, Source::Pod | Source::RemotePod);
    let is_cluster_ip = question.kind == VipKind::ClusterIp;
    let (used, is_masqueraded) = match (is_cluster_ip, is_pod, question.source) {
        (true, ..) if service.is_internal_local => (&endpoints.local, !is_pod),
        (true, ..) => (&endpoints.cluster, !is_pod),
        (false, ..) if !service.is_external_local => (&endpoints.cluster, true),
        (false, true, _) => (&endpoints.cluster, false),
        (false, false, Source::Node) => (&endpoints.cluster, true),
        (false, false, _) => (&endpoints.local, false),
    };
    if used.is_empty() {
        let others = !endpoints.cluster.is_empty() || !endpoints.local.is_empty();
        return Answer::one_of([if others { Outcome::Dropped } else { Outcome::Rejected }]);
    }
    let to = |endpoint: &SocketAddr| {
        let is_hairpin = endpoint.ip() == question.source_ip();
        // Packets that the node itself receives do not pass the hook that masquerades.
        let is_received = question.source != Source::Node && plan::node(THIS_NODE).both().contains(&endpoint.ip());
        Outcome::To { endpoint: *endpoint, is_masqueraded: (is_masqueraded || is_hairpin) && !is_received }
    };
    Answer::one_of(used.iter().map(to))
}

/// External IPs, load-balancer IPs and node ports need a cluster IP of their family.
fn serves_family(service: &Service, question: &Question) -> bool {
    service.families().any(|family| family == question.family())
}

/// Whether the source may use load-balancer IPs.
fn is_in_ranges(service: &Service, question: &Question) -> bool {
    let ranges: Vec<&IpNet> =
        service.source_ranges.iter().filter(|range| IpFamily::of(&range.addr()) == question.family()).collect();
    ranges.is_empty() || ranges.iter().any(|range| range.contains(&question.source_ip()))
}

// === impl Endpoints ===

impl Endpoints {
    fn of(service: &Service, port: &crate::cluster::Port, question: &Question) -> Self {
        let mut all = BTreeMap::<SocketAddr, &Endpoint>::new();
        for slice in service.slices.iter().filter(|slice| slice.family == question.family()) {
            let is_port = |(name, protocol, _): &&(String, _, u16)| *name == port.name && *protocol == port.protocol;
            let Some((.., number)) = slice.ports.iter().find(is_port) else { continue };
            for endpoint in &slice.endpoints {
                let entry = all.entry(SocketAddr::new(endpoint.ip, *number)).or_insert(endpoint);
                if preference(endpoint) < preference(entry) {
                    *entry = endpoint;
                }
            }
        }
        let ready: BTreeMap<_, _> = all.iter().filter(|(_, endpoint)| is_ready(endpoint)).collect();
        let select = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
            all.iter().filter(|(_, endpoint)| wanted(endpoint)).map(|(address, _)| *address).collect()
        };
        let serves_terminating = |endpoint: &Endpoint| is_terminating(endpoint) && endpoint.serving != Some(false);
        let is_local = |endpoint: &Endpoint| endpoint.node == Some(THIS_NODE);
        let is_hinted = |hints: fn(&Endpoint) -> &[u8]| {
            ready.values().all(|endpoint| !hints(endpoint).is_empty())
                && ready.values().any(|endpoint| hints(endpoint).contains(&THIS_NODE))
        };
        let cluster = if ready.is_empty() {
            select(&serves_terminating)
        } else if is_hinted(|endpoint| &endpoint.node_hints) {
            select(&|endpoint| is_ready(endpoint) && endpoint.node_hints.contains(&THIS_NODE))
        } else if is_hinted(|endpoint| &endpoint.zone_hints) {
            select(&|endpoint| is_ready(endpoint) && endpoint.zone_hints.contains(&THIS_NODE))
        } else {
            select(&is_ready)
        };
        let mut local = select(&|endpoint| is_ready(endpoint) && is_local(endpoint));
        if local.is_empty() {
            local = select(&|endpoint| serves_terminating(endpoint) && is_local(endpoint));
        }
        Self { cluster, local }
    }
}

/// Of several entries of an address and port the smallest counts, or else the first.
fn preference(endpoint: &Endpoint) -> (bool, bool, bool) {
    (is_terminating(endpoint), !is_ready(endpoint), endpoint.serving == Some(false))
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.ready != Some(false)
}

fn is_terminating(endpoint: &Endpoint) -> bool {
    endpoint.terminating == Some(true)
}

#[cfg(test)]
mod tests {
    use proto::model::Protocol;

    use super::*;
    use crate::cluster::{Port, ServiceKind, Slice};

    fn endpoint(ip: &str, node: u8) -> Endpoint {
        let (ip, node) = (ip.parse().unwrap(), Some(node));
        let (ready, serving, terminating) = (Some(true), Some(true), Some(false));
        Endpoint { ip, node, ready, serving, terminating, zone_hints: Vec::new(), node_hints: Vec::new() }
    }

    /// A Service with a node port and policy Local for external traffic.
    fn cluster(endpoints: Vec<Endpoint>) -> Cluster {
        let family = IpFamily::V4;
        let port = Port { name: String::new(), protocol: Protocol::Tcp, number: 80, node_port: Some(30_080) };
        let slice = Slice { family, ports: vec![(String::new(), Protocol::Tcp, 8080)], endpoints };
        let service = Service {
            name: "web".to_owned(),
            kind: ServiceKind::NodePort,
            cluster_ips: vec![plan::cluster_ip(1).ip(family)],
            ports: vec![port],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            is_internal_local: false,
            is_external_local: true,
            affinity_seconds: None,
            is_foreign: false,
            slices: vec![slice],
        };
        Cluster { services: vec![service] }
    }

    fn asked(cluster: &Cluster, source: Source, kind: VipKind, destination: &str) -> String {
        let destination = destination.parse().unwrap();
        let question = Question { source, kind, destination, protocol: Protocol::Tcp, service: Some(0) };
        answer(cluster, &question).to_string()
    }

    #[test]
    fn answers_are_those_of_the_documentation() {
        const NODE_PORT: &str = "172.16.0.11:30080";
        const CLUSTER_IP: &str = "10.96.0.1:80";
        let both = cluster(vec![endpoint("10.244.1.12", 1), endpoint("10.244.2.11", 2)]);
        let elsewhere = cluster(vec![endpoint("10.244.2.11", 2)]);
        let terminating =
            cluster(vec![Endpoint { ready: Some(false), terminating: Some(true), ..endpoint("10.244.1.11", 1) }]);
        let nowhere = cluster(Vec::new());
        for (cluster, source, kind, destination, expected) in [
            (&both, Source::Far, VipKind::NodePort, NODE_PORT, "10.244.1.12:8080"),
            (
                &both,
                Source::Node,
                VipKind::NodePort,
                NODE_PORT,
                "10.244.1.12:8080 masqueraded, 10.244.2.11:8080 masqueraded",
            ),
            (&both, Source::Pod, VipKind::ClusterIp, CLUSTER_IP, "10.244.1.12:8080 masqueraded, 10.244.2.11:8080"),
            (&elsewhere, Source::Far, VipKind::NodePort, NODE_PORT, "dropped"),
            (&elsewhere, Source::Far, VipKind::ClusterIp, CLUSTER_IP, "10.244.2.11:8080 masqueraded"),
            (&terminating, Source::Far, VipKind::NodePort, NODE_PORT, "10.244.1.11:8080"),
            (&nowhere, Source::Far, VipKind::NodePort, NODE_PORT, "rejected"),
            (&nowhere, Source::Far, VipKind::ClusterIp, "10.96.0.1:81", "rejected"),
            (&nowhere, Source::Node, VipKind::Loopback, "127.0.0.1:30080", "untranslated"),
        ] {
            assert_eq!(asked(cluster, source, kind, destination), expected, "{source:?} to {destination}");
        }
    }
}
