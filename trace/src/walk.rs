//! The order of things: hook after hook, at each the chains of all tables by their priorities.
//!
//! ```text
//!   arrives ──▶ prerouting ──▶ route ┬─ this node's ──▶ input
//!                                    └─ others' ─────▶ forward ──▶ postrouting
//!   this node ─▶ output ──▶ route again ──▶ postrouting ──┬─ others'
//!                                                         └─ this node's ─▶ prerouting ─▶ input  (over lo, without translation)
//!   IPVS, which lies in input and output ──▶ output ──▶ postrouting
//! ```

use ::iptables::SavedRules;
use anyhow::{Result, bail};
use netlink::nft::{ChainType, Hook};
use proto::model::IpFamily;

use crate::{
    choice::Choices,
    flow::{Decision, Flow},
    iptables, ipvs,
    kernel::{Kernel, Live},
    nft,
    outcome::{Fate, Path, Trace},
    packet::{Entry, Packet},
};

/// The rules of a node.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Of nf_tables, without those that iptables keeps there.
    pub nft: Vec<nft::Table>,
    /// Of iptables, of whichever variant.
    pub iptables: Vec<iptables::Table>,
}

impl Rules {
    /// Reads the rules of nf_tables, and those that iptables has saved.
    ///
    /// # Errors
    /// When the kernel does not answer, or what was saved cannot be read.
    pub fn read(saved: &[SavedRules], kernel: &mut Live) -> Result<Self> {
        let tables: Vec<_> = saved.iter().map(iptables::tables).collect::<Result<_>>()?;
        Ok(Self { nft: nft::read(kernel)?, iptables: tables.concat() })
    }
}

/// A chain that is called at a hook.
#[derive(Clone, Copy, Debug)]
struct Called<'a> {
    /// Where translation is done, for chains that translate; then their own; else their own twice.
    priority: (i32, i32),
    kind: ChainType,
    chain: Chain<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Chain<'a> {
    Nft(&'a nft::Table, &'a str),
    Iptables(&'a iptables::Table, &'a str),
    Ipvs,
}

/// How a packet leaves a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Left {
    On,
    Ended(Fate),
    /// By IPVS.
    Sent,
}

/// `NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC` of `linux/netfilter_ipv4.h`.
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;
/// More ways than that are not followed.
const MOST_PATHS: usize = 20_000;

/// Follows a packet on all the ways it may take.
///
/// # Errors
/// When the kernel does not answer, or there are too many ways.
pub fn trace(rules: &Rules, packet: &Packet, kernel: &mut dyn Kernel) -> Result<Trace> {
    let mut paths = Vec::new();
    let mut next = Some(Choices::new());
    while let Some(mut choices) = next {
        if paths.len() == MOST_PATHS {
            bail!("there are more than {MOST_PATHS} ways");
        }
        let mut flow = Flow::new(packet.clone(), &mut choices, kernel);
        let fate = run(rules, &mut flow)?;
        let Flow { steps, endpoint, scheduled, masquerade, unknown, .. } = flow;
        let probability = choices.probability();
        paths.push(Path { probability, steps, endpoint, scheduled, masquerade, fate, unknown });
        next = choices.next();
    }
    Ok(Trace { packet: packet.clone(), paths })
}

/// One way, to its end.
fn run(rules: &Rules, flow: &mut Flow<'_>) -> Result<Fate> {
    use Translations::{Done, Over};
    let is_own = flow.packet.entry == Entry::Node;
    let first = if is_own { Hook::Output } else { Hook::Prerouting };
    if is_own {
        route(flow);
    }
    let mut left = at(rules, flow, first, Done)?;
    if left == Left::On {
        route(flow);
        let to_this_node = flow.kernel.is_local(flow.packet.destination.ip());
        let rest: &[_] = match (is_own, to_this_node) {
            (false, true) => &[(Hook::Input, Done)],
            (false, false) => &[(Hook::Forward, Done), (Hook::Postrouting, Done)],
            (true, false) => &[(Hook::Postrouting, Done)],
            (true, true) => &[(Hook::Postrouting, Done), (Hook::Prerouting, Over), (Hook::Input, Over)],
        };
        left = pass(rules, flow, rest)?;
    }
    if left == Left::Sent {
        route(flow);
        // Chains that translate destinations have been asked before.
        left = pass(rules, flow, &[(Hook::Output, Over), (Hook::Postrouting, Done)])?;
    }
    Ok(match left {
        Left::Ended(fate) => fate,
        Left::On | Left::Sent => Fate::Delivered,
    })
}

/// Hook after hook, as long as it goes on.
fn pass(rules: &Rules, flow: &mut Flow<'_>, hooks: &[(Hook, Translations)]) -> Result<Left> {
    for (hook, translations) in hooks {
        match at(rules, flow, *hook, *translations)? {
            Left::On => {}
            left => return Ok(left),
        }
    }
    Ok(Left::On)
}

/// Whether chains that translate are asked: each connection asks them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Translations {
    Done,
    Over,
}

fn route(flow: &mut Flow<'_>) {
    flow.out = flow.kernel.interface_towards(flow.packet.destination.ip());
}

/// All chains of a hook, until one decides against the packet.
fn at(rules: &Rules, flow: &mut Flow<'_>, hook: Hook, translations: Translations) -> Result<Left> {
    flow.hook = hook;
    let mut translated = false;
    for called in called(rules, flow.packet.is_v4(), hook) {
        let translates = called.kind == ChainType::Nat;
        if translates && (translated || translations == Translations::Over) {
            continue;
        }
        let before = (flow.endpoint, flow.masquerade.clone(), flow.steps.len());
        let decision = match called.chain {
            Chain::Nft(table, chain) => nft::base(flow, table, chain)?,
            Chain::Iptables(table, chain) => iptables::base(flow, table, chain)?,
            Chain::Ipvs => ipvs::schedule(flow)?,
        };
        let refused = matches!(decision, Decision::Drop { .. } | Decision::Refuse { .. });
        if flow.steps.len() == before.2 && (refused || called.chain.has_rules()) {
            let does = if refused { "no rule matches: its policy is drop" } else { "no rule matches: passed" };
            flow.step(called.chain.place(), String::new(), does.to_owned());
        }
        translated |= translates && (before.0 != flow.endpoint || before.1 != flow.masquerade);
        match decision {
            Decision::Accept => {}
            Decision::Drop { why } => return Ok(Left::Ended(Fate::Dropped { why })),
            Decision::Refuse { with, why } => return Ok(Left::Ended(Fate::Refused { with, why })),
            Decision::Sent => return Ok(Left::Sent),
        }
    }
    Ok(Left::On)
}

/// The chains that are called at a hook for packets of a family, in their order. At the same priority those of nf_tables come first;
/// which were there first, nobody can see.
fn called(rules: &Rules, v4: bool, hook: Hook) -> Vec<Called<'_>> {
    let mut all = Vec::new();
    all.extend(ipvs::priority(hook).map(|priority| (priority, ChainType::Filter, Chain::Ipvs)));
    for table in rules.nft.iter().filter(|table| table.sees(v4)) {
        all.extend(table.bases().filter(|(_, base)| base.hook == hook).map(|(name, base)| {
            let chain = Chain::Nft(table, name);
            (base.priority, base.kind, chain)
        }));
    }
    for table in rules.iptables.iter().filter(|table| (table.program.family == IpFamily::V4) == v4) {
        all.extend(table.base(hook).map(|(name, priority, kind)| (priority, kind, Chain::Iptables(table, name))));
    }
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(own, kind, chain)| {
            let translation = match hook {
                Hook::Prerouting | Hook::Output => NAT_DST,
                _ => NAT_SRC,
            };
            let first = if kind == ChainType::Nat { translation } else { own };
            Called { priority: (first, own), kind, chain }
        })
        .collect();
    all.sort_by_key(|called| called.priority);
    all
}

// === impl Chain ===

impl Chain<'_> {
    fn place(self) -> String {
        match self {
            Self::Nft(table, chain) => table.place(chain),
            Self::Iptables(table, chain) => table.place(chain),
            Self::Ipvs => ipvs::PLACE.to_owned(),
        }
    }

    fn has_rules(self) -> bool {
        match self {
            Self::Nft(table, chain) => table.rules.get(chain).is_some_and(|rules| !rules.is_empty()),
            Self::Iptables(table, chain) => table.rules.get(chain).is_some_and(|rules| !rules.is_empty()),
            Self::Ipvs => false,
        }
    }
}

#[cfg(test)]
mod tests;
