//! The difference between the applied state and an update of some service ports.

use std::collections::BTreeMap;

use backend::driver::ServicePortUpdate;
use iptables::Table;
use proto::model::IpFamily;

use super::{Owner, Plan};
use crate::{
    applied::{AppliedState, Installed},
    desired::{Base, Desired},
    table::{Dispatch, Mark},
};

/// How many more, or fewer, service ports have a line that several may have.
pub(crate) type UserChanges = BTreeMap<(Dispatch, String), i32>;

/// What the updates change, and `base`, if the base ruleset changes.
pub(crate) fn partial(
    applied: &AppliedState,
    family: IpFamily,
    updates: &[ServicePortUpdate<Desired>],
    base: Option<&Base>,
) -> (Plan, UserChanges) {
    let mut plan = Plan::default();
    let ends = base.unwrap_or(&applied.base[family]);
    let mut deltas = BTreeMap::<(Dispatch, String), (Owner, i32)>::new();
    for (index, update) in (0..).zip(updates) {
        let old = applied.service_ports.get(&update.key, family);
        let mut difference = Difference { plan: &mut plan, deltas: &mut deltas, owner: Some(index), ends };
        difference.service(old, update.desired[family].as_ref());
    }
    for ((dispatch, line), (owner, delta)) in &deltas {
        let before = applied.users(family, *dispatch, line);
        match (before, before.saturating_add_signed(*delta)) {
            (0, 1..) => plan.add.push((*owner, ends.ends(*dispatch).place(), *dispatch, line.clone())),
            (1.., 0) => plan.remove.push((*owner, *dispatch, line.clone())),
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
    deltas: &'a mut BTreeMap<(Dispatch, String), (Owner, i32)>,
    owner: Owner,
    ends: &'a Base,
}

impl Difference<'_> {
    fn service(&mut self, old: Option<&Installed>, new: Option<&Desired>) {
        let old_chains = old.map_or(&[][..], |old| &old.chains);
        let old_lines = old.map_or(&[][..], |old| &old.lines);
        let (chains, lines) = new.map_or((&[][..], &[][..]), |new| (&new.chains, &new.lines));
        let mut known: BTreeMap<(Table, &str), Mark> =
            old_chains.iter().map(|(table, name, mark)| ((*table, &**name), *mark)).collect();
        for chain in chains {
            if known.remove(&(chain.table, &chain.name)) != Some(Mark::of_chain(chain)) {
                self.plan.chains.push((self.owner, chain.clone()));
            }
        }
        self.plan.gone.extend(known.into_keys().map(|(table, name)| (table, name.to_owned())));
        for (dispatch, line) in lines {
            if !old_lines.iter().any(|(of, known)| of == dispatch && **known == **line) {
                self.line(*dispatch, line, 1);
            }
        }
        for (dispatch, line) in old_lines {
            if !lines.iter().any(|(of, wanted)| of == dispatch && **wanted == **line) {
                self.line(*dispatch, line, -1);
            }
        }
    }

    fn line(&mut self, dispatch: Dispatch, line: &str, delta: i32) {
        let line = line.to_owned();
        match (dispatch.is_shared(), delta) {
            (true, _) => self.deltas.entry((dispatch, line)).or_insert((self.owner, 0)).1 += delta,
            (false, 1) => {
                let place = self.ends.ends(dispatch).place();
                self.plan.add.push((self.owner, place, dispatch, line));
            }
            (false, _) => self.plan.remove.push((self.owner, dispatch, line)),
        }
    }
}

/// Another fixed part.
fn rebase(plan: &mut Plan, old: &Base, new: &Base) {
    plan.chains
        .extend(new.chains.iter().filter(|chain| !old.chains.contains(chain)).map(|chain| (None, chain.clone())));
    let gone =
        old.chains.iter().filter(|old| !new.chains.iter().any(|new| (new.table, &new.name) == (old.table, &old.name)));
    plan.gone.extend(gone.map(|chain| (chain.table, chain.name.clone())));
    for dispatch in Dispatch::ALL {
        let (old, new) = (&old.ends(dispatch).tail, &new.ends(dispatch).tail);
        if old != new {
            // What is appended comes behind everything else, also behind a line that stays: all of them anew.
            plan.remove.extend(old.iter().map(|line| (None, dispatch, line.clone())));
            plan.behind.extend(new.iter().map(|line| (dispatch, line.clone())));
        }
    }
}
