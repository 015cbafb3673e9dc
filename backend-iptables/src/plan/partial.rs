//! The difference between the applied state and an update of some service ports, or the first part of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use backend::driver::{ServicePortUpdate, Unneeded};
use iptables::{ChainSpec, Table};
use proto::model::IpFamily;

use super::{
    Edit, Owner, Plan, RuleEdit,
    base::rebase,
    steps::{Step, StepOrder, steps, unneeded_steps},
};
use crate::{
    applied::AppliedState,
    content::{ChainContent, ChainKey, Content, ContentChanges, Installed, LineContent, LineKey},
    desired::{Base, Desired},
    table::SharedChain,
};

/// The most deletions from a shared chain. With more, the chain is written anew, because the kernel, or iptables-nft
/// for it, compares a deleted rule with all rules before it.
const MAX_DELETIONS: usize = 16;

/// The input: some service ports in one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyUpdate<'a> {
    pub(crate) applied: &'a AppliedState,
    pub(crate) family: IpFamily,
    pub(crate) updates: &'a [ServicePortUpdate<Desired>],
    /// The base ruleset, if it changes.
    pub(crate) base: Option<&'a Base>,
    /// Whether chains and rules that no service port has claimed are deleted.
    pub(crate) unneeded: Unneeded,
}

/// A part of the difference, and the state after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartialPlan {
    pub(crate) plan: Plan,
    /// About how many lines it is.
    pub(crate) lines: usize,
    /// The chains and rules of each service port afterwards.
    pub(crate) installed: Vec<Option<Installed>>,
    /// Whether a service port needs further transactions.
    pub(crate) unfinished: Vec<bool>,
    pub(crate) changes: ContentChanges,
    /// The number of deleted rules of each shared chain.
    deletions: BTreeMap<SharedChain, usize>,
}

/// A step, and its position among all steps.
struct OrderedStep<'a> {
    order: StepOrder,
    owner: Owner,
    step: Step<'a>,
}

// === impl FamilyUpdate ===

impl FamilyUpdate<'_> {
    /// The first steps of the difference, of at most `limit` lines. A first step that alone has more lines is executed
    /// if the transaction has no other lines. `others`: the lines of the other family in the same transaction.
    pub(crate) fn plan(&self, limit: usize, others: usize) -> PartialPlan {
        let mut result = PartialPlan::default();
        if let Some(base) = self.base {
            self.rebase(base, &mut result);
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
        let mut of_updates: Vec<Vec<&Step<'_>>> = vec![Vec::new(); self.updates.len()];
        for OrderedStep { owner, step, .. } in executed {
            if let Some(owner) = owner {
                of_updates[*owner as usize].push(step);
            }
        }
        for (index, update) in self.updates.iter().enumerate() {
            result.installed.push(self.after(update, &of_updates[index], result.unfinished[index]));
        }
        result
    }

    /// Replaces the base ruleset.
    fn rebase(&self, base: &Base, result: &mut PartialPlan) {
        for chain in rebase(&mut result.plan, &self.applied.base[self.family], base) {
            let unneeded = ChainContent { is_needed: false, ..ChainContent::of(&chain.rules) };
            result.changes.chains.insert((chain.table, Arc::from(chain.name)), Some(unneeded));
        }
        // A chain that an earlier base ruleset has left, and that is not deleted yet, is in the base ruleset again.
        for chain in &base.chains {
            result.changes.chains.insert((chain.table, Arc::from(&*chain.name)), None);
        }
    }

    /// About how many lines the difference is.
    pub(crate) fn count_lines(&self) -> usize {
        let mut result = PartialPlan::default();
        let mut lines = 0;
        for OrderedStep { owner, step, .. } in self.steps() {
            lines += self.lines(&result, owner, &step);
            if let Step::DeleteLine((shared, _)) = step {
                *result.deletions.entry(shared).or_default() += 1;
            }
        }
        lines
    }

    fn content(&self) -> &Content {
        &self.applied.content[self.family]
    }

    /// All steps, in order.
    fn steps(&self) -> Vec<OrderedStep<'_>> {
        let mut all = Vec::new();
        for (owner, update) in (0..).zip(self.updates) {
            let old = self.applied.service_ports.get(&update.key, self.family);
            let steps = steps(old, update.desired[self.family].as_ref(), self.content());
            all.extend(steps.into_iter().map(|(order, step)| OrderedStep { order, owner: Some(owner), step }));
        }

        if self.unneeded == Unneeded::Delete {
            let desired = self.updates.iter().filter_map(|update| update.desired[self.family].as_ref());
            let steps = unneeded_steps(self.content(), self.new_base(), desired);
            all.extend(steps.into_iter().map(|(order, step)| OrderedStep { order, owner: None, step }));
        }

        all.sort_by_key(|step| step.order);
        all
    }

    /// A rule of a shared chain after the executed steps.
    fn line(&self, result: &PartialPlan, key: &LineKey) -> LineContent {
        result.changes.lines.get(key).copied().unwrap_or_else(|| self.content().line(key))
    }

    /// About how many lines a step has.
    fn lines(&self, result: &PartialPlan, owner: Owner, step: &Step<'_>) -> usize {
        match step {
            Step::WriteChain(_, chain) => 1 + chain.rules.len(),
            Step::KeepChain(_) => 0,
            Step::DeleteChain(_) => 2,
            Step::EmptyChain(_) => 1,
            Step::AddLine(key) => usize::from(self.line(result, key).count == 0),
            Step::DeleteLine(key) if owner.is_some() && self.line(result, key).users > 1 => 0,
            // The comparisons of MAX_DELETIONS deletions take as long as writing the chain anew.
            Step::DeleteLine((shared, _)) => match result.deletions.get(shared) {
                Some(MAX_DELETIONS..) => 0,
                _ => 1 + self.content().shared_rules(*shared) / MAX_DELETIONS,
            },
        }
    }

    /// Adds a step to the plan.
    fn execute(&self, result: &mut PartialPlan, owner: Owner, step: &Step<'_>) {
        match step {
            Step::WriteChain(key, chain) => {
                result.plan.chains.push((owner, (*chain).clone()));
                let is_used = self.content().chain(key).is_some_and(|before| before.is_used);
                let written = ChainContent { is_used, ..ChainContent::of(&chain.rules) };
                result.changes.chains.insert(key.clone(), Some(written));
            }
            Step::KeepChain(key) => {
                let kept = self.content().chain(key).map(|chain| ChainContent { is_needed: true, ..chain });
                result.changes.chains.insert(key.clone(), kept);
            }
            Step::DeleteChain(key @ (table, name)) => {
                result.plan.delete_chains.insert((*table, String::from(&**name)));
                result.changes.chains.insert(key.clone(), None);
            }
            Step::EmptyChain(key @ (table, name)) => {
                let chain = ChainSpec { table: *table, name: String::from(&**name), rules: Vec::new() };
                let emptied = ChainContent { is_used: true, is_needed: false, ..ChainContent::of(&chain.rules) };
                result.plan.chains.push((None, chain));
                result.changes.chains.insert(key.clone(), Some(emptied));
            }
            Step::AddLine(key @ (shared, line)) => {
                let LineContent { count, users } = self.line(result, key);
                if count == 0 {
                    let fixed_rules = self.new_base().fixed_rules(*shared);
                    result.plan.additions.push(RuleEdit::add(owner, *shared, fixed_rules, line));
                }
                let added = LineContent { count: count.max(1), users: users + 1 };
                result.changes.lines.insert(key.clone(), added);
            }
            Step::DeleteLine(key @ (shared, line)) => {
                let LineContent { count, users } = self.line(result, key);
                let is_written = owner.is_none() || users <= 1;
                if is_written {
                    result.plan.deletions.push(RuleEdit::of_shared(owner, *shared, Edit::Delete, line));
                    *result.deletions.entry(*shared).or_default() += 1;
                }
                let deleted = LineContent {
                    count: count.saturating_sub(is_written.into()),
                    users: users.saturating_sub(owner.is_some().into()),
                };
                result.changes.lines.insert(key.clone(), deleted);
            }
        }
    }

    /// The base ruleset after the transaction.
    fn new_base(&self) -> &Base {
        self.base.unwrap_or(&self.applied.base[self.family])
    }

    /// Writes shared chains with many deletions anew, instead of deleting rule by rule.
    fn rewrite(&self, result: &mut PartialPlan) {
        for shared in SharedChain::ALL {
            if result.deletions.get(&shared).is_some_and(|count| *count > MAX_DELETIONS) {
                self.rewrite_chain(shared, result);
            }
        }
    }

    fn rewrite_chain(&self, shared: SharedChain, result: &mut PartialPlan) {
        let Plan { additions, deletions, rewritten, .. } = &mut result.plan;
        let is_of_shared = |edit: &RuleEdit| (edit.table, edit.chain) == (shared.table(), shared.chain());
        let mut added: Vec<RuleEdit> = additions.iter().filter(|edit| is_of_shared(edit)).cloned().collect();
        for edit in &mut added {
            edit.edit = Edit::Append;
        }
        deletions.retain(|edit| !is_of_shared(edit));
        // The additions to filter stay, because they are in an earlier transaction than the deletions.
        if shared.table() == Table::Nat {
            additions.retain(|edit| !is_of_shared(edit));
        }

        let append = |line: &str| RuleEdit::of_shared(None, shared, Edit::Append, line);
        let fixed_rules = self.new_base().fixed_rules(shared);
        rewritten.push(shared);
        deletions.extend(fixed_rules.head.iter().map(|line| append(line)));
        for (key, before) in self.content().lines_of(shared) {
            let LineContent { count, .. } = result.changes.lines.get(key).unwrap_or(before);
            deletions.extend((0..*count).map(|_| append(&key.1)));
        }
        deletions.extend(added);
        deletions.extend(fixed_rules.tail.iter().map(|line| append(line)));
    }

    /// The chains and rules of a service port after these of its steps.
    fn after(
        &self,
        update: &ServicePortUpdate<Desired>,
        executed: &[&Step<'_>],
        is_unfinished: bool,
    ) -> Option<Installed> {
        let old = self.applied.service_ports.get(&update.key, self.family).cloned().unwrap_or_default();
        let mut chains: BTreeSet<ChainKey> = old.chains.into_iter().collect();
        let mut lines: BTreeSet<LineKey> = old.lines.into_iter().collect();
        for step in executed {
            match step {
                Step::WriteChain(key, _) | Step::KeepChain(key) => drop(chains.replace(key.clone())),
                Step::DeleteChain(key) => drop(chains.remove(key)),
                Step::EmptyChain(_) => {}
                Step::AddLine(key) => drop(lines.insert(key.clone())),
                Step::DeleteLine(key) => drop(lines.remove(key)),
            }
        }
        if chains.is_empty() && lines.is_empty() {
            return None;
        }

        let mut vips = if is_unfinished { old.vips.into_vec() } else { Vec::new() };
        vips.extend(update.desired[self.family].iter().flat_map(|desired| &desired.vips));
        vips.sort_unstable();
        vips.dedup();
        Some(Installed { vips: vips.into(), chains: chains.into_iter().collect(), lines: lines.into_iter().collect() })
    }
}
