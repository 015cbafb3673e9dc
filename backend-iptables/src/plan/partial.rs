//! The difference between the applied state and an update of some service ports.

use std::collections::BTreeMap;

use backend::driver::ServicePortUpdate;
use iptables::Table;
use proto::model::IpFamily;

use super::{Owner, Plan};
use crate::{
    applied::{AppliedState, Installed},
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
    let fixed_rules = base.unwrap_or(&applied.base[family]);
    let mut deltas = BTreeMap::<(SharedChain, String), (Owner, i32)>::new();
    for (index, update) in (0..).zip(updates) {
        let old = applied.service_ports.get(&update.key, family);
        let mut difference = Difference { plan: &mut plan, deltas: &mut deltas, owner: Some(index), fixed_rules };
        difference.service(old, update.desired[family].as_ref());
    }
    for ((shared, line), (owner, delta)) in &deltas {
        let before = applied.users(family, *shared, line);
        match (before, before.saturating_add_signed(*delta)) {
            (0, 1..) => {
                plan.add_rules.push((*owner, fixed_rules.fixed_rules(*shared).position(), *shared, line.clone()))
            }
            (1.., 0) => plan.delete_rules.push((*owner, *shared, line.clone())),
            _ => {}
        }
    }
    if let Some(base) = base {
        rebase(&mut plan, &applied.base[family], base);
    }
    (plan, deltas.into_iter().map(|(line, (_, delta))| (line, delta)).collect())
}

struct Difference<'a> {
    plan: &'a mut Plan,
    deltas: &'a mut BTreeMap<(SharedChain, String), (Owner, i32)>,
    owner: Owner,
    fixed_rules: &'a Base,
}

impl Difference<'_> {
    fn service(&mut self, old: Option<&Installed>, new: Option<&Desired>) {
        let old_chains = old.map_or(&[][..], |old| &old.chains);
        let old_lines = old.map_or(&[][..], |old| &old.lines);
        let (chains, lines) = new.map_or((&[][..], &[][..]), |new| (&new.chains, &new.lines));
        let mut known: BTreeMap<(Table, &str), ContentHash> =
            old_chains.iter().map(|(table, name, mark)| ((*table, &**name), *mark)).collect();
        for chain in chains {
            if known.remove(&(chain.table, &chain.name)) != Some(ContentHash::of_chain(chain)) {
                self.plan.chains.push((self.owner, chain.clone()));
            }
        }
        self.plan.delete_chains.extend(known.into_keys().map(|(table, name)| (table, name.to_owned())));
        for (shared, line) in lines {
            if !old_lines.iter().any(|(of, known)| of == shared && **known == **line) {
                self.line(*shared, line, 1);
            }
        }
        for (shared, line) in old_lines {
            if !lines.iter().any(|(of, wanted)| of == shared && **wanted == **line) {
                self.line(*shared, line, -1);
            }
        }
    }

    fn line(&mut self, shared: SharedChain, line: &str, delta: i32) {
        let line = line.to_owned();
        match (shared.allows_duplicates(), delta) {
            (true, _) => self.deltas.entry((shared, line)).or_insert((self.owner, 0)).1 += delta,
            (false, 1) => {
                let position = self.fixed_rules.fixed_rules(shared).position();
                self.plan.add_rules.push((self.owner, position, shared, line));
            }
            (false, _) => self.plan.delete_rules.push((self.owner, shared, line)),
        }
    }
}

/// The changes of the base ruleset.
fn rebase(plan: &mut Plan, old: &Base, new: &Base) {
    plan.chains
        .extend(new.chains.iter().filter(|chain| !old.chains.contains(chain)).map(|chain| (None, chain.clone())));
    let deleted =
        old.chains.iter().filter(|old| !new.chains.iter().any(|new| (new.table, &new.name) == (old.table, &old.name)));
    plan.delete_chains.extend(deleted.map(|chain| (chain.table, chain.name.clone())));
    for shared in SharedChain::ALL {
        let (old, new) = (&old.fixed_rules(shared).tail, &new.fixed_rules(shared).tail);
        if old != new {
            // Appended rules come last, also after a fixed rule that does not change: all of them are written anew.
            plan.delete_rules.extend(old.iter().map(|line| (None, shared, line.clone())));
            plan.append_last.extend(new.iter().map(|line| (shared, line.clone())));
        }
    }
}
