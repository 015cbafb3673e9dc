//! A rule in the making, written as `iptables-save` prints it, so that what is there can be compared as text.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr};

use backend::dataplane::{InterfaceName, PodMatch};
use ipnet::IpNet;
use proto::model::{IpFamily, Protocol};

/// `XT_MAX_COMMENT_LEN` of `linux/netfilter/xt_comment.h`, without the zero at the end.
const MAX_COMMENT: usize = 255;

/// What a packet must be, in the order in which it is printed.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    source: String,
    destination: String,
    interface: String,
    protocol: String,
    matches: String,
}

/// Whether a match is turned around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sense {
    Is,
    IsNot,
}

impl Sense {
    const fn text(self) -> &'static str {
        match self {
            Self::Is => "",
            Self::IsNot => "! ",
        }
    }
}

// === impl Line ===

impl Line {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// One address.
    pub(super) fn to(self, address: IpAddr) -> Self {
        self.within(&IpNet::from(address))
    }

    /// Any of them; all of a family need no words.
    pub(super) fn within(mut self, cidr: &IpNet) -> Self {
        if cidr.prefix_len() > 0 {
            self.destination = format!("-d {cidr} ");
        }
        self
    }

    pub(super) fn from(mut self, sense: Sense, cidr: &IpNet) -> Self {
        if cidr.prefix_len() > 0 {
            self.source = format!("{}-s {cidr} ", sense.text());
        }
        self
    }

    /// From an address of the node.
    pub(super) fn local_source(mut self) -> Self {
        self.matches += "-m addrtype --src-type LOCAL ";
        self
    }

    /// To an address of the node.
    pub(super) fn local_destination(mut self) -> Self {
        self.matches += "-m addrtype --dst-type LOCAL ";
        self
    }

    fn behind(mut self, sense: Sense, interface: &InterfaceName, end: &str) -> Self {
        self.interface = format!("{}-i {interface}{end} ", sense.text());
        self
    }

    /// From pods or from all others: as many lines as it takes; none when nobody knows who is a pod.
    pub(super) fn pods(self, sense: Sense, pods: &PodMatch) -> Vec<Self> {
        match pods {
            PodMatch::Unknown => Vec::new(),
            PodMatch::Source(cidrs) => cidrs.iter().map(|cidr| self.clone().from(sense, cidr)).collect(),
            PodMatch::Interface(interface) => vec![self.behind(sense, interface, "")],
            PodMatch::InterfacePrefix(prefix) => vec![self.behind(sense, prefix, "+")],
        }
    }

    pub(super) fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = format!("-p {} ", protocol.lower());
        self
    }

    /// The port that a packet is addressed to; [`Self::protocol`] goes with it.
    pub(super) fn port(mut self, protocol: Protocol, port: u16) -> Self {
        self = self.protocol(protocol);
        // Writing to a String cannot fail.
        let _ = write!(self.matches, "-m {} --dport {port} ", protocol.lower());
        self
    }

    /// In the words of its match: `-m conntrack --ctstate NEW`.
    pub(super) fn matching(mut self, words: &str) -> Self {
        self.matches += words;
        self.matches.push(' ');
        self
    }

    /// For people. Only letters that need no escape are left.
    pub(super) fn comment(mut self, text: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || " -_./:;,>[]%()".contains(c);
        let text: Cow<'_, str> = match text.len() <= MAX_COMMENT && text.chars().all(plain) {
            true => text.into(),
            false => text.chars().map(|c| if plain(c) { c } else { '_' }).take(MAX_COMMENT).collect(),
        };
        let bare = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        let quote = if bare { "" } else { "\"" };
        let _ = write!(self.matches, "-m comment --comment {quote}{text}{quote} ");
        self
    }

    /// To another chain or to a target without options.
    pub(super) fn jump(self, target: &str) -> String {
        let Self { source, destination, interface, protocol, matches } = self;
        format!("{source}{destination}{interface}{protocol}{matches}-j {target}")
    }

    /// Refuses; TCP by a reset.
    pub(super) fn reject(self, family: IpFamily, protocol: Protocol) -> String {
        match protocol {
            Protocol::Tcp => self.jump("REJECT --reject-with tcp-reset"),
            Protocol::Udp | Protocol::Sctp => self.reject_any(family),
        }
    }

    /// Refuses, by what every protocol understands.
    pub(super) fn reject_any(self, family: IpFamily) -> String {
        self.jump(match family {
            IpFamily::V4 => "REJECT --reject-with icmp-port-unreachable",
            IpFamily::V6 => "REJECT --reject-with icmp6-port-unreachable",
        })
    }

    /// Without a target: for people.
    pub(super) fn end(self) -> String {
        let Self { source, destination, interface, protocol, matches } = self;
        format!("{source}{destination}{interface}{protocol}{matches}").trim_end().to_owned()
    }
}
