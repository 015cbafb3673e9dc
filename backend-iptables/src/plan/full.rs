//! The difference between what a kernel holds, whatever that is, and what all service ports add together.

use std::collections::{BTreeMap, BTreeSet};

use backend::driver::{ServicePortUpdate, Unneeded};
use iptables::{ChainSpec, Hook, Table};
use proto::model::IpFamily;

use super::{Owner, Plan};
use crate::{
    desired::{Base, Desired},
    observed::{Middle, Observed},
    table::Dispatch,
};

/// With fewer changes a chain is edited, with more it is written anew: taking a line out costs a look at all of them.
const FEW: usize = 16;

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) base: &'a Base,
    pub(crate) hooks: &'a [Hook],
    pub(crate) updates: &'a [ServicePortUpdate<Desired>],
    /// The updates that are programmed.
    pub(crate) active: &'a BTreeSet<u32>,
    pub(crate) unneeded: Unneeded,
}

impl Full<'_> {
    /// What leads from one to the other.
    pub(crate) fn plan(&self, family: IpFamily) -> Plan {
        let mut plan = Plan::default();
        let mut wanted = BTreeSet::<(Table, &str)>::new();
        let mut lines = BTreeMap::<Dispatch, BTreeMap<&str, Owner>>::new();
        let fixed = self.base.chains.iter().map(|chain| (None, chain));
        let of_services = self
            .active(family)
            .flat_map(|(owner, desired)| desired.chains.iter().map(move |chain| (Some(owner), chain)));
        for (owner, chain) in fixed.chain(of_services) {
            wanted.insert((chain.table, &chain.name));
            if self.observed.rules(chain.table, &chain.name) != Some(&chain.rules[..]) {
                plan.chains.push((owner, chain.clone()));
            }
        }
        for (owner, desired) in self.active(family) {
            for (dispatch, line) in &desired.lines {
                lines.entry(*dispatch).or_default().entry(line).or_insert(Some(owner));
            }
        }
        for dispatch in Dispatch::ALL {
            wanted.insert((dispatch.table(), dispatch.chain()));
            self.dispatch(&mut plan, dispatch, &lines.remove(&dispatch).unwrap_or_default());
        }
        self.hooks(&mut plan);
        if self.unneeded == Unneeded::Delete {
            for (table, name, rules) in
                self.observed.ours().filter(|(table, name, _)| !wanted.contains(&(*table, *name)))
            {
                give_up(&mut plan, self.observed, self.hooks, (table, name, rules));
            }
        }
        plan
    }

    fn active(&self, family: IpFamily) -> impl Iterator<Item = (u32, &Desired)> {
        let updates = self.active.iter().filter_map(|index| Some((*index, self.updates.get(*index as usize)?)));
        updates.filter_map(move |(index, update)| Some((index, update.desired[family].as_ref()?)))
    }

    fn dispatch(&self, plan: &mut Plan, dispatch: Dispatch, lines: &BTreeMap<&str, Owner>) {
        let ends = self.base.ends(dispatch);
        let place = ends.place();
        if let Middle::Lines(middle) = self.observed.middle(dispatch, ends) {
            let mut missing = lines.clone();
            let mut surplus = Vec::new();
            for line in middle {
                if missing.remove(&**line).is_none() {
                    surplus.push(line);
                }
            }
            if self.unneeded == Unneeded::Keep {
                surplus.clear();
            }
            // A line is deleted by its words: the first one that has them goes.
            let clash = surplus.iter().any(|line| ends.head.contains(line) || ends.tail.contains(line));
            let changes = missing.len() + surplus.len();
            if !clash && (changes <= FEW || changes <= lines.len() / 4 || self.unneeded == Unneeded::Keep) {
                let add = missing.into_iter();
                plan.add.extend(add.map(|(line, owner)| (owner, place, dispatch, line.to_owned())));
                plan.remove.extend(surplus.into_iter().map(|line| (None, dispatch, line.clone())));
                return;
            }
        }
        let fixed = |lines: &[String]| lines.iter().map(|line| (None, line.clone())).collect::<Vec<_>>();
        let of_services = lines.iter().map(|(line, owner)| (*owner, (*line).to_owned())).collect();
        plan.dispatches.push((dispatch, [fixed(&ends.head), of_services, fixed(&ends.tail)].concat()));
    }

    fn hooks(&self, plan: &mut Plan) {
        for hook in self.hooks {
            match self.observed.count(hook) {
                0 => plan.hook.push(hook.clone()),
                count => plan.unhook.extend(std::iter::repeat_n(hook.clone(), count - 1)),
            }
        }
    }
}

/// Everything of ours goes, and nothing else.
pub(crate) fn remove(observed: &Observed, hooks: &[Hook]) -> Plan {
    let mut plan = Plan::default();
    for hook in hooks {
        plan.unhook.extend(std::iter::repeat_n(hook.clone(), observed.count(hook)));
    }
    for chain in observed.ours() {
        give_up(&mut plan, observed, hooks, chain);
    }
    plan
}

/// Deletes a chain; one that rules of others lead to is only emptied.
fn give_up(plan: &mut Plan, observed: &Observed, hooks: &[Hook], (table, name, rules): (Table, &str, &[String])) {
    let name = name.to_owned();
    if !observed.is_used(table, &name, hooks) {
        plan.gone.insert((table, name));
    } else if !rules.is_empty() {
        plan.chains.push((None, ChainSpec { table, name, rules: Vec::new() }));
    }
}
