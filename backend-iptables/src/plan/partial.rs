//! The difference between the applied state and an update of some service ports.

use std::collections::BTreeMap;

use backend::driver::ServicePortUpdate;
use iptables::Table;
use proto::model::IpFamily;

use super::{Edit, Owner, Plan, RuleEdit};
use crate::{
    applied::AppliedState,
    desired::{Base, Desired},
    table::{ContentHash, SharedChain},
};

/// How many more, or fewer, service ports have a line that several may have.
pub(crate) type UserChanges = BTreeMap<(SharedChain, String), i32>;

/// What the updates change, and `base`, if the base ruleset changes.
pub(crate) fn partial(
    applied: &AppliedState,
    family: IpFamily,
    updates: &[ServicePortUpdate<Desired>],
    base: Option<&Base>,
) -> (Plan, UserChanges) {
    let mut plan = Plan::default();
    let mut deltas = BTreeMap::<(SharedChain, &str), (Owner, i32)>::new();
    for (owner, update) in (0..).map(Some).zip(updates) {
        let (old_chains, old_lines) =
            applied.service_ports.get(&update.key, family).map(|old| (&*old.chains, &*old.lines)).unwrap_or_default();
        let (chains, lines) =
            update.desired[family].as_ref().map(|new| (&*new.chains, &*new.lines)).unwrap_or_default();
        let mut known: BTreeMap<(Table, &str), ContentHash> =
            old_chains.iter().map(|(table, name, hash)| ((*table, &**name), *hash)).collect();
        for chain in chains {
            if known.remove(&(chain.table, &chain.name)) != Some(ContentHash::of_chain(chain)) {
                plan.chains.push((owner, chain.clone()));
            }
        }
        plan.delete_chains.extend(known.into_keys().map(|(table, name)| (table, name.to_owned())));
        let new = lines.iter().map(|(shared, line)| ((*shared, &**line), 1));
        let old = old_lines.iter().map(|(shared, line)| ((*shared, &**line), -1));
        for (line, delta) in new.chain(old) {
            deltas.entry(line).or_insert((owner, 0)).1 += delta;
        }
    }
    let fixed_rules = base.unwrap_or(&applied.base[family]);
    let mut users = UserChanges::new();
    for ((shared, line), (owner, delta)) in deltas {
        let before = if shared.allows_duplicates() {
            users.insert((shared, line.to_owned()), delta);
            applied.users(family, shared, line)
        } else {
            u32::from(delta < 0)
        };
        match (before, before.saturating_add_signed(delta)) {
            (0, 1..) => plan.additions.push(RuleEdit::add(owner, shared, fixed_rules.fixed_rules(shared), line)),
            (1.., 0) => plan.deletions.push(RuleEdit::of_shared(owner, shared, Edit::Delete, line)),
            _ => {}
        }
    }
    if let Some(base) = base {
        rebase(&mut plan, &applied.base[family], base);
    }
    (plan, users)
}

/// The changes of the base ruleset.
fn rebase(plan: &mut Plan, old: &Base, new: &Base) {
    let changed = new.chains.iter().filter(|chain| !old.chains.contains(chain));
    plan.chains.extend(changed.map(|chain| (None, chain.clone())));
    let deleted =
        old.chains.iter().filter(|old| !new.chains.iter().any(|new| (new.table, &new.name) == (old.table, &old.name)));
    plan.delete_chains.extend(deleted.map(|chain| (chain.table, chain.name.clone())));
    for shared in SharedChain::ALL {
        let (old, new) = (&old.fixed_rules(shared).tail, &new.fixed_rules(shared).tail);
        if old != new {
            // Appended rules come last, also after a fixed rule that does not change: all of them are written anew.
            let edit = |edit| move |line: &String| RuleEdit::of_shared(None, shared, edit, line);
            plan.deletions.extend(old.iter().map(edit(Edit::Delete)));
            plan.deletions.extend(new.iter().map(edit(Edit::Append)));
        }
    }
}
