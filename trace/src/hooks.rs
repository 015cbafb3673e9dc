//! The hooks that a packet traverses, and at each hook the chains of all tables in the order of their priorities.
//!
//! ```text
//!   received ──▶ prerouting ──▶ route ┬─ to this node ──▶ input
//!                                     └─ to others ─────▶ forward ──▶ postrouting
//!   sent by this node ─▶ output ─▶ route again ─▶ postrouting ┬─ to others
//!                                                             └─ to this node ─▶ prerouting ─▶ input (lo, no NAT)
//!   sent by IPVS, in input or output ─▶ output ─▶ postrouting
//! ```

use ::iptables::SavedRules;
use anyhow::{Result, bail};
use netlink::nft::{ChainType, Hook};
use proto::model::IpFamily;

use crate::{
    choices::Choices,
    iptables, ipvs,
    kernel::{Kernel, LiveKernel},
    nft,
    outcome::{PacketVerdict, Path, Trace},
    packet::{Packet, PacketOrigin},
    traversal::{ChainVerdict, Traversal},
};

/// The rules of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeRules {
    /// The tables of nf_tables, without those of iptables-nft.
    pub nft: Vec<nft::Table>,
    /// The tables of iptables, of both variants.
    pub iptables: Vec<iptables::Table>,
}

impl NodeRules {
    /// Reads the rules of nf_tables, and those that iptables has saved.
    ///
    /// # Errors
    /// When the kernel does not answer, or what was saved cannot be read.
    pub fn read(saved: &[SavedRules], kernel: &mut LiveKernel) -> Result<Self> {
        let tables: Vec<_> = saved.iter().map(iptables::tables).collect::<Result<_>>()?;
        Ok(Self { nft: nft::read(kernel)?, iptables: tables.concat() })
    }
}

/// A base chain, with its position at a hook.
#[derive(Clone, Copy, Debug)]
struct HookedChain<'a> {
    /// For NAT chains the priority at which the kernel does NAT, then their own; for others their own twice.
    priority: (i32, i32),
    kind: ChainType,
    chain: BaseChain<'a>,
}

#[derive(Clone, Copy, Debug)]
enum BaseChain<'a> {
    Nft(&'a nft::Table, &'a str),
    Iptables(&'a iptables::Table, &'a str),
    Ipvs,
}

/// The result of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HookResult {
    Continue,
    Ended(PacketVerdict),
    SentByIpvs,
}

/// `NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC` of `linux/netfilter_ipv4.h`.
const NAT_DST: i32 = -100;
const NAT_SRC: i32 = 100;
/// More paths are not evaluated.
const MAX_PATHS: usize = 20_000;

/// Evaluates all paths that a packet may take.
///
/// # Errors
/// When the kernel cannot be read, or there are too many paths.
pub fn trace(rules: &NodeRules, packet: &Packet, kernel: &mut dyn Kernel) -> Result<Trace> {
    let mut paths = Vec::new();
    let mut next = Some(Choices::new());
    while let Some(mut choices) = next {
        if paths.len() == MAX_PATHS {
            bail!("the packet has more than {MAX_PATHS} possible paths");
        }
        let mut traversal = Traversal::new(packet.clone(), &mut choices, kernel);
        let verdict = run(rules, &mut traversal)?;
        let Traversal { steps, endpoint, scheduled, masquerade, unknown, .. } = traversal;
        let probability = choices.probability();
        paths.push(Path { probability, steps, endpoint, scheduled, masquerade, verdict, unknown });
        next = choices.next();
    }
    Ok(Trace { packet: packet.clone(), paths })
}

/// Evaluates one path.
fn run(rules: &NodeRules, traversal: &mut Traversal<'_>) -> Result<PacketVerdict> {
    use NatChains::{Evaluate, Skip};
    let is_own = traversal.packet.origin == PacketOrigin::Node;
    let first = if is_own { Hook::Output } else { Hook::Prerouting };
    if is_own {
        route(traversal);
    }
    let mut result = at(rules, traversal, first, Evaluate)?;
    if result == HookResult::Continue {
        route(traversal);
        let to_this_node = traversal.kernel.is_local(traversal.packet.destination.ip());
        let rest: &[_] = match (is_own, to_this_node) {
            (false, true) => &[(Hook::Input, Evaluate)],
            (false, false) => &[(Hook::Forward, Evaluate), (Hook::Postrouting, Evaluate)],
            (true, false) => &[(Hook::Postrouting, Evaluate)],
            (true, true) => &[(Hook::Postrouting, Evaluate), (Hook::Prerouting, Skip), (Hook::Input, Skip)],
        };
        result = pass(rules, traversal, rest)?;
    }
    if result == HookResult::SentByIpvs {
        route(traversal);
        // Chains that translate destinations have been evaluated.
        result = pass(rules, traversal, &[(Hook::Output, Skip), (Hook::Postrouting, Evaluate)])?;
    }
    Ok(match result {
        HookResult::Ended(verdict) => verdict,
        HookResult::Continue | HookResult::SentByIpvs => PacketVerdict::Delivered,
    })
}

/// Evaluates hooks until one ends the path.
fn pass(rules: &NodeRules, traversal: &mut Traversal<'_>, hooks: &[(Hook, NatChains)]) -> Result<HookResult> {
    for (hook, nat_chains) in hooks {
        match at(rules, traversal, *hook, *nat_chains)? {
            HookResult::Continue => {}
            result => return Ok(result),
        }
    }
    Ok(HookResult::Continue)
}

/// Whether NAT chains are evaluated: once for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NatChains {
    Evaluate,
    Skip,
}

fn route(traversal: &mut Traversal<'_>) {
    traversal.out = traversal.kernel.output_interface(traversal.packet.destination.ip());
}

/// Evaluates the chains of a hook until one drops, rejects or sends the packet.
fn at(rules: &NodeRules, traversal: &mut Traversal<'_>, hook: Hook, nat_chains: NatChains) -> Result<HookResult> {
    traversal.hook = hook;
    let mut translated = false;
    for hooked in chains_at(rules, traversal.packet.is_v4(), hook) {
        let is_nat = hooked.kind == ChainType::Nat;
        if is_nat && (translated || nat_chains == NatChains::Skip) {
            continue;
        }
        let before = (traversal.endpoint, traversal.masquerade.clone(), traversal.steps.len());
        let verdict = match hooked.chain {
            BaseChain::Nft(table, chain) => nft::base(traversal, table, chain)?,
            BaseChain::Iptables(table, chain) => iptables::base(traversal, table, chain)?,
            BaseChain::Ipvs => ipvs::schedule(traversal)?,
        };
        let is_blocked = matches!(verdict, ChainVerdict::Drop { .. } | ChainVerdict::Reject { .. });
        if traversal.steps.len() == before.2 && (is_blocked || hooked.chain.has_rules()) {
            let action = if is_blocked { "no rule matches, policy drop" } else { "no rule matches, policy accept" };
            traversal.step(hooked.chain.full_name(), String::new(), action.to_owned());
        }
        translated |= is_nat && (before.0 != traversal.endpoint || before.1 != traversal.masquerade);
        match verdict {
            ChainVerdict::Accept => {}
            ChainVerdict::Drop { reason } => return Ok(HookResult::Ended(PacketVerdict::Dropped { reason })),
            ChainVerdict::Reject { with, reason } => {
                return Ok(HookResult::Ended(PacketVerdict::Rejected { with, reason }));
            }
            ChainVerdict::SentByIpvs => return Ok(HookResult::SentByIpvs),
        }
    }
    Ok(HookResult::Continue)
}

/// The chains of a hook for packets of a family, in the order of evaluation. At the same priority those of nf_tables
/// come first: the order in which they were registered cannot be read.
fn chains_at(rules: &NodeRules, v4: bool, hook: Hook) -> Vec<HookedChain<'_>> {
    let mut all = Vec::new();
    all.extend(ipvs::priority(hook).map(|priority| (priority, ChainType::Filter, BaseChain::Ipvs)));
    for table in rules.nft.iter().filter(|table| table.handles(v4)) {
        all.extend(table.bases().filter(|(_, base)| base.hook == hook).map(|(name, base)| {
            let chain = BaseChain::Nft(table, name);
            (base.priority, base.kind, chain)
        }));
    }
    for table in rules.iptables.iter().filter(|table| (table.program.family == IpFamily::V4) == v4) {
        all.extend(table.base(hook).map(|(name, priority, kind)| (priority, kind, BaseChain::Iptables(table, name))));
    }
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(own, kind, chain)| {
            let translation = match hook {
                Hook::Prerouting | Hook::Output => NAT_DST,
                _ => NAT_SRC,
            };
            let priority = if kind == ChainType::Nat { translation } else { own };
            HookedChain { priority: (priority, own), kind, chain }
        })
        .collect();
    all.sort_by_key(|hooked| hooked.priority);
    all
}

// === impl BaseChain ===

impl BaseChain<'_> {
    fn full_name(self) -> String {
        match self {
            Self::Nft(table, chain) => table.full_name(chain),
            Self::Iptables(table, chain) => table.full_name(chain),
            Self::Ipvs => ipvs::NAME.to_owned(),
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
