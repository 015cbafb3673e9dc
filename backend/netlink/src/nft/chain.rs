//! Chains: regular chains, and base chains, which the kernel calls at a hook.

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The name, at most 255 bytes.
    pub name: String,
    /// The hook of a base chain; `None` for a regular chain, which is reached by `jump` and `goto` only.
    pub base: Option<BaseChain>,
    /// The comment in listings.
    pub comment: Option<String>,
}

impl Chain {
    /// A regular chain.
    pub fn regular(name: impl Into<String>) -> Self {
        Chain { name: name.into(), base: None, comment: None }
    }

    /// A base chain with policy accept. `priority`: see [`priority`].
    pub fn base(name: impl Into<String>, kind: ChainType, hook: Hook, priority: i32) -> Self {
        let base = BaseChain { kind, hook, priority, policy: Policy::Accept };
        Chain { name: name.into(), base: Some(base), comment: None }
    }
}

/// The settings of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// `type`.
    pub kind: ChainType,
    /// `hook`.
    pub hook: Hook,
    /// `priority`: the kernel calls lower ones first.
    pub priority: i32,
    /// The verdict for packets that reach the end of the chain.
    pub policy: Policy,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainType {
    /// Processes every packet.
    Filter,
    /// Processes the first packet of each connection.
    Nat,
    /// Output only: reroutes the packet if its mark or addresses changed.
    Route,
}

impl ChainType {
    /// The name in `NFTA_CHAIN_TYPE`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
            ChainType::Route => "route",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [ChainType::Filter, ChainType::Nat, ChainType::Route].into_iter().find(|kind| kind.name() == name)
    }
}

numbered! {
    /// The hook of a base chain: `enum nf_inet_hooks`.
    Hook or Other {
        /// Received packets, before routing.
        Prerouting = 0 "prerouting",
        /// Packets to local sockets.
        Input = 1 "input",
        /// Forwarded packets.
        Forward = 2 "forward",
        /// Packets from local sockets.
        Output = 3 "output",
        /// Packets to send, after routing.
        Postrouting = 4 "postrouting",
    }
}

numbered! {
    /// The policy of a base chain: `NF_DROP`, `NF_ACCEPT`.
    Policy {
        /// The packet is dropped.
        Drop = 0 "drop",
        /// The packet continues.
        Accept = 1 "accept",
    }
}

/// Priorities with a name in nft: `enum nf_ip_hook_priorities`.
pub mod priority {
    /// Destination NAT.
    pub const DSTNAT: i32 = -100;
    /// Filtering.
    pub const FILTER: i32 = 0;
    /// Source NAT.
    pub const SRCNAT: i32 = 100;
}
