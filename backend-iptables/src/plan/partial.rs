//! The difference between the applied state and an update of some service ports, or the first part of it.

use std::collections::{BTreeMap, BTreeSet};

use backend::driver::{ServicePortUpdate, Unneeded};
use iptables::{ChainSpec, Table};
use proto::model::IpFamily;

use super::{
    Edit, Owner, Plan, RuleEdit,
    base::rebase,
    steps::{Step, StepOrder, steps, unneeded_steps},
};
use crate::{
    applied::{AppliedState, Installed, InstalledChain, UserChanges},
    desired::{Base, Desired},
    table::{ContentHash, SharedChain},
    unclaimed::{Claims, UnclaimedChain},
};

/// With more deletions a shared chain is written anew: the kernel, or iptables-nft for it, compares a deleted rule with
/// those before it.
const MAX_DELETIONS: usize = 16;

/// The input: some service ports in one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyUpdate<'a> {
    pub(crate) applied: &'a AppliedState,
    pub(crate) family: IpFamily,
    pub(crate) updates: &'a [ServicePortUpdate<Desired>],
    /// The base ruleset, if it changes.
    pub(crate) base: Option<&'a Base>,
    /// What to do with what no service port has claimed.
    pub(crate) unneeded: Unneeded,
}

/// A part of the difference, and what follows from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartialPlan {
    pub(crate) plan: Plan,
    /// About how many lines it is.
    pub(crate) lines: usize,
    /// What each service port has afterwards.
    pub(crate) installed: Vec<Option<Installed>>,
    /// Whether a service port needs further transactions.
    pub(crate) unfinished: Vec<bool>,
    pub(crate) users: UserChanges,
    pub(crate) claims: Claims,
    /// Base chains that are not needed any more.
    pub(crate) unclaimed: Vec<(ChainSpec, UnclaimedChain)>,
    /// Chains that are empty afterwards, because rules of other programs jump to them.
    pub(crate) emptied: Vec<ContentHash>,
    deletions: BTreeMap<SharedChain, usize>,
}

/// A step, and where it is among the others.
struct OrderedStep<'a> {
    order: StepOrder,
    owner: Owner,
    step: Step<'a>,
}

// === impl FamilyUpdate ===

impl FamilyUpdate<'_> {
    /// The first steps of the difference, of at most `limit` lines. If a first step alone has more, and the transaction
    /// has no other lines, it is executed.
    pub(crate) fn plan(&self, limit: usize, others: usize) -> PartialPlan {
        let mut result = PartialPlan::default();
        if let Some(base) = self.base {
            for chain in rebase(&mut result.plan, &self.applied.base[self.family], base) {
                let (hash, rules) = (ContentHash::of_chain(&chain), chain.rules.len() as u32);
                result.unclaimed.push((chain, UnclaimedChain { hash, rules, is_used: false }));
            }
        }
        let steps = self.steps();
        let mut executed = steps.len();
        for (index, OrderedStep { owner, step, .. }) in steps.iter().enumerate() {
            let lines = self.lines(&result, *owner, step);
            if lines > 0 && others + result.lines > 0 && result.lines + lines > limit {
                executed = index;
                break;
            }
            result.lines += lines;
            self.execute(&mut result, *owner, step);
        }
        self.rewrite(&mut result);
        let (executed, skipped) = steps.split_at(executed);
        result.unfinished = vec![false; self.updates.len()];
        for owner in skipped.iter().filter_map(|step| step.owner) {
            result.unfinished[owner as usize] = true;
        }
        let updates = (0..).zip(self.updates).zip(&result.unfinished);
        let installed = updates.map(|((owner, update), is_unfinished)| match is_unfinished {
            true => self.after(owner, executed),
            false => update.desired[self.family].as_ref().map(Installed::from),
        });
        result.installed = installed.collect();
        result
    }

    /// About how many lines the difference is.
    pub(crate) fn count_lines(&self) -> usize {
        let (mut result, mut lines) = (PartialPlan::default(), 0);
        for OrderedStep { owner, step, .. } in self.steps() {
            lines += self.lines(&result, owner, &step);
            if let Step::DeleteLine(shared, _) = step {
                *result.deletions.entry(shared).or_default() += 1;
            }
        }
        lines
    }

    /// All steps, in order.
    fn steps(&self) -> Vec<OrderedStep<'_>> {
        let unclaimed = &self.applied.unclaimed[self.family];
        let mut all = Vec::new();
        for (owner, update) in (0..).zip(self.updates) {
            let old = self.applied.service_ports.get(&update.key, self.family);
            let steps = steps(old, update.desired[self.family].as_ref(), unclaimed);
            all.extend(steps.into_iter().map(|(order, step)| OrderedStep { order, owner: Some(owner), step }));
        }
        if self.unneeded == Unneeded::Delete {
            let desired = self.updates.iter().filter_map(|update| update.desired[self.family].as_ref());
            let steps = unneeded_steps(unclaimed, desired);
            all.extend(steps.into_iter().map(|(order, step)| OrderedStep { order, owner: None, step }));
        }
        all.sort_by_key(|step| step.order);
        all
    }

    /// How many service ports need a line after the executed steps.
    fn users(&self, result: &PartialPlan, shared: SharedChain, line: &str) -> u32 {
        let change = result.users.get(&(shared, line.to_owned())).copied().unwrap_or_default();
        self.applied.users(self.family, shared, line).saturating_add_signed(change)
    }

    /// How often the kernel contains a line that no service port has claimed, after the executed steps.
    fn unclaimed(&self, result: &PartialPlan, shared: SharedChain, line: &str) -> u32 {
        let unclaimed = &self.applied.unclaimed[self.family];
        let claimed = || result.claims.lines.get(&(shared, line.to_owned())).copied().unwrap_or_default();
        match unclaimed.line(shared, line) {
            0 => 0,
            count => count.saturating_sub(claimed()),
        }
    }

    /// Whether a step changes the kernel: another service port may need the same line.
    fn writes_line(&self, result: &PartialPlan, owner: Owner, step: &Step<'_>) -> bool {
        match *step {
            Step::AddLine(shared, line) => {
                let is_first = !shared.allows_duplicates() || self.users(result, shared, line) == 0;
                is_first && self.unclaimed(result, shared, line) == 0
            }
            Step::DeleteLine(shared, line) => {
                owner.is_none() || !shared.allows_duplicates() || self.users(result, shared, line) == 1
            }
            _ => false,
        }
    }

    /// About how many lines a step is.
    fn lines(&self, result: &PartialPlan, owner: Owner, step: &Step<'_>) -> usize {
        match *step {
            Step::WriteChain(chain, _) => 1 + chain.rules.len(),
            Step::KeepChain(..) => 0,
            Step::DeleteChain(..) => 2,
            Step::EmptyChain(table, name) => usize::from(self.has_rules(table, name)),
            Step::AddLine(..) | Step::DeleteLine(..) if !self.writes_line(result, owner, step) => 0,
            Step::AddLine(..) => 1,
            // The comparisons of MAX_DELETIONS deletions take as long as writing the chain anew.
            Step::DeleteLine(shared, _) => match result.deletions.get(&shared) {
                Some(MAX_DELETIONS..) => 0,
                _ => 1 + self.applied.shared_rules(self.family, shared) / MAX_DELETIONS,
            },
        }
    }

    /// Whether a chain that no service port has claimed has rules.
    fn has_rules(&self, table: Table, name: &str) -> bool {
        self.applied.unclaimed[self.family].chain(table, name).is_some_and(|chain| chain.rules > 0)
    }

    fn execute(&self, result: &mut PartialPlan, owner: Owner, step: &Step<'_>) {
        let writes_line = self.writes_line(result, owner, step);
        match *step {
            Step::WriteChain(chain, _) | Step::KeepChain(chain, _) => {
                if matches!(step, Step::WriteChain(..)) {
                    result.plan.chains.push((owner, chain.clone()));
                }
                if self.applied.unclaimed[self.family].chain(chain.table, &chain.name).is_some() {
                    result.claims.chains.insert((chain.table, chain.name.clone()));
                }
            }
            Step::DeleteChain(table, name) => {
                result.plan.delete_chains.insert((table, name.to_owned()));
                if owner.is_none() {
                    result.claims.chains.insert((table, name.to_owned()));
                }
            }
            Step::EmptyChain(table, name) => {
                let chain = ChainSpec { table, name: name.to_owned(), rules: Vec::new() };
                result.emptied.push(ContentHash::of_chain(&chain));
                result.plan.chains.extend(self.has_rules(table, name).then_some((None, chain)));
                result.claims.chains.insert((table, name.to_owned()));
            }
            Step::AddLine(shared, line) => {
                let is_first = !shared.allows_duplicates() || self.users(result, shared, line) == 0;
                if writes_line {
                    let base = self.base.unwrap_or(&self.applied.base[self.family]);
                    result.plan.additions.push(RuleEdit::add(owner, shared, base.fixed_rules(shared), line));
                } else if is_first {
                    *result.claims.lines.entry((shared, line.to_owned())).or_default() += 1;
                }
                if shared.allows_duplicates() {
                    *result.users.entry((shared, line.to_owned())).or_default() += 1;
                }
            }
            Step::DeleteLine(shared, line) => {
                if writes_line {
                    result.plan.deletions.push(RuleEdit::of_shared(owner, shared, Edit::Delete, line));
                    *result.deletions.entry(shared).or_default() += 1;
                }
                if owner.is_none() {
                    *result.claims.lines.entry((shared, line.to_owned())).or_default() += 1;
                } else if shared.allows_duplicates() {
                    *result.users.entry((shared, line.to_owned())).or_default() -= 1;
                }
            }
        }
    }

    /// Replaces many deletions from a shared chain by writing it anew.
    fn rewrite(&self, result: &mut PartialPlan) {
        let base = self.base.unwrap_or(&self.applied.base[self.family]);
        let many: Vec<_> = result.deletions.iter().filter(|(_, count)| **count > MAX_DELETIONS).collect();
        for shared in many.into_iter().map(|(shared, _)| *shared) {
            let Plan { additions, deletions, rewritten, .. } = &mut result.plan;
            let is_of_shared = |edit: &RuleEdit| (edit.table, edit.chain) == (shared.table(), shared.chain());
            let mut counts = BTreeMap::<String, u32>::new();
            for line in self.applied.shared_lines(self.family, shared) {
                *counts.entry(line.to_owned()).or_default() += 1;
            }
            let mut added: Vec<RuleEdit> = additions.iter().filter(|edit| is_of_shared(edit)).cloned().collect();
            for edit in deletions.extract_if(.., |edit| is_of_shared(edit)) {
                if let Some(count) = counts.get_mut(&edit.rule) {
                    *count = count.saturating_sub(1);
                }
            }
            if shared.table() == Table::Nat {
                additions.retain(|edit| !is_of_shared(edit));
            }
            added.iter_mut().for_each(|edit| edit.edit = Edit::Append);
            let append = |line: &str| RuleEdit::of_shared(None, shared, Edit::Append, line);
            let fixed_rules = base.fixed_rules(shared);
            rewritten.push(shared);
            deletions.extend(fixed_rules.head.iter().map(|line| append(line)));
            for (line, count) in &counts {
                deletions.extend((0..*count).map(|_| append(line)));
            }
            deletions.extend(added);
            deletions.extend(fixed_rules.tail.iter().map(|line| append(line)));
        }
    }

    /// What a service port has after a part of its steps.
    fn after(&self, owner: u32, executed: &[OrderedStep<'_>]) -> Option<Installed> {
        let update = &self.updates[owner as usize];
        let old = self.applied.service_ports.get(&update.key, self.family).cloned().unwrap_or_default();
        let desired = update.desired[self.family].as_ref();
        let mut chains: BTreeMap<_, _> =
            old.chains.into_iter().map(|chain| ((chain.table, chain.name.clone()), chain)).collect();
        let mut lines: BTreeSet<_> = old.lines.into_iter().collect();
        for executed in executed.iter().filter(|executed| executed.owner == Some(owner)) {
            match executed.step {
                Step::WriteChain(chain, hash) | Step::KeepChain(chain, hash) => {
                    let (table, name, rules) = (chain.table, Box::from(&*chain.name), chain.rules.len() as u32);
                    chains.insert((table, Box::clone(&name)), InstalledChain { table, name, rules, hash });
                }
                Step::DeleteChain(table, name) => drop(chains.remove(&(table, name.into()))),
                Step::EmptyChain(..) => {}
                Step::AddLine(shared, line) => drop(lines.insert((shared, line.into()))),
                Step::DeleteLine(shared, line) => drop(lines.remove(&(shared, line.into()))),
            }
        }
        if chains.is_empty() && lines.is_empty() {
            return None;
        }
        let mut vips = old.vips.into_vec();
        vips.extend(desired.iter().flat_map(|desired| &desired.vips));
        vips.sort_unstable();
        vips.dedup();
        Some(Installed {
            vips: vips.into(),
            chains: chains.into_values().collect(),
            lines: lines.into_iter().collect(),
        })
    }
}
