//! Checks the rules on this node: those of kube-proxy, of Fairlead's backends, and of firewalls that may drop packets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use backend::{InstalledObject, dataplane::DataplaneOptions};
use backend_ipvs::Settings;
use iptables::{Policy as ChainPolicy, Ruleset, SavedRules, Table, Variant, save_all};
use netlink::nft::{Hook, NftHandle, Policy, TableFamily};
use takeover::{FELIX_REMEDY, Leftovers};

use super::{CheckStage, Finding};
use crate::config::BackendName;

/// Tables of nf_tables that `iptables-nft` writes; they are inspected with the rules of iptables.
const IPTABLES_TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Tables of Fairlead and kube-proxy, which other checks inspect.
const PROXY_TABLES: [&str; 2] = ["fairlead", "kube-proxy"];

/// Checks all of them. Rules that cannot be read are a finding.
pub(super) async fn check(backend: BackendName, stage: CheckStage) -> Vec<Finding> {
    let unreadable = |what: &str, error: anyhow::Error| {
        vec![Finding::fail(
            "rules",
            format!("cannot read {what}: {error:#}"),
            "rules that conflict with Fairlead would not be found",
            "run this command as root (CAP_NET_ADMIN)",
        )]
    };
    let mut findings = kube_proxy(stage).await.unwrap_or_else(|error| unreadable("the rules of kube-proxy", error));
    findings.extend(own_backends(backend).await.unwrap_or_else(|error| unreadable("the rules of Fairlead", error)));
    findings.extend(firewalls().unwrap_or_else(|error| unreadable("the tables of nf_tables", error)));
    let iptables = save_all().await.and_then(|saved| variants(backend, &saved));
    findings.extend(iptables.unwrap_or_else(|error| unreadable("the rules of iptables", error)));
    findings
}

async fn kube_proxy(stage: CheckStage) -> Result<Vec<Finding>> {
    let leftovers = Leftovers::find().await?;
    let objects = leftovers.objects();
    if objects.is_empty() {
        return Ok(vec![Finding::ok("kube-proxy", "no rules of kube-proxy")]);
    }
    let mut counts = BTreeMap::<_, usize>::new();
    objects.iter().for_each(|object| *counts.entry(object.subsystem.as_str()).or_default() += object.count);
    let counts: Vec<_> = counts.iter().map(|(subsystem, count)| format!("{count} in {subsystem}")).collect();
    let what = format!("rules of kube-proxy: {}", counts.join(", "));
    let felix = leftovers.felix_may_follow().then(|| {
        Finding::warn(
            "calico",
            "Felix uses nf_tables, as kube-proxy does",
            "with nftablesMode Auto, its default, Felix restarts with iptables within 15 s after `fairlead cleanup --of \
             kube-proxy` has deleted kube-proxy's table",
            format!("before that command, {FELIX_REMEDY}; if it is Enabled already, ignore this"),
        )
    });
    let kube_proxy = match stage {
        CheckStage::BeforeInstallation => {
            Finding::ok("kube-proxy", format!("{what}; they serve Services until Fairlead does"))
        }
        CheckStage::Installed => Finding::warn(
            "kube-proxy",
            what,
            "two proxies serve the same VIPs; if kube-proxy no longer runs, its endpoints are outdated",
            "remove kube-proxy from this node, then run `fairlead cleanup --of kube-proxy` (first with --dry-run)",
        ),
    };
    Ok([Some(kube_proxy), felix].into_iter().flatten().collect())
}

/// What each backend of Fairlead has programmed.
async fn own_backends(backend: BackendName) -> Result<Vec<Finding>> {
    let mut nftables =
        backend_nft::open(DataplaneOptions::default()).context("cannot open a netlink socket for nf_tables")?;
    let nftables = nftables.installed_objects().await?;
    let chains =
        |family| InstalledObject { subsystem: "iptables".to_owned(), kind: format!("{family} chains"), count: 1 };
    let iptables = backend_iptables::programmed_families(None).await?.into_iter().map(chains).collect();
    // Fails in a kernel without IPVS.
    let ipvs = match backend_ipvs::open(Settings::default()) {
        Ok(mut backend) if !backend_ipvs::programmed_families().await.unwrap_or_default().is_empty() => {
            backend.installed_objects().await?
        }
        _ => Vec::new(),
    };
    let installed = [(BackendName::Nftables, nftables), (BackendName::Iptables, iptables), (BackendName::Ipvs, ipvs)];
    let finding = |(of, objects): (BackendName, Vec<InstalledObject>)| {
        let name = of.name();
        let objects: Vec<_> = objects.iter().map(|object| format!("{} {}", object.subsystem, object.kind)).collect();
        let what = format!("backend {name} has programmed: {}", objects.join(", "));
        if of == backend {
            return Finding::ok("fairlead", what);
        }
        Finding::warn(
            "fairlead",
            what,
            "these rules serve the same VIPs, and no process updates them",
            format!(
                "run `fairlead cleanup --backend {name}`, or check with --backend {name} if that backend runs here"
            ),
        )
    };
    Ok(installed.into_iter().filter(|(_, objects)| !objects.is_empty()).map(finding).collect())
}

/// Base chains in tables of other programs.
fn firewalls() -> Result<Vec<Finding>> {
    let mut handle = NftHandle::open().context("cannot open a netlink socket for nf_tables")?;
    let mut findings = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family)? {
            let is_iptables = family != TableFamily::Inet && IPTABLES_TABLES.contains(&table.name.as_str());
            if is_iptables || PROXY_TABLES.contains(&table.name.as_str()) {
                continue;
            }
            let chains = handle.chains(&table)?;
            let bases = chains.iter().filter_map(|chain| Some((&chain.name, chain.base?)));
            for (name, base) in bases {
                findings.extend(firewall_chain(&format!("{family} {}", table.name), name, base));
            }
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("firewall", "no base chains in other tables of nf_tables"));
    }
    Ok(findings)
}

fn firewall_chain(table: &str, chain: &str, base: netlink::nft::BaseChain) -> Option<Finding> {
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Other(_) => return None,
    };
    let program = if table.ends_with(" firewalld") { " (firewalld)" } else { "" };
    let what = format!("table {table}{program}: chain {chain} at {hook}, priority {}", base.priority);
    Some(if base.policy == Policy::Drop {
        Finding::warn(
            "firewall",
            format!("{what}, policy drop"),
            "it drops packets that none of its rules accepts, before or after Fairlead's rules",
            "accept packets to pods and node ports in this chain; `fairlead trace` shows the order of chains",
        )
    } else {
        Finding::ok("firewall", what)
    })
}

/// Rules and policies of both variants of iptables.
fn variants(backend: BackendName, saved: &[SavedRules]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if saved.is_empty() && backend != BackendName::Nftables {
        return Ok(vec![Finding::fail(
            "iptables",
            "iptables is not installed",
            "this backend writes its rules with it",
            "install iptables 1.8.9 or later, or use backend nftables",
        )]);
    }
    let mut used = Vec::new();
    for saved in saved {
        let rules =
            Ruleset::parse(&saved.text).with_context(|| format!("cannot parse the output of {}", saved.program))?;
        if rules.chains().any(|(_, _, chain)| !chain.rules.is_empty()) {
            used.push((saved.program, rules));
        }
    }
    for family in proto::model::IpFamily::ALL {
        let by = |variant| used.iter().any(|(program, _)| program.family == family && program.variant == variant);
        if by(Variant::Nft) && by(Variant::Legacy) {
            findings.push(Finding::warn(
                "iptables",
                format!("both variants (nft and legacy) have {family} rules"),
                "the kernel evaluates both for every packet, but each program shows only its own",
                "compare `iptables-legacy-save` with `iptables-nft-save`, and remove the rules of one of them",
            ));
        }
    }
    for (program, rules) in &used {
        let forward = rules.chain(Table::Filter, "FORWARD");
        if forward.is_some_and(|chain| chain.policy == Some(ChainPolicy::Drop)) {
            findings.push(Finding::warn(
                "firewall",
                format!("{program}: chain FORWARD has policy DROP"),
                "it drops forwarded packets that no rule accepts, also those of pods; Docker and some firewalls set it",
                format!("run `{program} -P FORWARD ACCEPT`, or add rules that accept packets to and from pods"),
            ));
        }
        if backend == BackendName::Ipvs && rules.chains().any(|(_, name, _)| name.starts_with("cali-")) {
            findings.push(Finding::warn(
                "calico",
                format!("{program}: chains of Calico's Felix"),
                "its packet marks (iptablesMarkMask, 0xffff0000 by default) have bits of the marks by which this backend \
                 selects virtual servers: node ports and external IPs may fail",
                "use backend nftables or iptables",
            ));
        }
        if rules.chains().any(|(_, name, _)| name.starts_with("ufw-")) {
            findings.push(Finding::warn(
                "firewall",
                format!("{program}: chains of ufw"),
                "by default ufw drops forwarded packets",
                "set DEFAULT_FORWARD_POLICY=\"ACCEPT\" in /etc/default/ufw, and allow node ports",
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
    use crate::commands::check::Level;

    fn saved(variant: Variant, text: &str) -> SavedRules {
        SavedRules { program: Program::new(IpFamily::V4, variant), text: text.to_owned() }
    }

    fn levels(saved: &[SavedRules]) -> Vec<(Level, &'static str)> {
        variants(BackendName::Iptables, saved).unwrap().into_iter().map(|f| (f.level, f.check)).collect()
    }

    #[test]
    fn mixed_variants_and_drop_policies_warn() {
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

    #[test]
    fn felix_shares_marks_with_backend_ipvs() {
        let rule = "*filter\n:FORWARD ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\nCOMMIT\n";
        let found = |backend| variants(backend, &[saved(Variant::Nft, rule)]).unwrap().remove(0);
        assert_eq!((found(BackendName::Ipvs).level, found(BackendName::Ipvs).check), (Level::Warn, "calico"));
        assert_eq!(found(BackendName::Iptables).level, Level::Ok);
    }
}
