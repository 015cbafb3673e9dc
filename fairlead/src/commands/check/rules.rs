//! Whose rules there are on this node: kube-proxy's, those of our other backends, and those of everybody else that may stop packets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use backend::{InstalledObject, dataplane::DataplaneOptions};
use backend_ipvs::Settings;
use iptables::{Policy as ChainPolicy, Ruleset, SavedRules, Table, Variant, save_all};
use netlink::nft::{Hook, NftHandle, Policy, TableFamily};
use takeover::Leftovers;

use super::{Finding, Level, Stage};
use crate::{
    cli::BackendName,
    commands::backend::{ipvs, nftables},
};

/// Tables of iptables that are rules of `iptables-nft`, and looked at as such.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Tables that are Fairlead's, and kube-proxy's, of which [`takeover`] knows.
const KNOWN: [&str; 2] = ["fairlead", "kube-proxy"];

/// All of them. What cannot be read is a finding.
pub(super) async fn check(backend: BackendName, stage: Stage) -> Vec<Finding> {
    let unreadable = |what: &str, error: anyhow::Error| {
        vec![Finding::fail(
            "rules",
            format!("{what} cannot be read: {error:#}"),
            "without it the rules cannot be inspected",
            "run this as root (CAP_NET_ADMIN)",
        )]
    };
    let mut findings = predecessor(stage).await.unwrap_or_else(|error| unreadable("what kube-proxy left", error));
    findings.extend(others_of_ours(backend).await.unwrap_or_else(|error| unreadable("our own rules", error)));
    findings.extend(foreign().unwrap_or_else(|error| unreadable("nf_tables", error)));
    let iptables = save_all().await.and_then(|saved| variants(backend, &saved));
    findings.extend(iptables.unwrap_or_else(|error| unreadable("iptables", error)));
    findings
}

async fn predecessor(stage: Stage) -> Result<Vec<Finding>> {
    let leftovers = Leftovers::find().await?;
    let items = leftovers.objects();
    if items.is_empty() {
        return Ok(vec![Finding::ok("kube-proxy", "it has left nothing in the kernel")]);
    }
    let mut places = BTreeMap::<_, usize>::new();
    items.iter().for_each(|item| *places.entry(item.subsystem.as_str()).or_default() += item.count);
    let places: Vec<_> = places.iter().map(|(place, count)| format!("{count} in {place}")).collect();
    let what = format!("its rules are here: {}", places.join(", "));
    Ok(vec![match stage {
        Stage::BeforeInstallation => Finding::ok("kube-proxy", format!("{what}; Services work until ours do")),
        Stage::Installed => Finding::warn(
            "kube-proxy",
            what,
            "two proxies answer for the same addresses, and those of one of them may be of yesterday",
            "remove kube-proxy from this node, then `fairlead cleanup --of kube-proxy` (try --dry-run first)",
        ),
    }])
}

/// What our other backends have programmed, and this one.
async fn others_of_ours(backend: BackendName) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut present = vec![(BackendName::Nftables, nftables(DataplaneOptions::default())?.installed_objects().await?)];
    let iptables = backend_iptables::programmed_families().await?;
    let item =
        |family| InstalledObject { subsystem: "iptables".to_owned(), kind: format!("{family} chains"), count: 1 };
    present.push((BackendName::Iptables, iptables.into_iter().map(item).collect()));
    // A kernel without IPVS has none of its servers.
    let items = match ipvs(Settings::default()) {
        Ok(mut backend) if !backend_ipvs::programmed_families().await.unwrap_or_default().is_empty() => {
            backend.installed_objects().await?
        }
        _ => Vec::new(),
    };
    present.push((BackendName::Ipvs, items));
    for (of, items) in present.into_iter().filter(|(_, items)| !items.is_empty()) {
        let name = format!("{of:?}").to_lowercase();
        let what: Vec<_> = items.iter().map(|item| format!("{} {}", item.subsystem, item.kind)).collect();
        findings.push(if of == backend {
            Finding::ok("fairlead", format!("backend {name} has programmed: {}", what.join(", ")))
        } else {
            Finding::warn(
                "fairlead",
                format!("backend {name} has left its rules: {}", what.join(", ")),
                "they serve the same addresses, and no process updates them",
                format!("fairlead cleanup --backend {name}, unless that backend is the one that runs"),
            )
        });
    }
    Ok(findings)
}

/// Base chains of other tables.
fn foreign() -> Result<Vec<Finding>> {
    let mut handle = NftHandle::open().context("open nf_tables")?;
    let mut findings = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family)? {
            let of_iptables = family != TableFamily::Inet && OF_IPTABLES.contains(&table.name.as_str());
            if of_iptables || KNOWN.contains(&table.name.as_str()) {
                continue;
            }
            let chains = handle.chains(&table)?;
            let bases = chains.iter().filter_map(|chain| Some((&chain.name, chain.base?)));
            for (name, base) in bases {
                findings.extend(foreign_chain(&format!("{family} {}", table.name), name, base));
            }
        }
    }
    if findings.iter().all(|finding| finding.level == Level::Ok) && findings.is_empty() {
        findings.push(Finding::ok("firewall", "no other table of nf_tables has chains at the hooks of packets"));
    }
    Ok(findings)
}

fn foreign_chain(table: &str, chain: &str, base: netlink::nft::BaseChain) -> Option<Finding> {
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Other(_) => return None,
    };
    let whose = if table.ends_with(" firewalld") { " (firewalld)" } else { "" };
    let what = format!("table {table}{whose}: chain {chain} at {hook}, priority {}", base.priority);
    Some(if base.policy == Policy::Drop {
        Finding::warn(
            "firewall",
            format!("{what}, policy drop"),
            "what it does not accept is dropped, after our rules or before",
            "let it accept what is forwarded to pods and arrives at node ports; `fairlead trace` shows the order of the chains",
        )
    } else {
        Finding::ok("firewall", what)
    })
}

/// Which variants of iptables have rules, and which policies.
fn variants(backend: BackendName, saved: &[SavedRules]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if saved.is_empty() && backend != BackendName::Nftables {
        return Ok(vec![Finding::fail(
            "iptables",
            "no iptables is installed",
            "this backend writes its rules with it",
            "install iptables 1.8.9 or later, or use backend nft",
        )]);
    }
    let mut used = Vec::new();
    for saved in saved {
        let rules = Ruleset::parse(&saved.text).with_context(|| format!("read the rules of {}", saved.program))?;
        if rules.chains().any(|(_, _, chain)| !chain.rules.is_empty()) {
            used.push((saved.program, rules));
        }
    }
    for family in proto::model::IpFamily::ALL {
        let by = |variant| used.iter().any(|(program, _)| program.family == family && program.variant == variant);
        if by(Variant::Nft) && by(Variant::Legacy) {
            findings.push(Finding::warn(
                "iptables",
                format!("both variants hold {family} rules"),
                "each is evaluated for every packet, and each program shows one of them only",
                "find the program that writes the other one (`iptables-legacy-save`, `iptables-nft-save`), and remove its rules",
            ));
        }
    }
    for (program, rules) in &used {
        let forward = rules.chain(Table::Filter, "FORWARD");
        if forward.is_some_and(|chain| chain.policy == Some(ChainPolicy::Drop)) {
            findings.push(Finding::warn(
                "firewall",
                format!("{program}: the policy of FORWARD is DROP"),
                "packets that no rule accepts, as those to pods, are dropped; Docker sets this policy, and some firewalls",
                format!("{program} -P FORWARD ACCEPT, or rules that accept packets to pods and from them"),
            ));
        }
        if rules.chains().any(|(_, name, _)| name.starts_with("ufw-")) {
            findings.push(Finding::warn(
                "firewall",
                format!("{program}: ufw has its chains here"),
                "by default it drops forwarded packets",
                "set DEFAULT_FORWARD_POLICY=\"ACCEPT\" in /etc/default/ufw, and allow the ports of the node",
            ));
        }
    }
    if findings.is_empty() {
        let programs: Vec<_> = used.iter().map(|(program, _)| program.name).collect();
        findings.push(Finding::ok(
            "iptables",
            if programs.is_empty() {
                "no iptables rules".to_owned()
            } else {
                format!("rules of {}", programs.join(", "))
            },
        ));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use iptables::Program;
    use proto::model::IpFamily;

    use super::*;

    fn saved(variant: Variant, text: &str) -> SavedRules {
        SavedRules { program: Program::new(IpFamily::V4, variant), text: text.to_owned() }
    }

    fn levels(saved: &[SavedRules]) -> Vec<(Level, &'static str)> {
        variants(BackendName::Iptables, saved).unwrap().into_iter().map(|f| (f.level, f.check)).collect()
    }

    #[test]
    fn a_mix_and_what_drops_are_told() {
        let rule = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j ACCEPT\nCOMMIT\n";
        let empty = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(levels(&[]), [(Level::Fail, "iptables")]);
        let one = [saved(Variant::Nft, rule), saved(Variant::Legacy, empty)];
        assert_eq!(levels(&one), [(Level::Ok, "iptables")]);
        let both = [saved(Variant::Nft, rule), saved(Variant::Legacy, rule)];
        assert_eq!(levels(&both), [(Level::Warn, "iptables")]);
        let drops = rule.replace("FORWARD ACCEPT [", "FORWARD DROP [").replace("-A", ":ufw-user - [0:0]\n-A");
        assert_eq!(levels(&[saved(Variant::Nft, &drops)]), [(Level::Warn, "firewall"), (Level::Warn, "firewall")]);
    }
}
