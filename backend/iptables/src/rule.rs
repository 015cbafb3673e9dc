//! A rule as a struct: conditions and a target.

mod parse;

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;

pub(crate) use parse::{ends_in_quotes, words};

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// As printed after `-A CHAIN`.
    pub text: String,
    /// `--comment`; empty when there is none.
    pub comment: String,
    /// All of them must hold.
    pub matches: Vec<Match>,
    /// The action on packets that match.
    pub target: Target,
}

/// A condition of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    /// Whether `!` precedes it.
    pub negated: bool,
    /// The condition.
    pub condition: Condition,
}

/// Which address, port or interface of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source, or the interface on which the packet arrives.
    Source,
    /// The destination, or the interface on which the packet leaves.
    Destination,
}

/// A mark and the bits that count: `0x4000/0x4000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedMark {
    /// The bits to compare with, or to flip.
    pub value: u32,
    /// The bits that are compared, or cleared before.
    pub mask: u32,
}

/// The condition of a match.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// `-s`, `-d`.
    Address(Side, IpNet),
    /// `-p`, the IANA number.
    Protocol(u8),
    /// `-i`, `-o`: a name, or a prefix followed by `+`.
    Interface(Side, String),
    /// `--sport`, `--dport` and their multiport forms.
    Ports(Side, Vec<RangeInclusive<u16>>),
    /// `-m mark`: the packet's mark.
    Mark(MaskedMark),
    /// `-m connmark`: the mark of the connection.
    ConnMark(MaskedMark),
    /// `--ctstate`: the names of the states.
    State(Vec<String>),
    /// `-m addrtype` with LOCAL: the address belongs to this node.
    Local(Side),
    /// `-m statistic --mode random`: the probability.
    Random(f64),
    /// `-m set`: the packet's element is in an ipset.
    InSet {
        /// The name of the set.
        name: String,
        /// The parts of the element.
        sides: Vec<Side>,
    },
    /// `-m recent --rcheck`: the source is in this list.
    Recent(String),
    /// `-m recent --set`: always holds.
    SetRecent(String),
    /// Anything else, as text.
    Unknown(String),
}

/// The action on packets that match.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// No `-j`: the packet is counted, and the next rule is evaluated.
    None,
    /// ACCEPT.
    Accept,
    /// DROP.
    Drop,
    /// RETURN.
    Return,
    /// REJECT, with its `--reject-with`.
    Reject(String),
    /// `-j` with a chain.
    Jump(String),
    /// `-g` with a chain.
    Goto(String),
    /// MARK: sets bits of the packet's mark.
    Mark(MaskedMark),
    /// `SET --map-set NAME SIDES --map-mark`: the mark becomes that of the element in an ipset.
    MapMark {
        /// The name of the set.
        name: String,
        /// The parts of the element.
        sides: Vec<Side>,
    },
    /// `SET --add-set NAME SIDES`: the packet's element is added to an ipset.
    AddToSet {
        /// The name of the set.
        name: String,
        /// The parts of the element.
        sides: Vec<Side>,
    },
    /// CONNMARK: as `Mark`, for the connection.
    ConnMark(MaskedMark),
    /// `CONNMARK --save-mark`: copies the mark of the packet to the connection, within these masks.
    SaveMark {
        /// `--nfmask`.
        packet: u32,
        /// `--ctmask`.
        connection: u32,
    },
    /// `CONNMARK --restore-mark`: copies the mark of the connection to the packet, within these masks.
    RestoreMark {
        /// `--nfmask`.
        packet: u32,
        /// `--ctmask`.
        connection: u32,
    },
    /// DNAT.
    Dnat {
        /// `None`: only the port is translated.
        address: Option<IpAddr>,
        /// `None`: only the address is translated.
        port: Option<u16>,
    },
    /// SNAT.
    Snat(Option<IpAddr>),
    /// MASQUERADE.
    Masquerade,
    /// `CT --notrack`, NOTRACK: connection tracking ignores the packet, and so does NAT.
    NoTrack,
    /// A target that does not affect where the packet goes: LOG, NFLOG, TRACE, ...
    NoEffect,
    /// Anything else, as text.
    Unknown(String),
}

// === impl MaskedMark ===

impl MaskedMark {
    /// Whether a mark matches.
    #[must_use]
    pub const fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    /// The mark after MARK or CONNMARK.
    #[must_use]
    pub const fn apply(self, mark: u32) -> u32 {
        (mark & !self.mask) ^ self.value
    }
}

// === impl Rule ===

impl Rule {
    /// The chain of a jump or goto.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        match &self.target {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// The first condition, unless negated, for which `read` returns a value.
    pub fn find<'a, T>(&'a self, read: impl FnMut(&'a Condition) -> Option<T>) -> Option<T> {
        let required = self.matches.iter().filter(|found| !found.negated);
        required.map(|found| &found.condition).find_map(read)
    }
}
