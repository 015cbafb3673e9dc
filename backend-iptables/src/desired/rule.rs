//! Builds rules exactly as `iptables-save` prints them, so that desired and observed rules can be compared as text.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr};

use backend::dataplane::PodMatch;
use ipnet::IpNet;
use proto::model::{IpFamily, Protocol};

/// `XT_MAX_COMMENT_LEN` of `linux/netfilter/xt_comment.h`, without the zero byte.
const MAX_COMMENT: usize = 255;

/// The matches of a rule, in the order in which they are printed.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleBuilder {
    source: String,
    destination: String,
    interface: String,
    protocol: String,
    matches: String,
}

/// Whether a match is negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchSense {
    Is,
    IsNot,
}

impl MatchSense {
    const fn text(self) -> &'static str {
        if matches!(self, Self::Is) { "" } else { "! " }
    }
}

// === impl RuleBuilder ===

impl RuleBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Matches this destination address.
    pub(super) fn to(self, address: IpAddr) -> Self {
        self.within(&IpNet::from(address))
    }

    /// Matches these destination addresses. A CIDR of all addresses adds no match.
    pub(super) fn within(mut self, cidr: &IpNet) -> Self {
        if cidr.prefix_len() > 0 {
            self.destination = format!("-d {cidr} ");
        }
        self
    }

    pub(super) fn from(mut self, sense: MatchSense, cidr: &IpNet) -> Self {
        if cidr.prefix_len() > 0 {
            self.source = format!("{}-s {cidr} ", sense.text());
        }
        self
    }

    /// Matches packets to these pods: one rule for each CIDR or interface; none if pods are not recognized.
    pub(super) fn towards(self, pods: &PodMatch) -> Vec<Self> {
        self.of_pods(pods, |line, cidr| line.within(cidr), "-o")
    }

    /// Matches packets from pods, or all other packets: one rule for each CIDR or interface; none if pods are not
    /// recognized.
    pub(super) fn pods(self, sense: MatchSense, pods: &PodMatch) -> Vec<Self> {
        let option = format!("{}-i", sense.text());
        self.of_pods(pods, |line, cidr| line.from(sense, cidr), &option)
    }

    fn of_pods(mut self, pods: &PodMatch, by_cidr: impl Fn(Self, &IpNet) -> Self, interface_option: &str) -> Vec<Self> {
        let name = match pods {
            PodMatch::Unknown => return Vec::new(),
            PodMatch::Source(cidrs) => return cidrs.iter().map(|cidr| by_cidr(self.clone(), cidr)).collect(),
            PodMatch::Interface(interface) => interface.to_string(),
            PodMatch::InterfacePrefix(prefix) => format!("{prefix}+"),
        };
        self.interface = format!("{interface_option} {name} ");
        vec![self]
    }

    pub(super) fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = format!("-p {} ", protocol.lower());
        self
    }

    /// Matches this protocol and destination port.
    pub(super) fn port(mut self, protocol: Protocol, port: u16) -> Self {
        self = self.protocol(protocol);
        // Writing to a String cannot fail.
        let _ = write!(self.matches, "-m {} --dport {port} ", protocol.lower());
        self
    }

    /// Adds a match, for example `-m conntrack --ctstate NEW`.
    pub(super) fn matching(mut self, options: &str) -> Self {
        self.matches += options;
        self.matches.push(' ');
        self
    }

    /// Adds a comment. Characters that would be escaped are replaced.
    pub(super) fn comment(mut self, text: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || " -_./:;,>[]%()".contains(c);
        let is_plain = text.len() <= MAX_COMMENT && text.chars().all(plain);
        let printed: Cow<'_, str> = if is_plain {
            text.into()
        } else {
            text.chars().map(|c| if plain(c) { c } else { '_' }).take(MAX_COMMENT).collect()
        };

        let needs_no_quotes = printed.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        let quote = if needs_no_quotes { "" } else { "\"" };
        let _ = write!(self.matches, "-m comment --comment {quote}{printed}{quote} ");
        self
    }

    /// Ends the rule with a target.
    pub(super) fn jump(self, target: &str) -> String {
        format!("{}-j {target}", self.matches_text())
    }

    /// Ends the rule with REJECT: TCP with a reset, other protocols with an ICMP error.
    pub(super) fn reject(self, family: IpFamily, protocol: Protocol) -> String {
        self.jump(match (protocol, family) {
            (Protocol::Tcp, _) => "REJECT --reject-with tcp-reset",
            (_, IpFamily::V4) => "REJECT --reject-with icmp-port-unreachable",
            (_, IpFamily::V6) => "REJECT --reject-with icmp6-port-unreachable",
        })
    }

    /// Ends the rule without a target; it serves as a comment.
    pub(super) fn end(self) -> String {
        self.matches_text().trim_end().to_owned()
    }

    fn matches_text(&self) -> String {
        let Self { source, destination, interface, protocol, matches } = self;
        format!("{source}{destination}{interface}{protocol}{matches}")
    }
}
