//! In iptables mode: one rule per VIP, and chains behind it that end in DNAT.

use backend::dataplane::Vip;
use backend_iptables::has_programmed;
use iptables::{Condition, Rule, Ruleset, Side, Table, Target};
use proto::model::{IpFamily, Protocol};

use super::{Chains, ConnectionVerdict, KubeProxyRules, RuleTargets, VipKey, VipRules};
use crate::{modes::Mode, takeover::iptables::names};

/// What kube-proxy appends to the name of a service port in comments.
const COMMENT_SUFFIXES: [&str; 6] = [
    " cluster IP",
    " external IP",
    " loadbalancer IP",
    " has no endpoints",
    " has no local endpoints",
    " health check node port",
];

pub(super) fn read(family: IpFamily, rules: &Ruleset) -> KubeProxyRules {
    // Fairlead's iptables backend gives its chains the same names.
    if has_programmed(rules) {
        return KubeProxyRules::new();
    }
    let mut chains = Chains::default();
    for (name, _) in rules.chains_of(Table::Nat) {
        let targets = rules.parsed_rules(Table::Nat, name).map(|rule| targets(&rule));
        chains.0.insert(name.to_owned(), targets.collect());
    }

    let mut vips = KubeProxyRules::new();
    for rule in rules_of(rules, Table::Nat, ["KUBE-SERVICES", "KUBE-NODEPORTS"]) {
        let (Some(key), Some(chain)) = (vip(family, &rule), rule.chain()) else { continue };
        let chain = without_source_ranges(chain, &chains);
        let endpoints = chains.reached(chain, matches!(names::kind(chain), Some("KUBE-EXT-" | "KUBE-XLB-")));
        // Without any endpoint the packet is not translated, and the filter table decides.
        if endpoints.iter().any(|endpoints| !endpoints.is_empty()) {
            vips.entry(key).or_insert_with(|| VipRules::new(Mode::Iptables, service(&rule), endpoints));
        }
    }

    for rule in rules_of(rules, Table::Filter, ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"]) {
        let verdict = match rule.target {
            Target::Reject(_) => ConnectionVerdict::Reject,
            Target::Drop => ConnectionVerdict::Drop,
            _ => continue,
        };
        let Some(key) = vip(family, &rule) else { continue };
        vips.entry(key).or_insert_with(|| VipRules::everywhere(Mode::Iptables, service(&rule), verdict));
    }
    vips
}

fn rules_of(rules: &Ruleset, table: Table, chains: [&str; 2]) -> Vec<Rule> {
    chains.into_iter().flat_map(|chain| rules.parsed_rules(table, chain)).collect()
}

/// The chain in which clients within the source ranges continue: the first that a chain with source ranges jumps to.
fn without_source_ranges<'a>(chain: &'a str, chains: &'a Chains) -> &'a str {
    if names::kind(chain) != Some("KUBE-FW-") {
        return chain;
    }
    let rules = chains.0.get(chain).into_iter().flatten();
    rules.flat_map(|rule| &rule.chains).next().map_or(chain, String::as_str)
}

/// The VIP that a rule matches; `None` when it matches something else.
fn vip(family: IpFamily, rule: &Rule) -> Option<VipKey> {
    let protocol = rule.find(|condition| match condition {
        Condition::Protocol(number) => Protocol::from_number(*number),
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
    let vip = match address {
        // Loopback addresses have a rule of their own as well.
        Some(address) if address.is_ipv4() && address.is_loopback() => return None,
        Some(address) => Vip::AddressPort { address, port, protocol },
        None => Vip::NodePort { port, protocol },
    };
    Some(VipKey { family, vip })
}

fn service(rule: &Rule) -> Option<String> {
    let comment = Some(&rule.comment).filter(|comment| !comment.is_empty())?;
    let name = COMMENT_SUFFIXES.iter().find_map(|suffix| comment.strip_suffix(suffix)).unwrap_or(comment);
    Some(name.to_owned())
}

fn targets(rule: &Rule) -> RuleTargets {
    let endpoint = match rule.target {
        Target::Dnat { address: Some(address), port: Some(port) } => Some((address, port).into()),
        _ => None,
    };
    RuleTargets {
        is_conditional: rule.matches.iter().any(|one| depends_on_source(&one.condition)),
        endpoints: endpoint.into_iter().collect(),
        chains: rule.chain().map(str::to_owned).into_iter().collect(),
    }
}

fn depends_on_source(condition: &Condition) -> bool {
    use Condition::{Address, Interface, Local};
    matches!(condition, Address(Side::Source, _) | Local(Side::Source) | Interface(Side::Source, _))
}
