//! What a script would change, for people: lines of `iptables-save` that come and go. Pure.

use std::collections::{BTreeMap, HashMap};

use backend::{Difference, DifferenceKind, NodeState};
use proto::model::{IpFamily, ServicePortKey};

use crate::{
    kernel::{Chain, Chains, Dry, Localnet},
    names::{Kind, Names},
    table::Dispatch,
};

/// The service port behind each chain of one.
#[derive(Debug, Default)]
pub(crate) struct Owners<'a>(HashMap<String, &'a ServicePortKey>);

impl<'a> Owners<'a> {
    /// Of the service ports of a state.
    pub(crate) fn of(state: &'a NodeState) -> Self {
        let mut owners = HashMap::new();
        for (key, service) in state.service_ports() {
            let names = Names::new(key);
            let kinds = [Kind::Svc, Kind::Svl, Kind::Ext, Kind::Fw].map(|kind| names.chain(kind));
            let pools = IpFamily::ALL.map(|family| [&service.cluster[family], &service.local[family]]);
            let endpoints = pools.iter().flatten().flat_map(|pool| pool.endpoints());
            let of_endpoints = endpoints.map(|endpoint| names.endpoint((endpoint.address, endpoint.port.get()).into()));
            owners.extend(kinds.into_iter().chain(of_endpoints).map(|chain| (chain, key)));
        }
        Self(owners)
    }

    /// By the chain that a rule is in, or by the one that it leads to.
    fn owner(&self, chain: &str, rule: &str) -> Option<&'a ServicePortKey> {
        let target = rule.rsplit_once("-j ").and_then(|(_, rest)| rest.split(' ').next());
        let chains = [Some(chain), target].into_iter().flatten();
        chains.filter_map(|chain| self.0.get(chain)).next().copied()
    }
}

/// What would be written.
pub(crate) fn differences(dry: Dry, program: impl Fn(IpFamily) -> String, owners: &Owners<'_>) -> Vec<Difference> {
    let mut list = Vec::new();
    if let Some(localnet) = dry.localnet {
        let value = if localnet == Localnet::Routed { "1" } else { "0" };
        list.push(Difference::new(
            DifferenceKind::Change,
            "sysctl",
            format!("net.ipv4.conf.all.route_localnet={value}"),
        ));
    }
    for (family, before, after) in dry.tables {
        compare(&program(family), &before, &after, owners, &mut list);
    }
    list
}

fn compare(program: &str, before: &Chains, after: &Chains, owners: &Owners<'_>, list: &mut Vec<Difference>) {
    let mut all: Vec<_> = before.0.keys().chain(after.0.keys()).collect();
    all.sort_unstable();
    all.dedup();
    for key @ (table, name) in all {
        let place = format!("{program} {table}");
        let (old, new) = (before.0.get(key), after.0.get(key));
        let mut say = |verb, rule: Option<&str>| {
            let what = rule.map_or_else(|| format!("chain {name}"), |rule| format!("{name} {rule}"));
            let owner = owners.owner(name, rule.unwrap_or_default());
            list.push(Difference::new(verb, place.as_str(), what).of(owner));
        };
        match (old, new) {
            (None, Some(_)) => say(DifferenceKind::Add, None),
            (Some(_), None) => say(DifferenceKind::Remove, None),
            _ => {}
        }
        let none = Chain::default();
        let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
        let (gone, come) = (surplus(&old.rules, &new.rules), surplus(&new.rules, &old.rules));
        // What goes with its chain need not be told line by line.
        if after.0.contains_key(key) {
            gone.iter().for_each(|rule| say(DifferenceKind::Remove, Some(rule)));
        }
        come.iter().for_each(|rule| say(DifferenceKind::Add, Some(rule)));
        let ordered = Dispatch::of(*table, name).is_none();
        if ordered && gone.is_empty() && come.is_empty() && old.rules != new.rules {
            let owner = owners.owner(name, "");
            list.push(
                Difference::new(DifferenceKind::Change, place, format!("chain {name}, the order of its rules"))
                    .of(owner),
            );
        }
    }
}

/// The rules of one list that the other does not have, as often as it does not.
fn surplus<'a>(of: &'a [String], other: &[String]) -> Vec<&'a str> {
    let mut there = BTreeMap::<&str, usize>::new();
    other.iter().for_each(|rule| *there.entry(rule).or_default() += 1);
    let is_missing = |rule: &&str| match there.get_mut(*rule) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    of.iter().map(String::as_str).filter(is_missing).collect()
}
