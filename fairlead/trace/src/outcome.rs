//! The result of a trace: each path that a packet may take, and summaries of them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

use crate::packet::Packet;

/// The least probability that is taken for certain, because it is printed as 100 %.
const CERTAIN: f64 = 0.9995;

/// A rule that matched, or a chain in which none did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceStep {
    /// The hook: `prerouting`, `input`, `forward`, `output`, `postrouting`.
    pub hook: &'static str,
    /// The table and chain, as the tool shows them: `ip fairlead1 services`, `iptables-nft nat KUBE-SERVICES`.
    pub chain: String,
    /// The rule; empty when none matched.
    pub rule: String,
    /// What it does to the packet.
    pub action: String,
}

/// What happens to a packet in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketVerdict {
    /// It is delivered to its destination.
    #[default]
    Delivered,
    /// It is dropped, and the sender receives an error.
    Rejected {
        /// The error: `TCP reset`.
        with: String,
        /// The comment of the rule, or its chain.
        reason: String,
    },
    /// It is dropped.
    Dropped {
        /// The comment of the rule, or its chain.
        reason: String,
    },
}

/// Source address translation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceTranslation {
    /// The new source; `None`: the address of this node that the route selects.
    pub source: Option<IpAddr>,
    /// The rule that requested it.
    pub reason: String,
}

/// How IPVS selected an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IpvsSelection {
    /// The virtual server: `tcp 10.96.0.1:80`, or the `mark 0xfa000011` of packets.
    pub server: String,
    /// The kernel's name of its scheduler: `rr`.
    pub scheduler: String,
    /// Whether a persistent virtual server sends the client to the endpoint of its earlier connections.
    pub is_persistent: bool,
}

/// One path that the packet may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Path {
    /// The sum over all paths is 1. Unknown probabilities (IPVS, neither `rr` nor `wrr`) are taken as equal.
    pub probability: f64,
    /// The rules that matched.
    pub steps: Vec<TraceStep>,
    /// The destination after translation.
    pub endpoint: Option<SocketAddr>,
    /// Set when IPVS selected the endpoint.
    pub scheduled: Option<IpvsSelection>,
    /// Set when the source was translated.
    pub masquerade: Option<SourceTranslation>,
    /// What happens in the end.
    pub verdict: PacketVerdict,
    /// Conditions and targets that could not be evaluated.
    pub unknown: Vec<String>,
}

/// All paths of a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// The packet as sent.
    pub packet: Packet,
    /// At least one.
    pub paths: Vec<Path>,
}

/// Paths with the same verdict that differ in the endpoint only.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSummary<'a> {
    /// One of these paths.
    pub example: &'a Path,
    /// Each endpoint.
    pub endpoints: Vec<PossibleEndpoint>,
    /// The sum over these paths.
    pub probability: f64,
}

/// An endpoint that the packet may be sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct PossibleEndpoint {
    /// Its address and port.
    pub address: SocketAddr,
    /// How likely the packet is sent to it.
    pub probability: f64,
    /// The new source, if the packet is masqueraded and it is known: it depends on the interface of the endpoint.
    pub source: Option<IpAddr>,
}

impl Trace {
    /// The paths, grouped.
    pub fn summaries(&self) -> Vec<PathSummary<'_>> {
        let mut summaries: Vec<PathSummary<'_>> = Vec::new();
        for path in &self.paths {
            match summaries.iter_mut().find(|summary| summary.example.group() == path.group()) {
                Some(summary) => summary.add(path),
                None => {
                    let mut summary = PathSummary { example: path, endpoints: Vec::new(), probability: 0.0 };
                    summary.add(path);
                    summaries.push(summary);
                }
            }
        }
        summaries
    }
}

impl Path {
    /// What paths of one summary have in common. The address of the new source may differ with the interface of the
    /// endpoint.
    fn group(&self) -> (&PacketVerdict, bool, Option<&IpvsSelection>, Option<&str>) {
        let reason = self.masquerade.as_ref().map(|translation| translation.reason.as_str());
        (&self.verdict, self.endpoint.is_some(), self.scheduled.as_ref(), reason)
    }
}

impl PathSummary<'_> {
    fn add(&mut self, path: &Path) {
        self.probability += path.probability;
        let Some(address) = path.endpoint else { return };
        if let Some(endpoint) = self.endpoints.iter_mut().find(|other| other.address == address) {
            endpoint.probability += path.probability;
            return;
        }
        let source = path.masquerade.as_ref().and_then(|translation| translation.source);
        self.endpoints.push(PossibleEndpoint { address, probability: path.probability, source });
    }

    /// Whether the new source depends on the endpoint.
    fn has_several_sources(&self) -> bool {
        self.endpoints.windows(2).any(|pair| pair[0].source != pair[1].source)
    }
}

impl PossibleEndpoint {
    fn describe(&self, with_probability: bool, with_source: bool) -> String {
        let Self { address, probability, source } = self;
        let mut details = Vec::new();
        if with_probability {
            details.push(percent(*probability));
        }
        if with_source && let Some(source) = source {
            details.push(format!("from {source}"));
        }
        if details.is_empty() { address.to_string() } else { format!("{address} ({})", details.join(", ")) }
    }
}

impl IpvsSelection {
    /// Whether the scheduler selects one endpoint after the other, and not by connections or clients.
    fn is_round_robin(&self) -> bool {
        matches!(&*self.scheduler, "rr" | "wrr")
    }
}

impl fmt::Display for IpvsSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_persistent {
            return f.write_str("persistent for this client");
        }
        write!(f, "scheduler {}", self.scheduler)
    }
}

impl fmt::Display for PathSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_several_sources = self.has_several_sources();
        if self.probability < CERTAIN {
            write!(f, "{}: ", percent(self.probability))?;
        }

        match (&self.example.verdict, &self.endpoints[..]) {
            (PacketVerdict::Rejected { with, reason }, _) => write!(f, "rejected with {with}: {reason}")?,
            (PacketVerdict::Dropped { reason }, _) => write!(f, "dropped: {reason}")?,
            (PacketVerdict::Delivered, []) => {
                write!(
                    f,
                    "not translated: no rule handles it as Service traffic; delivered to its destination unchanged"
                )?;
            }
            (PacketVerdict::Delivered, [PossibleEndpoint { address, .. }])
                if self.example.scheduled.as_ref().is_some_and(|scheduled| scheduled.is_persistent) =>
            {
                write!(f, "sent to {address}, the endpoint of earlier connections of this client")?;
            }
            // Other paths lead to other endpoints.
            (PacketVerdict::Delivered, [only]) if self.probability < CERTAIN => write!(f, "sent to {}", only.address)?,
            (PacketVerdict::Delivered, [only]) => write!(f, "sent to the only endpoint, {}", only.address)?,
            (PacketVerdict::Delivered, endpoints) => {
                let scheduled = self.example.scheduled.as_ref();
                let method = scheduled.map(|scheduled| format!(", {scheduled}")).unwrap_or_default();
                let has_probabilities = scheduled.is_none_or(IpvsSelection::is_round_robin);
                let mut shown = Vec::new();
                for endpoint in endpoints {
                    shown.push(endpoint.describe(has_probabilities, has_several_sources));
                }
                write!(f, "sent to one of {} endpoints{method}: {}", endpoints.len(), shown.join(", "))?;
            }
        }

        match &self.example.masquerade {
            Some(SourceTranslation { source, reason }) if self.example.verdict == PacketVerdict::Delivered => {
                write!(f, "; source masqueraded")?;
                if let Some(source) = source
                    && !has_several_sources
                {
                    write!(f, " as {source}")?;
                }
                write!(f, ", by rule: {reason}")
            }
            None if self.example.verdict == PacketVerdict::Delivered && !self.endpoints.is_empty() => {
                write!(f, "; source unchanged")
            }
            _ => Ok(()),
        }
    }
}

fn percent(probability: f64) -> String {
    let percent = probability * 100.0;
    if (percent - percent.round()).abs() < 0.05 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

#[cfg(test)]
mod tests {
    use proto::model::Protocol;

    use super::*;
    use crate::packet::PacketOrigin;

    #[test]
    fn endpoint_of_some_packets_is_not_the_only_one() {
        let endpoint: SocketAddr = "10.244.1.1:8080".parse().unwrap();
        let example = Path { endpoint: Some(endpoint), ..Path::default() };
        let text = |probability| {
            PathSummary {
                example: &example,
                endpoints: vec![PossibleEndpoint { address: endpoint, probability, source: None }],
                probability,
            }
            .to_string()
        };
        assert_eq!(text(1.0), "sent to the only endpoint, 10.244.1.1:8080; source unchanged");
        assert_eq!(text(1.0 / 3.0), "33.3 %: sent to 10.244.1.1:8080; source unchanged");
    }

    #[test]
    fn new_source_is_that_of_each_endpoint_if_they_differ() {
        let path = |endpoint: &str, source: &str| Path {
            probability: 0.5,
            endpoint: Some(endpoint.parse().unwrap()),
            masquerade: Some(SourceTranslation {
                source: Some(source.parse().unwrap()),
                reason: "masquerade".to_owned(),
            }),
            ..Path::default()
        };
        let summaries = |paths: Vec<Path>| -> Vec<String> {
            let (source, destination) = ("192.0.2.1:4321".parse().unwrap(), "192.0.2.80:80".parse().unwrap());
            let packet = Packet { source, destination, protocol: Protocol::Tcp, origin: PacketOrigin::Node };
            Trace { packet, paths }.summaries().iter().map(ToString::to_string).collect()
        };
        let here = path("10.244.1.10:8080", "10.244.1.1");
        let elsewhere = [path("10.244.2.10:8080", "172.18.0.11"), path("10.244.3.10:8080", "172.18.0.11")];
        assert_eq!(
            summaries(elsewhere.to_vec()),
            ["sent to one of 2 endpoints: 10.244.2.10:8080 (50 %), 10.244.3.10:8080 (50 %); source masqueraded as \
              172.18.0.11, by rule: masquerade"]
        );
        assert_eq!(
            summaries(vec![here, elsewhere[0].clone()]),
            ["sent to one of 2 endpoints: 10.244.1.10:8080 (50 %, from 10.244.1.1), 10.244.2.10:8080 (50 %, from \
              172.18.0.11); source masqueraded, by rule: masquerade"]
        );
    }
}
