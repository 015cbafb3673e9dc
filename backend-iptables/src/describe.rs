//! Describes the changes of a script, as added and removed lines of `iptables-save`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use backend::{Difference, DifferenceKind, NodeState};
use iptables::{Ruleset, Table, target};
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
        for kind in [ChainKind::Svc, ChainKind::Svl, ChainKind::Ext, ChainKind::Fw] {
            owners.insert(names.chain(kind), key);
        }
        for family in IpFamily::ALL {
            for endpoint in service.cluster[family].iter().chain(service.local[family].iter()) {
                owners.insert(names.endpoint((endpoint.address, endpoint.port.get()).into()), key);
            }
        }
    }
    owners
}

/// The changes of a dry run.
pub(crate) fn differences(dry_run: DryRun, programs: &PerFamily<String>, owners: &ChainOwners<'_>) -> Vec<Difference> {
    let mut differences = Vec::new();
    if let Some(is_routed) = dry_run.localnet {
        let setting = format!("net.ipv4.conf.all.route_localnet={}", u8::from(is_routed));
        differences.push(Difference::new(DifferenceKind::Change, "sysctl", setting));
    }
    for (family, BeforeAfter { before, after }) in &dry_run.rules {
        let chains = before.chains().chain(after.chains()).map(|(table, name, _)| (table, name));
        let chains: BTreeSet<_> = chains.filter(|(table, _)| TABLES.contains(table)).collect();
        for (table, name) in chains {
            compare(&programs[*family], table, name, [before, after], owners, &mut differences);
        }
    }
    differences
}

/// Describes the changes of a chain.
fn compare(
    program: &str,
    table: Table,
    name: &str,
    [before, after]: [&Ruleset; 2],
    owners: &ChainOwners<'_>,
    differences: &mut Vec<Difference>,
) {
    let subsystem = format!("{program} {table}");
    let mut add = |kind, rule: &str, object: String| {
        differences.push(Difference::new(kind, subsystem.as_str(), object).of(owner(owners, name, rule)));
    };

    let existed = before.chain(table, name).is_some();
    let exists = after.chain(table, name).is_some();
    match (existed, exists) {
        (false, true) => add(DifferenceKind::Add, "", format!("chain {name}")),
        (true, false) => add(DifferenceKind::Remove, "", format!("chain {name}")),
        _ => {}
    }

    let old = before.rules(table, name);
    let new = after.rules(table, name);
    let removed = surplus(old, new);
    let added = surplus(new, old);
    // The rules of a chain that is deleted are not listed.
    if exists {
        for rule in &removed {
            add(DifferenceKind::Remove, rule, format!("{name} {rule}"));
        }
    }
    for rule in &added {
        add(DifferenceKind::Add, rule, format!("{name} {rule}"));
    }
    let is_ordered = SharedChain::of(table, name).is_none();
    if is_ordered && removed.is_empty() && added.is_empty() && old != new {
        add(DifferenceKind::Change, "", format!("chain {name}, the order of its rules"));
    }
}

/// The service port of a chain, or of the chain that a rule jumps to.
fn owner<'a>(owners: &ChainOwners<'a>, chain: &str, rule: &str) -> Option<&'a ServicePortKey> {
    owners.get(chain).or_else(|| owners.get(target(rule)?)).copied()
}

/// The rules of one list that the other does not contain, with multiplicity.
fn surplus<'a>(of: &'a [String], other: &[String]) -> Vec<&'a str> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for rule in other {
        *counts.entry(rule).or_default() += 1;
    }

    let mut surplus = Vec::new();
    for rule in of {
        match counts.get_mut(rule.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => surplus.push(rule.as_str()),
        }
    }
    surplus
}
