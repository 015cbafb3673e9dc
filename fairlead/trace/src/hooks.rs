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
use netlink::nft::{ChainType, Hook, Policy};
use proto::model::IpFamily;

use crate::{
    choices::Choices,
    iptables, ipvs,
    kernel::{Kernel, LiveKernel},
    nft,
    outcome::{PacketVerdict, Path, Trace},
    packet::{Packet, PacketOrigin},
    table::{Table, nat_priority},
    traversal::{ChainVerdict, Traversal},
};

/// The rules of a node: the tables of nf_tables, without what iptables-nft shows, and the tables of iptables, of both
/// variants.
#[derive(Debug, Default)]
pub struct NodeRules(pub(crate) Vec<Table>);

impl NodeRules {
    /// Reads the rules of nf_tables, and parses the rules that iptables has saved.
    ///
    /// # Errors
    /// When the kernel does not answer, or the saved rules cannot be parsed.
    pub fn read(saved: &[SavedRules], kernel: &mut LiveKernel) -> Result<Self> {
        let saved = saved.iter().map(iptables::read).collect::<Result<Vec<_>>>()?;
        let mut tables = nft::read(kernel, &saved)?;
        for (program, ruleset) in saved {
            tables.extend(iptables::tables(program, ruleset));
        }
        Ok(Self(tables))
    }
}

/// A base chain, or IPVS, with its position at a hook.
#[derive(Debug)]
struct HookedChain<'a> {
    /// For NAT chains the priority at which the kernel does NAT, then their own; for other chains their own twice.
    priority: (i32, i32),
    kind: ChainType,
    /// `None`: IPVS.
    chain: Option<(&'a Table, &'a str, Policy)>,
}

/// Whether NAT chains are evaluated: once for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NatChains {
    Evaluate,
    Skip,
}

/// The priority at which connection tracking sees a packet, at its first hook: `NF_IP_PRI_CONNTRACK`.
const CONNTRACK: i32 = -200;
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
        let verdict = rules.evaluate_path(&mut traversal)?;
        let path = traversal.path;
        paths.push(Path { probability: choices.probability, verdict, ..path });
        next = choices.next();
    }
    Ok(Trace { packet: packet.clone(), paths })
}

impl NodeRules {
    /// Evaluates one path.
    fn evaluate_path(&self, traversal: &mut Traversal<'_>) -> Result<PacketVerdict> {
        use NatChains::{Evaluate, Skip};
        let is_own = traversal.packet.origin == PacketOrigin::Node;
        let first = if is_own { Hook::Output } else { Hook::Prerouting };
        if is_own {
            route(traversal);
        }

        let mut result = self.evaluate_hook(traversal, first, Evaluate)?;
        traversal.track();

        if result == ChainVerdict::Accept {
            route(traversal);
            let to_this_node = traversal.kernel.is_local(traversal.packet.destination.ip());
            let rest: &[_] = match (is_own, to_this_node) {
                (false, true) => &[(Hook::Input, Evaluate)],
                (false, false) => &[(Hook::Forward, Evaluate), (Hook::Postrouting, Evaluate)],
                (true, false) => &[(Hook::Postrouting, Evaluate)],
                (true, true) => &[(Hook::Postrouting, Evaluate), (Hook::Prerouting, Skip), (Hook::Input, Skip)],
            };
            result = self.evaluate_hooks(traversal, rest)?;
        }

        if result == ChainVerdict::SentByIpvs {
            route(traversal);
            // Chains that translate destinations have been evaluated.
            result = self.evaluate_hooks(traversal, &[(Hook::Output, Skip), (Hook::Postrouting, Evaluate)])?;
        }

        Ok(match result {
            ChainVerdict::Ended(verdict) => verdict,
            ChainVerdict::Accept | ChainVerdict::SentByIpvs => PacketVerdict::Delivered,
        })
    }

    /// Evaluates hooks until one does not accept the packet.
    fn evaluate_hooks(&self, traversal: &mut Traversal<'_>, hooks: &[(Hook, NatChains)]) -> Result<ChainVerdict> {
        for (hook, nat_chains) in hooks {
            match self.evaluate_hook(traversal, *hook, *nat_chains)? {
                ChainVerdict::Accept => {}
                verdict => return Ok(verdict),
            }
        }
        Ok(ChainVerdict::Accept)
    }

    /// Evaluates the chains of a hook until one does not accept the packet.
    fn evaluate_hook(&self, traversal: &mut Traversal<'_>, hook: Hook, nat_chains: NatChains) -> Result<ChainVerdict> {
        traversal.hook = hook;
        let mut is_translated = false;
        for HookedChain { priority: (_, priority), kind, chain } in self.chains_of_hook(traversal.packet.family(), hook)
        {
            if priority >= CONNTRACK {
                traversal.track();
            }
            let is_nat = kind == ChainType::Nat;
            if is_nat && (is_translated || nat_chains == NatChains::Skip || traversal.is_untracked()) {
                continue;
            }

            let endpoint_before = traversal.path.endpoint;
            let masquerade_before = traversal.path.masquerade.clone();
            let verdict = match chain {
                Some((table, name, policy)) => evaluate_base_chain(traversal, table, name, policy)?,
                None => ipvs::schedule(traversal)?,
            };
            if verdict != ChainVerdict::Accept {
                return Ok(verdict);
            }

            let has_changed =
                endpoint_before != traversal.path.endpoint || masquerade_before != traversal.path.masquerade;
            is_translated |= is_nat && has_changed;
        }
        Ok(ChainVerdict::Accept)
    }

    /// The chains of a hook for packets of a family, in the order of evaluation. At the same priority the chains of
    /// nf_tables come first, because the order in which chains were registered cannot be read.
    fn chains_of_hook(&self, family: IpFamily, hook: Hook) -> Vec<HookedChain<'_>> {
        let mut all = Vec::new();
        if let Some(priority) = ipvs::priority(hook) {
            all.push(HookedChain { priority: (priority, priority), kind: ChainType::Filter, chain: None });
        }
        for table in self.0.iter().filter(|table| table.family.is_none_or(|of| of == family)) {
            for (name, base) in table.base_chains.iter().filter(|(_, base)| base.hook == hook) {
                let priority = if base.kind == ChainType::Nat { nat_priority(hook) } else { base.priority };
                let chain = Some((table, name.as_str(), base.policy));
                all.push(HookedChain { priority: (priority, base.priority), kind: base.kind, chain });
            }
        }
        all.sort_by_key(|hooked| hooked.priority);
        all
    }
}

/// Evaluates a base chain. Shows its policy if no rule of it is shown.
fn evaluate_base_chain(
    traversal: &mut Traversal<'_>,
    table: &Table,
    name: &str,
    policy: Policy,
) -> Result<ChainVerdict> {
    let chain = table.full_name(name);
    let steps = traversal.path.steps.len();
    let verdict = match (table.evaluate(traversal, name, 0)?, policy) {
        (Some(verdict), _) => verdict,
        (None, Policy::Accept) => ChainVerdict::Accept,
        (None, Policy::Drop) => {
            ChainVerdict::Ended(PacketVerdict::Dropped { reason: format!("the policy of {chain}") })
        }
    };

    let is_dropped = verdict != ChainVerdict::Accept;
    if traversal.path.steps.len() == steps && (is_dropped || table.rule_count(name) > 0) {
        let policy = if is_dropped { "drop" } else { "accept" };
        traversal.step(chain, String::new(), format!("no rule matches, policy {policy}"));
    }
    Ok(verdict)
}

fn route(traversal: &mut Traversal<'_>) {
    traversal.out = traversal.kernel.output_interface(traversal.packet.destination.ip());
}

#[cfg(test)]
mod tests;
