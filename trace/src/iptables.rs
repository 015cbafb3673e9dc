//! Rules of iptables, as `iptables-save` prints them: read, and followed.
//!
//! - `parse` makes rules of lines; what it does not know it keeps as such.
//! - `eval` runs a packet through a chain.

mod eval;
mod parse;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;
use netlink::nft::{ChainType, Hook};

pub(crate) use eval::base;
pub use parse::read;

/// One of the tables: `nat`, `filter`, ...
#[derive(Clone, Debug)]
pub struct Table {
    /// As a person would call it: `iptables-nft`.
    pub(crate) program: String,
    pub(crate) v4: bool,
    pub(crate) name: String,
    /// Of built-in chains: what happens to a packet that no rule decided.
    pub(crate) policies: HashMap<String, Policy>,
    pub(crate) rules: HashMap<String, Vec<Rule>>,
}

/// The policy of a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Accept,
    Drop,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    /// The line, without the chain.
    pub(crate) text: String,
    pub(crate) comment: String,
    pub(crate) matches: Vec<Match>,
    pub(crate) target: Target,
}

/// A condition, and whether it is turned round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Match {
    pub(crate) sense: Sense,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    Is,
    IsNot,
}

/// Which address, port or interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    Address(Side, IpNet),
    Protocol(u8),
    /// An interface's name; with `+` at its end a prefix. The source's is where a packet comes in.
    Interface(Side, String),
    Ports(Side, Vec<RangeInclusive<u16>>),
    Mark {
        value: u32,
        mask: u32,
    },
    ConnMark {
        value: u32,
        mask: u32,
    },
    /// `--ctstate`, its words.
    State(Vec<String>),
    /// `addrtype`: whether the address is one of this node.
    Local(Side),
    /// `statistic --mode random`.
    Random(f64),
    /// `set`: whether an element of a set of ipset, of these places.
    InSet {
        name: String,
        sides: Vec<Side>,
    },
    /// `recent`: whether the source is in a list.
    Remembered(String),
    /// `recent --set`: always.
    Remember(String),
    /// Anything else.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// No `-j`: counted, and on.
    None,
    Accept,
    Drop,
    Return,
    Reject(String),
    Jump(String),
    Goto(String),
    Mark {
        value: u32,
        mask: u32,
    },
    /// `SET --map-set ... --map-mark`: the mark that a set of ipset has for these places.
    MapMark {
        name: String,
        sides: Vec<Side>,
    },
    ConnMark {
        value: u32,
        mask: u32,
    },
    /// The mark of the connection becomes that of the packet, as far as the masks (of packet, connection) go.
    SaveMark {
        packet: u32,
        connection: u32,
    },
    /// The other way round.
    RestoreMark {
        packet: u32,
        connection: u32,
    },
    Dnat {
        address: Option<IpAddr>,
        port: Option<u16>,
    },
    Snat(Option<IpAddr>),
    Masquerade,
    /// Something that does nothing to a packet's way: LOG, NFLOG, TRACE, ...
    Harmless,
    Unknown(String),
}

/// The tables, their priorities, and the hooks at which they are called: `enum nf_ip_hook_priorities`.
const TABLES: [(&str, i32, &[Hook]); 5] = [
    ("raw", -300, &[Hook::Prerouting, Hook::Output]),
    ("mangle", -150, &[Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting]),
    ("nat", -100, &[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]),
    ("filter", 0, &[Hook::Input, Hook::Forward, Hook::Output]),
    ("security", 50, &[Hook::Input, Hook::Forward, Hook::Output]),
];
/// `NF_IP_PRI_NAT_SRC`.
const NAT_SRC: i32 = 100;

// === impl Table ===

impl Table {
    /// Its chain that is called at a hook, with priority and kind.
    pub(crate) fn base(&self, hook: Hook) -> Option<(&'static str, i32, ChainType)> {
        let (_, priority, hooks) = TABLES.iter().find(|(name, ..)| *name == self.name)?;
        let chain = match hook {
            _ if !hooks.contains(&hook) => return None,
            Hook::Prerouting => "PREROUTING",
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
            Hook::Output => "OUTPUT",
            Hook::Postrouting => "POSTROUTING",
            Hook::Other(_) => return None,
        };
        let is_there = self.policies.contains_key(chain);
        let kind = if self.name == "nat" { ChainType::Nat } else { ChainType::Filter };
        let source = self.name == "nat" && matches!(hook, Hook::Input | Hook::Postrouting);
        is_there.then_some((chain, if source { NAT_SRC } else { *priority }, kind))
    }

    /// A chain's name, with that of its table.
    pub(crate) fn place(&self, chain: &str) -> String {
        format!("{} {} {chain}", self.program, self.name)
    }
}
