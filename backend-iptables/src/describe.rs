//! Describes what a script would change, as added and removed lines of `iptables-save`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use backend::{Difference, DifferenceKind, NodeState};
use iptables::{Ruleset, target};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    kernel::{BeforeAfter, DryRun},
    names::{ChainKind, ChainNames},
    table::{SharedChain, TABLES},
};

/// The service port of each chain that belongs to one.
type ChainOwners<'a> = HashMap<String, &'a ServicePortKey>;

/// The chains of the service ports of a state.
pub(crate) fn chain_owners(state: &NodeState) -> ChainOwners<'_> {
    let mut owners = HashMap::new();
    for (key, service) in state.service_ports().iter() {
        let names = ChainNames::new(key);
        let kinds = [ChainKind::Svc, ChainKind::Svl, ChainKind::Ext, ChainKind::Fw].map(|kind| names.chain(kind));
        let pools = IpFamily::ALL.map(|family| [&service.cluster[family], &service.local[family]]);
        let endpoints = pools.iter().flatten().flat_map(|pool| pool.iter());
        let of_endpoints = endpoints.map(|endpoint| names.endpoint((endpoint.address, endpoint.port.get()).into()));
        owners.extend(kinds.into_iter().chain(of_endpoints).map(|chain| (chain, key)));
    }
    owners
}

/// The owner of a rule: that of its chain, or of the chain that it jumps to.
fn owner<'a>(owners: &ChainOwners<'a>, chain: &str, rule: &str) -> Option<&'a ServicePortKey> {
    owners.get(chain).or_else(|| owners.get(target(rule)?)).copied()
}

/// What would be written.
pub(crate) fn differences(dry_run: DryRun, programs: &PerFamily<String>, owners: &ChainOwners<'_>) -> Vec<Difference> {
    let sysctl = dry_run.localnet.map(|is_routed| {
        let setting = format!("net.ipv4.conf.all.route_localnet={}", u8::from(is_routed));
        Difference::new(DifferenceKind::Change, "sysctl", setting)
    });
    let mut list = Vec::from_iter(sysctl);
    for (family, rules) in dry_run.rules {
        compare(&programs[family], &rules, owners, &mut list);
    }
    list
}

fn compare(
    program: &str,
    BeforeAfter { before, after }: &BeforeAfter,
    owners: &ChainOwners<'_>,
    list: &mut Vec<Difference>,
) {
    let both = before.chains().chain(after.chains());
    let all: BTreeSet<_> =
        both.map(|(table, name, _)| (table, name)).filter(|(table, _)| TABLES.contains(table)).collect();
    for (table, name) in all {
        let position = format!("{program} {table}");
        let mut add = |kind, rule: &str, what: String| {
            list.push(Difference::new(kind, position.as_str(), what).of(owner(owners, name, rule)));
        };
        let exists = |ruleset: &Ruleset| ruleset.chain(table, name).is_some();
        match (exists(before), exists(after)) {
            (false, true) => add(DifferenceKind::Add, "", format!("chain {name}")),
            (true, false) => add(DifferenceKind::Remove, "", format!("chain {name}")),
            _ => {}
        }
        let (old, new) = (before.rules(table, name), after.rules(table, name));
        let (removed, added) = (surplus(old, new), surplus(new, old));
        // The rules of a chain that is deleted are not listed.
        if exists(after) {
            removed.iter().for_each(|rule| add(DifferenceKind::Remove, rule, format!("{name} {rule}")));
        }
        added.iter().for_each(|rule| add(DifferenceKind::Add, rule, format!("{name} {rule}")));
        let is_ordered = SharedChain::of(table, name).is_none();
        if is_ordered && removed.is_empty() && added.is_empty() && old != new {
            add(DifferenceKind::Change, "", format!("chain {name}, the order of its rules"));
        }
    }
}

/// The rules of one list that the other does not contain, with multiplicity.
fn surplus<'a>(of: &'a [String], other: &[String]) -> Vec<&'a str> {
    let mut counts = BTreeMap::<&str, usize>::new();
    other.iter().for_each(|rule| *counts.entry(rule).or_default() += 1);
    let is_missing = |rule: &&str| match counts.get_mut(*rule) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    of.iter().map(String::as_str).filter(is_missing).collect()
}
