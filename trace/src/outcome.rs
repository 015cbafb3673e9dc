//! What becomes of a packet: every way it may take, and in a few words what that means.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

use crate::packet::Packet;

/// A rule that matched, or a chain that was passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Where the packet is: `prerouting`, `input`, `forward`, `output`, `postrouting`.
    pub hook: &'static str,
    /// Which table and chain, as the tool shows them: `ip fairlead services`, `iptables-nft nat KUBE-SERVICES`.
    pub place: String,
    /// The rule; empty where none decided.
    pub rule: String,
    /// What it does, in words.
    pub does: String,
}

/// What a packet's end is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It goes on to its destination.
    Delivered,
    /// The sender is told that nobody is there.
    Refused {
        /// How it is told: `a TCP reset`.
        with: String,
        /// The rule's comment, or where it is.
        why: String,
    },
    /// It vanishes.
    Dropped {
        /// The rule's comment, or where it is.
        why: String,
    },
}

/// A changed source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Translation {
    /// The new source; `None`: an address of this node that is chosen by the route.
    pub source: Option<IpAddr>,
    /// The rule that decided it.
    pub why: String,
}

/// How IPVS came to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scheduled {
    /// The virtual server: `tcp 10.96.0.1:80`, or the `mark 0xfa000011` of packets.
    pub server: String,
    /// The kernel's name of its scheduler: `rr`.
    pub scheduler: String,
    /// What that goes by.
    pub choice: Choice,
    /// How long a client stays with its endpoint, if it does.
    pub affinity_seconds: Option<u32>,
}

/// What a scheduler goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// One after the other, by weight if it looks at that.
    InTurn,
    /// The same for the same client; which, only its hash tells. Shares are not known.
    ByClient,
    /// Connections that there are, or what else it likes. Shares are not known.
    ByScheduler,
    /// The client has been here before.
    Remembered,
}

/// One way that the packet may take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// Of all ways together 1. Where shares are not known ([`Choice`]) ways are given equal ones.
    pub probability: f64,
    /// What it met.
    pub steps: Vec<Step>,
    /// The endpoint that its destination was translated to.
    pub endpoint: Option<SocketAddr>,
    /// If IPVS chose the endpoint.
    pub scheduled: Option<Scheduled>,
    /// If its source was translated.
    pub masquerade: Option<Translation>,
    /// Its end.
    pub fate: Fate,
    /// What was met that is not understood, or not known here.
    pub unknown: Vec<String>,
}

/// All ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// What was sent.
    pub packet: Packet,
    /// At least one.
    pub paths: Vec<Path>,
}

/// Ways with the same end.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary<'a> {
    /// One of them, with steps that stand for all.
    pub example: &'a Path,
    /// Each endpoint once, with the probability to get there.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// Of all of them together.
    pub probability: f64,
}

// === impl Trace ===

impl Trace {
    /// The ways, joined where they differ in the endpoint only.
    pub fn summaries(&self) -> Vec<Summary<'_>> {
        let mut summaries: Vec<Summary<'_>> = Vec::new();
        for path in &self.paths {
            let same = |summary: &&mut Summary<'_>| {
                let example = summary.example;
                example.fate == path.fate
                    && example.endpoint.is_some() == path.endpoint.is_some()
                    && example.scheduled == path.scheduled
                    && is_same(example.masquerade.as_ref(), path.masquerade.as_ref())
            };
            let summary = match summaries.iter_mut().find(same) {
                Some(summary) => summary,
                None => {
                    summaries.push(Summary { example: path, endpoints: Vec::new(), probability: 0.0 });
                    let last = summaries.len() - 1;
                    &mut summaries[last]
                }
            };
            summary.probability += path.probability;
            if let Some(endpoint) = path.endpoint {
                match summary.endpoints.iter_mut().find(|(known, _)| *known == endpoint) {
                    Some((_, probability)) => *probability += path.probability,
                    None => summary.endpoints.push((endpoint, path.probability)),
                }
            }
        }
        summaries
    }
}

/// The new address differs with the endpoint's interface.
fn is_same(one: Option<&Translation>, other: Option<&Translation>) -> bool {
    one.map(|translation| &translation.why) == other.map(|translation| &translation.why)
}

// === impl Scheduled ===

impl fmt::Display for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.choice {
            Choice::InTurn => "in turn",
            Choice::ByClient => "by the client's address",
            Choice::ByScheduler => "as the scheduler decides",
            Choice::Remembered => return f.write_str("where this client has been before"),
        };
        write!(f, "{how} ({})", self.scheduler)?;
        match self.affinity_seconds {
            Some(seconds) => write!(f, ", where it stays for {seconds} s"),
            None => Ok(()),
        }
    }
}

// === impl Summary ===

impl Summary<'_> {
    fn is_remembered(&self) -> bool {
        self.example.scheduled.as_ref().is_some_and(|scheduled| scheduled.choice == Choice::Remembered)
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.probability < 0.9995 {
            write!(f, "{}: ", percent(self.probability))?;
        }
        match (&self.example.fate, &self.endpoints[..]) {
            (Fate::Refused { with, why }, _) => write!(f, "refused with {with}: {why}")?,
            (Fate::Dropped { why }, _) => write!(f, "dropped: {why}")?,
            (Fate::Delivered, []) => {
                write!(
                    f,
                    "not translated: no rule here takes it for a Service's; it goes to its destination as it is"
                )?;
            }
            (Fate::Delivered, [(known, _)]) if self.is_remembered() => {
                write!(f, "goes to {known}, where this client has been before")?;
            }
            (Fate::Delivered, [(only, _)]) => write!(f, "goes to the only endpoint, {only}")?,
            (Fate::Delivered, endpoints) => {
                let scheduled = self.example.scheduled.as_ref();
                let has_shares = scheduled.is_none_or(|scheduled| scheduled.choice == Choice::InTurn);
                let shown: Vec<_> = endpoints
                    .iter()
                    .map(|(endpoint, share)| match has_shares {
                        true => format!("{endpoint} ({})", percent(*share)),
                        false => endpoint.to_string(),
                    })
                    .collect();
                let how = scheduled.map(|scheduled| format!(", {scheduled}")).unwrap_or_default();
                write!(f, "goes to one of {} endpoints{how}: {}", endpoints.len(), shown.join(", "))?;
            }
        }
        match &self.example.masquerade {
            Some(Translation { source, why }) if self.example.fate == Fate::Delivered => {
                let source = source.map(|source| format!(" as {source}")).unwrap_or_default();
                write!(f, "; masqueraded{source}, because: {why}")
            }
            None if self.example.fate == Fate::Delivered && !self.endpoints.is_empty() => {
                write!(f, "; it keeps its source")
            }
            _ => Ok(()),
        }
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if (percent - percent.round()).abs() < 0.05 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}
