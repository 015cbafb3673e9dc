//! In iptables mode: one rule per VIP, and chains behind it that end in DNAT.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use iptables::{Condition, Rule, Ruleset, Side, Table, Target};
use proto::model::IpFamily;

use super::{ConnectionVerdict, Reached, VipAddress, VipKey, VipRules};
use crate::iptables::{is_fairleads, names};

const MODE: &str = "iptables";
/// What kube-proxy appends to the name of a service port in comments.
const COMMENT_SUFFIXES: [&str; 6] = [
    " cluster IP",
    " external IP",
    " loadbalancer IP",
    " has no endpoints",
    " has no local endpoints",
    " health check node port",
];
/// More than the longest path of chains, in case they form a cycle.
const MAX_DEPTH: usize = 4;

pub(super) fn read(family: IpFamily, rules: &Ruleset) -> BTreeMap<VipKey, VipRules> {
    // Fairlead's iptables backend gives its chains the same names.
    if is_fairleads(rules) {
        return BTreeMap::new();
    }
    let all = |table, chains: [&'static str; 2]| {
        chains.into_iter().flat_map(move |chain| rules.parsed_rules(table, chain)).collect::<Vec<_>>()
    };
    let mut vips = BTreeMap::<VipKey, VipRules>::new();
    for rule in all(Table::Nat, ["KUBE-SERVICES", "KUBE-NODEPORTS"]) {
        let (Some(key), Some(chain)) = (vip(family, &rule), rule.chain()) else { continue };
        let Reached { internal, external } = reached(rules, chain);
        if internal.is_empty() && external.is_empty() {
            continue;
        }
        // Without an endpoint the packet is not translated, and the filter table decides.
        let [internal, external] =
            [internal, external].map(|endpoints| ConnectionVerdict::of(endpoints, ConnectionVerdict::Drop));
        vips.entry(key).or_insert(VipRules { mode: MODE, service: service(&rule), internal, external });
    }
    for rule in all(Table::Filter, ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"]) {
        let verdict = match rule.target {
            Target::Reject(_) => ConnectionVerdict::Reject,
            Target::Drop => ConnectionVerdict::Drop,
            _ => continue,
        };
        let Some(key) = vip(family, &rule) else { continue };
        vips.entry(key).or_insert_with(|| VipRules::everywhere(MODE, service(&rule), verdict));
    }
    vips
}

/// The VIP that a rule matches; `None` when it matches something else.
fn vip(family: IpFamily, rule: &Rule) -> Option<VipKey> {
    let protocol = rule.find(|condition| match condition {
        Condition::Protocol(number @ (6 | 17 | 132)) => Some(*number),
        _ => None,
    })?;
    let port = rule.find(|condition| match condition {
        Condition::Ports(Side::Destination, ports) => Some(*ports.first()?.start()),
        _ => None,
    })?;
    let address = rule.find(|condition| match condition {
        Condition::Address(Side::Destination, net) => Some(net.addr()),
        _ => None,
    });
    let address = match address {
        // Loopback addresses have a rule of their own as well.
        Some(address) if address.is_ipv4() && address.is_loopback() => return None,
        Some(address) => VipAddress::Ip(address, port),
        None => VipAddress::NodePort(port),
    };
    Some(VipKey { family, address, protocol })
}

fn service(rule: &Rule) -> Option<String> {
    let comment = Some(&rule.comment).filter(|comment| !comment.is_empty())?;
    let name = COMMENT_SUFFIXES.iter().find_map(|suffix| comment.strip_suffix(suffix)).unwrap_or(comment);
    Some(name.to_owned())
}

/// The endpoints that a chain leads to.
fn reached(rules: &Ruleset, chain: &str) -> Reached {
    let kind = names::kind(chain);
    if kind == Some("KUBE-FW-") {
        // Clients within the source ranges continue as without them.
        let next = rules.parsed_rules(Table::Nat, chain).find_map(|rule| rule.chain().map(str::to_owned));
        return next.map(|chain| reached(rules, &chain)).unwrap_or_default();
    }
    if !matches!(kind, Some("KUBE-EXT-" | "KUBE-XLB-")) {
        return Reached::by_all(endpoints(rules, chain, MAX_DEPTH));
    }
    let is_source = |condition: &Condition| {
        matches!(
            condition,
            Condition::Address(Side::Source, _)
                | Condition::Local(Side::Source)
                | Condition::Interface(Side::Source, _)
        )
    };
    let mut reached = Reached::default();
    for rule in rules.parsed_rules(Table::Nat, chain) {
        let Some(next) = rule.chain() else { continue };
        let endpoints = endpoints(rules, next, MAX_DEPTH);
        if rule.matches.iter().any(|one| is_source(&one.condition)) {
            reached.add_internal(endpoints);
        } else {
            reached.add_all(endpoints);
        }
    }
    reached
}

/// The destinations of DNAT in a chain and those that it leads to.
fn endpoints(rules: &Ruleset, chain: &str, depth: usize) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for rule in rules.parsed_rules(Table::Nat, chain) {
        match &rule.target {
            Target::Dnat { address: Some(address), port: Some(port) } => {
                found.insert(SocketAddr::new(*address, *port));
            }
            Target::Jump(chain) | Target::Goto(chain) if depth > 0 => found.extend(endpoints(rules, chain, depth - 1)),
            _ => {}
        }
    }
    found
}
