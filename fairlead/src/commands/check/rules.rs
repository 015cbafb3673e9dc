//! Checks the rules on this node: those of kube-proxy, of Fairlead's backends, and of other programs that may drop
//! packets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Error, Result};
use iptables::{HiddenTable, Policy as ChainPolicy, Ruleset, SavedRules, Table, save_all, target};
use netlink::nft::{Expr, Hook, ListedRule, NftHandle, Policy, TableFamily, Verdict};

use super::{Finding, nft::tables};
use crate::{
    commands::dataplanes::programmed,
    modes::Mode,
    takeover::{FELIX_REMEDY, Leftovers},
};

/// Prefixes of chains whose dropped packets are not reported: Fairlead and kube-proxy drop as Services demand, and
/// Calico as network policies do.
const EXPECTED_TO_DROP: [&str; 3] = ["FAIRLEAD-", "KUBE-", "cali-"];

/// Checks all of them. Rules that cannot be read are a finding.
pub(super) async fn check(mode: Mode, is_installed: bool) -> Vec<Finding> {
    let iptables = save_all().await.and_then(|saved| iptables_rules(mode, &saved));
    let mut findings = Vec::new();
    for (rules, checked) in [
        ("the rules of kube-proxy", kube_proxy(is_installed).await),
        ("the rules of Fairlead", own_backends(mode).await),
        ("the tables of nf_tables", other_tables()),
        ("the rules of iptables", iptables),
    ] {
        match checked {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(unreadable(rules, &error)),
        }
    }
    findings
}

fn unreadable(rules: &str, error: &Error) -> Finding {
    // The error about a hidden table contains the remedy.
    let fix = if error.is::<HiddenTable>() { "" } else { "run this command as root (CAP_NET_ADMIN)" };
    let why = "rules that conflict with Fairlead would not be found";
    Finding::ok("rules", format!("cannot read {rules}: {error:#}")).fail(why, fix)
}

async fn kube_proxy(is_installed: bool) -> Result<Vec<Finding>> {
    let leftovers = Leftovers::find().await?;
    let mut counts = BTreeMap::<_, usize>::new();
    for object in leftovers.objects() {
        *counts.entry(object.subsystem).or_default() += object.count;
    }
    if counts.is_empty() {
        return Ok(vec![Finding::ok("kube-proxy", "no rules of kube-proxy")]);
    }

    let counts: Vec<_> = counts.iter().map(|(subsystem, count)| format!("{count} in {subsystem}")).collect();
    let what = format!("rules of kube-proxy: {}", counts.join(", "));
    let mut findings = vec![if is_installed {
        Finding::ok("kube-proxy", what).warn(
            "two proxies serve the same VIPs; if kube-proxy no longer runs, its endpoints are outdated",
            "remove kube-proxy from this node, then run `fairlead cleanup --of kube-proxy` (first with --dry-run)",
        )
    } else {
        Finding::ok("kube-proxy", format!("{what}; they serve Services until Fairlead does"))
    }];

    if leftovers.felix_may_follow() {
        findings.push(Finding::ok("calico", "Felix uses nf_tables, as kube-proxy does").warn(
            "with nftablesMode Auto, its default, Felix restarts with iptables within 15 s after `fairlead cleanup --of \
             kube-proxy` has deleted kube-proxy's table",
            format!("before that command, {FELIX_REMEDY}; if it is Enabled already, ignore this"),
        ));
    }
    Ok(findings)
}

/// What each mode of Fairlead has programmed.
async fn own_backends(mode: Mode) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (programmed, families) in programmed().await? {
        let name = programmed.name();
        let families: Vec<_> = families.iter().map(ToString::to_string).collect();
        let found = Finding::ok("fairlead", format!("backend {name} has programmed {}", families.join(" and ")));
        findings.push(if programmed == mode {
            found
        } else {
            found.warn(
                "its rules serve the same VIPs, and no process updates them unless that backend runs here",
                format!("run `fairlead cleanup --backend {name}`, or check with --backend {name} if it runs"),
            )
        });
    }
    Ok(findings)
}

/// Base chains in tables of other programs that drop what they do not accept, or forwarded packets by a rule.
fn other_tables() -> Result<Vec<Finding>> {
    let mut handle = NftHandle::open().context("cannot open a netlink socket for nf_tables")?;
    let mut findings = Vec::new();
    for table in tables(&mut handle)? {
        // Other checks inspect the tables of iptables, Fairlead and kube-proxy.
        let is_known = Table::from_name(&table.name).is_some() || backend_nft::is_own_table(&table.name);
        if table.name == "kube-proxy" || is_known && table.family != TableFamily::Inet {
            continue;
        }

        let rules: Vec<_> = handle.rules(&table)?.into_iter().map(FilterRule::of_nft).collect();
        for chain in handle.chains(&table)? {
            let Some(base) = chain.base else { continue };
            let described = format!("table {} {}: chain {}", table.family, table.name, chain.name);
            if base.hook == Hook::Forward {
                findings.extend(dropped_by_rules(&described, &chain.name, &rules));
            }
            if base.policy == Policy::Drop {
                findings.push(dropped_by_policy(&described));
            }
        }
    }
    Ok(findings)
}

/// Rules and policies of both variants of iptables.
fn iptables_rules(mode: Mode, saved: &[SavedRules]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for SavedRules { program, text } in saved {
        let rules = Ruleset::parse(text).with_context(|| format!("cannot parse the output of {program}"))?;
        let policy = rules.chain(Table::Filter, "FORWARD").and_then(|chain| chain.policy);
        let is_used = rules.chains().any(|(_, _, chain)| !chain.rules.is_empty());
        if is_used && policy == Some(ChainPolicy::Drop) {
            findings.push(dropped_by_policy(&format!("{program}: chain FORWARD")));
        }

        for table in [Table::Mangle, Table::Filter] {
            let mut listed = Vec::new();
            for (name, chain) in rules.chains_of(table) {
                listed.extend(chain.rules.iter().map(|rule| FilterRule::of_iptables(name, rule)));
            }
            findings.extend(dropped_by_rules(&format!("{program}: chain FORWARD of {table}"), "FORWARD", &listed));
        }

        let has_felix = rules.chains().any(|(_, name, _)| name.starts_with("cali-"));
        if has_felix && mode.traits().shares_marks_with_felix {
            findings.push(Finding::ok("calico", format!("{program}: chains of Calico's Felix")).warn(
                "its packet marks (iptablesMarkMask, 0xffff0000 by default) have bits of the marks by which this backend \
                 selects virtual servers: node ports and external IPs may fail",
                "use backend nftables or iptables",
            ));
        }
    }
    Ok(findings)
}

/// A chain whose policy is to drop packets.
fn dropped_by_policy(chain: &str) -> Finding {
    Finding::ok("firewall", format!("{chain} has policy drop")).warn(
        "it drops packets that none of its rules accepts, before or after Fairlead's rules",
        "accept packets to and from pods and node ports in this chain; `fairlead trace` shows the order of chains",
    )
}

/// The rules that forwarded packets may reach from a base chain and that drop them.
fn dropped_by_rules(described: &str, base: &str, rules: &[FilterRule]) -> Option<Finding> {
    let texts = dropping(base, rules);
    let what = match texts[..] {
        [] => return None,
        [only] => format!("{described} has a rule that drops forwarded packets: {only}"),
        [first, ..] => format!("{described} has {} rules that drop forwarded packets, first {first}", texts.len()),
    };
    Some(Finding::ok("firewall", what).warn(
        "it drops packets to and from pods that it matches, before or after Fairlead's rules",
        "if these are packets of Services, accept them before that rule; `fairlead trace` shows whether a packet meets it",
    ))
}

/// The texts of rules that drop packets, in a chain and the chains that it leads to. Without rules for invalid packets,
/// which are no traffic of Services.
fn dropping<'a>(base: &'a str, rules: &'a [FilterRule]) -> Vec<&'a str> {
    let mut texts = Vec::new();
    let mut chains = vec![base];
    let mut next = 0;
    while let Some(chain) = chains.get(next).copied() {
        next += 1;
        for rule in rules.iter().filter(|rule| rule.chain == chain) {
            match &rule.action {
                RuleAction::Drop if !rule.text.to_lowercase().contains("invalid") => texts.push(rule.text.as_str()),
                RuleAction::Chain(target) => {
                    let is_expected = EXPECTED_TO_DROP.iter().any(|prefix| target.starts_with(prefix));
                    if !is_expected && !chains.contains(&target.as_str()) {
                        chains.push(target);
                    }
                }
                RuleAction::Drop | RuleAction::Other => {}
            }
        }
    }
    texts
}

/// A rule, as far as it is known whether it drops packets.
struct FilterRule {
    chain: String,
    /// As `nft` or `iptables-save` prints it.
    text: String,
    action: RuleAction,
}

enum RuleAction {
    /// It drops or rejects the packets that it matches.
    Drop,
    /// It continues in another chain.
    Chain(String),
    Other,
}

impl FilterRule {
    fn of_nft(ListedRule { chain, rule, .. }: ListedRule) -> Self {
        let action = rule.exprs.iter().find_map(|expr| match expr {
            Expr::Verdict(Verdict::Drop) | Expr::Reject(_) => Some(RuleAction::Drop),
            Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(RuleAction::Chain(chain.to_string())),
            _ => None,
        });
        Self { chain, text: rule.to_string(), action: action.unwrap_or(RuleAction::Other) }
    }

    fn of_iptables(chain: &str, rule: &str) -> Self {
        let action = match target(rule) {
            Some("DROP" | "REJECT") => RuleAction::Drop,
            Some(chain) => RuleAction::Chain(chain.to_owned()),
            None => RuleAction::Other,
        };
        Self { chain: chain.to_owned(), text: format!("-A {chain} {rule}"), action }
    }
}

#[cfg(test)]
mod tests {
    use iptables::{Program, Variant};
    use proto::model::IpFamily;

    use super::*;
    use crate::commands::check::Level;

    fn saved(variant: Variant, text: &str) -> SavedRules {
        SavedRules { program: Program::new(IpFamily::V4, variant), text: text.to_owned() }
    }

    fn levels(saved: &[SavedRules]) -> Vec<(Level, &'static str)> {
        iptables_rules(Mode::Iptables, saved).unwrap().into_iter().map(|f| (f.level, f.check)).collect()
    }

    #[test]
    fn drop_policies_warn() {
        let rule = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j ACCEPT\nCOMMIT\n";
        let empty = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(levels(&[saved(Variant::Nft, rule), saved(Variant::Legacy, empty)]), []);
        let drops = rule.replace("FORWARD ACCEPT [", "FORWARD DROP [");
        assert_eq!(levels(&[saved(Variant::Nft, &drops)]), [(Level::Warn, "firewall")]);
        let unused = empty.replace("FORWARD ACCEPT [", "FORWARD DROP [");
        assert_eq!(levels(&[saved(Variant::Nft, &unused)]), []);
    }

    #[test]
    fn drop_rules_of_forwarded_packets_warn() {
        let found = |rules: &str| {
            let text = format!("*filter\n:FORWARD ACCEPT [0:0]\n:USER - [0:0]\n:KUBE-FORWARD - [0:0]\n{rules}COMMIT\n");
            let found = iptables_rules(Mode::Iptables, &[saved(Variant::Nft, &text)]).unwrap();
            found.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let drop = "-A FORWARD -s 10.244.0.0/16 -j DROP\n";
        let chain = "iptables-nft: chain FORWARD of filter";
        let expected = format!("{chain} has a rule that drops forwarded packets: {}", drop.trim());
        assert_eq!(found(drop), [expected]);
        let several = found("-A FORWARD -j USER\n-A USER -i eth1 -j REJECT --reject-with tcp-reset\n-A USER -j DROP\n");
        let expected = "2 rules that drop forwarded packets, first -A USER -i eth1 -j REJECT --reject-with tcp-reset";
        assert_eq!(several, [format!("{chain} has {expected}")]);
        for harmless in [
            "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n",
            "-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j DROP\n",
            "-A USER -j DROP\n",
            "-A FORWARD -j USER\n-A USER -j FORWARD\n",
        ] {
            assert_eq!(found(harmless), Vec::<String>::new(), "{harmless}");
        }
    }

    /// The rules of nf_tables in a network namespace of its own.
    #[test]
    fn drop_rules_of_nf_tables_are_found() {
        let found = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let rules = "add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; \
                         add chain inet fw more; add rule inet fw f ip saddr 10.244.0.0/16 jump more; \
                         add rule inet fw more tcp dport 80 drop; \
                         add chain inet fw in { type filter hook input priority 0; }; add rule inet fw in drop";
            let status = std::process::Command::new("nft").arg(rules).status().unwrap();
            assert!(status.success());
            other_tables().unwrap()
        });
        let found = found.join().unwrap();
        let [finding] = &found[..] else { panic!("{found:?}") };
        let expected =
            "table inet fw: chain f has a rule that drops forwarded packets: meta l4proto tcp th dport 80 drop";
        assert_eq!((finding.level, &*finding.what), (Level::Warn, expected));
    }

    #[test]
    fn felix_shares_marks_with_backend_ipvs() {
        let rule = "*filter\n:FORWARD ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\nCOMMIT\n";
        let found = |backend| iptables_rules(backend, &[saved(Variant::Nft, rule)]).unwrap();
        let of_ipvs = found(Mode::Ipvs).remove(0);
        assert_eq!((of_ipvs.level, of_ipvs.check), (Level::Warn, "calico"));
        assert_eq!(found(Mode::Iptables), []);
    }
}
