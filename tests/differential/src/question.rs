//! The questions that all proxies are asked: where does the first packet of a connection go?

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Result;
use e2e::{DualStack, IpFamily, plan};
use iptables::SavedRules;
use proto::model::Protocol;
use trace::{Kernel as _, LiveKernel, NodeRules, Packet, PacketOrigin, PacketVerdict};

use crate::cluster::Cluster;

/// The source port of all packets.
const SOURCE_PORT: u16 = 40_000;
/// A port that no Service has.
const UNUSED_PORT: u16 = 7;
/// Probabilities differ by less than this from equal shares: rules state them with five digits.
const TOLERANCE: f64 = 0.001;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The second pod of the node.
    Pod,
    /// A pod of another node.
    RemotePod,
    /// A process of the node.
    Node,
    /// Another node.
    OtherNode,
    /// A client outside of the cluster, which some source ranges contain.
    Near,
    /// A client outside of the cluster.
    Far,
}

/// What kind of address a packet is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VipKind {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    /// The node's primary address.
    NodePort,
    /// Loopback.
    Loopback,
    /// An address of the service CIDR that no Service has.
    Unallocated,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) source: Source,
    pub(crate) kind: VipKind,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: Protocol,
    /// The index of the Service with this address.
    pub(crate) service: Option<usize>,
}

/// What happens to it: each outcome that is possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    outcomes: BTreeMap<Outcome, Share>,
}

/// Whether the outcomes of an answer are equally probable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Equal,
    /// In units of a ten-thousandth.
    Other(u32),
}

/// What may happen to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    To {
        endpoint: SocketAddr,
        is_masqueraded: bool,
    },
    /// It follows its route.
    Untranslated,
    Rejected,
    Dropped,
}

// === impl Source ===

impl Source {
    const ALL: [Self; 6] = [Self::Pod, Self::RemotePod, Self::Node, Self::OtherNode, Self::Near, Self::Far];

    pub(crate) fn address(self) -> DualStack {
        match self {
            Self::Pod => plan::pod(1, 2),
            Self::RemotePod => plan::pod(2, 1),
            Self::Node => plan::node(1),
            Self::OtherNode => plan::node(2),
            Self::Near => plan::client_source(1),
            Self::Far => plan::client_source(5),
        }
    }
}

// === impl Question ===

impl Question {
    /// All questions about a cluster.
    pub(crate) fn all(cluster: &Cluster) -> Vec<Self> {
        let mut targets = Vec::new();
        let node = plan::node(1);
        for (index, service) in cluster.services.iter().enumerate() {
            let mut vips = Vec::new();
            if service.kind != crate::cluster::ServiceKind::Headless {
                vips.extend(service.cluster_ips.iter().map(|ip| (VipKind::ClusterIp, *ip)));
            }
            vips.extend(service.external_ips.iter().map(|ip| (VipKind::ExternalIp, *ip)));
            vips.extend(service.load_balancer_ips.iter().map(|ip| (VipKind::LoadBalancerIp, ip.ip)));
            for (kind, ip) in vips {
                let ports = service.ports.iter().map(|port| (port.number, port.protocol));
                for (port, protocol) in ports.chain([(UNUSED_PORT, Protocol::Tcp)]) {
                    targets.push((kind, SocketAddr::new(ip, port), protocol, Some(index)));
                }
            }
            for port in &service.ports {
                let Some(number) = port.node_port else { continue };
                for ip in node.both() {
                    targets.push((VipKind::NodePort, SocketAddr::new(ip, number), port.protocol, Some(index)));
                }
                for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
                    targets.push((VipKind::Loopback, SocketAddr::new(ip, number), port.protocol, Some(index)));
                }
            }
        }
        for ip in plan::cluster_ip(77).both() {
            targets.push((VipKind::Unallocated, SocketAddr::new(ip, 80), Protocol::Tcp, None));
        }
        let question = |(kind, destination, protocol, service), source| {
            let is_possible = kind != VipKind::Loopback || source == Source::Node;
            is_possible.then_some(Self { source, kind, destination, protocol, service })
        };
        targets
            .into_iter()
            .flat_map(|target| Source::ALL.into_iter().filter_map(move |from| question(target, from)))
            .collect()
    }

    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(&self.destination.ip())
    }

    pub(crate) fn source_ip(&self) -> IpAddr {
        if self.kind == VipKind::Loopback { self.destination.ip() } else { self.source.address().ip(self.family()) }
    }

    fn packet(&self, kernel: &LiveKernel) -> Packet {
        let source = SocketAddr::new(self.source_ip(), SOURCE_PORT);
        let origin = match self.source {
            Source::Node => PacketOrigin::Node,
            _ => PacketOrigin::Interface(kernel.output_interface(source.ip()).unwrap_or_default()),
        };
        Packet { source, destination: self.destination, protocol: self.protocol, origin }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} to {:?} {} {}", self.source, self.source_ip(), self.kind, self.protocol, self.destination)
    }
}

// === impl Answer ===

impl Answer {
    /// One of these, each as often as the others.
    pub(crate) fn one_of(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        Self { outcomes: outcomes.into_iter().map(|outcome| (outcome, Share::Equal)).collect() }
    }

    /// The only outcome.
    pub(crate) fn only(&self) -> Option<Outcome> {
        (self.outcomes.len() == 1).then(|| self.outcomes.first_key_value().map(|(outcome, _)| *outcome)).flatten()
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.outcomes.keys().copied()
    }

    /// As this answer, without masquerading connections of an endpoint to itself.
    pub(crate) fn without_hairpin(&self, source: IpAddr) -> Self {
        let outcome = |outcome: Outcome| match outcome {
            Outcome::To { endpoint, .. } if endpoint.ip() == source => Outcome::To { endpoint, is_masqueraded: false },
            other => other,
        };
        Self { outcomes: self.outcomes.iter().map(|(of, share)| (outcome(*of), *share)).collect() }
    }

    fn new(probabilities: &BTreeMap<Outcome, f64>) -> Self {
        let equal = 1.0 / probabilities.len() as f64;
        let share = |probability: f64| match (probability - equal).abs() < TOLERANCE {
            true => Share::Equal,
            false => Share::Other((probability * 10_000.0).round() as u32),
        };
        Self { outcomes: probabilities.iter().map(|(outcome, probability)| (*outcome, share(*probability))).collect() }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (outcome, share)) in self.outcomes.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{outcome}")?;
            if let Share::Other(share) = share {
                write!(f, " ({:.2} %)", f64::from(*share) / 100.0)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To { endpoint, is_masqueraded: true } => write!(f, "{endpoint} masqueraded"),
            Self::To { endpoint, is_masqueraded: false } => write!(f, "{endpoint}"),
            Self::Untranslated => f.write_str("untranslated"),
            Self::Rejected => f.write_str("rejected"),
            Self::Dropped => f.write_str("dropped"),
        }
    }
}

/// The answers of the rules in the network namespace of the calling thread. `saved`: those of iptables.
pub(crate) fn answers(saved: &[SavedRules], questions: &[Question]) -> Result<Vec<Answer>> {
    let mut kernel = LiveKernel::open()?;
    let rules = NodeRules::read(saved, &mut kernel)?;
    questions.iter().map(|question| answer(&rules, &mut kernel, question)).collect()
}

fn answer(rules: &NodeRules, kernel: &mut LiveKernel, question: &Question) -> Result<Answer> {
    let packet = question.packet(kernel);
    let trace = trace::trace(rules, &packet, kernel)?;
    let mut probabilities = BTreeMap::<_, f64>::new();
    for path in trace.paths {
        let outcome = match (path.verdict, path.endpoint) {
            (PacketVerdict::Rejected { .. }, _) => Outcome::Rejected,
            (PacketVerdict::Dropped { .. }, _) => Outcome::Dropped,
            (PacketVerdict::Delivered, None) => Outcome::Untranslated,
            (PacketVerdict::Delivered, Some(endpoint)) => {
                Outcome::To { endpoint, is_masqueraded: path.masquerade.is_some() }
            }
        };
        *probabilities.entry(outcome).or_default() += path.probability;
    }
    Ok(Answer::new(&probabilities))
}

/// The question that is answered with the marker's endpoint once its change has been programmed.
pub(crate) fn of_marker(marker: &crate::api::Marker) -> Vec<(Question, Answer)> {
    let pairs = marker.vip.both().into_iter().zip(marker.endpoint.both());
    let question = |(vip, endpoint): (IpAddr, IpAddr)| {
        let destination = SocketAddr::new(vip, marker.port);
        let (source, kind, protocol) = (Source::Pod, VipKind::ClusterIp, Protocol::Tcp);
        let question = Question { source, kind, destination, protocol, service: None };
        (question, Answer::one_of([Outcome::To { endpoint: SocketAddr::new(endpoint, 80), is_masqueraded: false }]))
    };
    pairs.map(question).collect()
}
