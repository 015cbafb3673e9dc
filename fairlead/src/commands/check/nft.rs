//! Checks the nft of this node. Fairlead runs none, but other programs do, and versions clash: earlier versions crash
//! on the sets that 1.1.3 and later have written.

use std::process::{Command, Stdio};

use anyhow::Result;
use netlink::nft::{NftHandle, Table, TableFamily};

use super::{Finding, kernel::running_kernel};

/// The versions with which `make nft-versions` has listed Fairlead's tables, and on which kernel.
const TESTED: [&str; 4] = ["0.9.8", "1.0.6", "1.1.3", "1.1.7"];
const TESTED_KERNEL: &str = "Linux 6.18";

/// The version of nft, what is known of it with this kernel, and sets on which some versions crash. Tables that cannot
/// be read are a finding of other checks.
pub(super) fn check() -> Vec<Finding> {
    let newer = tables_of_newer_nft().unwrap_or_default();
    findings(installed_version().as_deref(), &running_kernel(), &newer)
}

/// `newer`: the tables with sets that nft 1.1.3 or later has written.
fn findings(version: Option<&str>, kernel: &str, newer: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(version) = version {
        let is_tested = TESTED.contains(&version) && kernel.starts_with(TESTED_KERNEL);
        let evidence = if is_tested { "tested" } else { "by version, not tested" };
        let what = format!("nft {version} on {kernel} lists Fairlead's tables ({evidence}); Fairlead runs no nft");
        findings.push(Finding::ok("nft", what));
    }

    if !newer.is_empty() {
        let written = format!("nft 1.1.3 or later has written sets of table {}", newer.join(", "));
        findings.push(match version.and_then(crash_remedy) {
            Some(remedy) => Finding::ok("nft", written).warn(
                "unless its distribution has fixed it, the nft of this node crashes when it lists them or changes \
                 rules, and programs that run it fail; Fairlead runs no nft",
                remedy,
            ),
            None => {
                let others = "an older one, as kube-proxy and CNI plugins have in their containers, crashes on them";
                Finding::ok("nft", format!("{written}; {others}"))
            }
        });
    }
    findings
}

/// How to avoid that a version such as `1.0.6` crashes on sets that a newer version has written. `None`: it does not
/// crash.
fn crash_remedy(version: &str) -> Option<&'static str> {
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    match numbers[..] {
        // These versions read all tables first, whatever they are asked to list.
        [0, ..] | [1, 0, 0, ..] => Some("upgrade nft on this node to 1.1.3 or later"),
        [1, 0, ..] | [1, 1, 0..=2, ..] => {
            Some("upgrade nft on this node to 1.1.3 or later, or list one table at a time: nft list table ip fairlead1")
        }
        _ => None,
    }
}

/// The version of the nft in `PATH`; `None` if there is none.
fn installed_version() -> Option<String> {
    let output = Command::new("nft").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    // nftables v1.1.3 (Commodore Bullmoose #4)
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1)?.strip_prefix('v').map(str::to_owned)
}

/// The tables with sets on which earlier versions crash.
fn tables_of_newer_nft() -> Result<Vec<String>> {
    let mut handle = NftHandle::open()?;
    let mut found = Vec::new();
    for table in tables(&mut handle)? {
        if !handle.sets_of_newer_nft(&table)?.is_empty() {
            found.push(format!("{} {}", table.family, table.name));
        }
    }
    Ok(found)
}

/// The tables with rules for IP packets.
pub(crate) fn tables(handle: &mut NftHandle) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        tables.extend(handle.tables(family)?);
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Level;

    const KERNEL: &str = "Linux 6.18.44";

    #[test]
    fn known_pairs_are_tested_and_others_are_not() {
        let text = |version, kernel| findings(Some(version), kernel, &[]).remove(0).what;
        let expected = "nft 1.0.6 on Linux 6.18.44 lists Fairlead's tables (tested); Fairlead runs no nft";
        assert_eq!(text("1.0.6", KERNEL), expected);
        assert!(text("1.0.9", KERNEL).contains("(by version, not tested)"));
        assert!(text("1.0.6", "Linux 6.1.0").contains("(by version, not tested)"));
        assert_eq!(findings(None, KERNEL, &[]), []);
    }

    #[test]
    fn old_versions_warn_beside_sets_of_newer_ones() {
        let newer = ["inet calico".to_owned()];
        let of = |version| findings(version, KERNEL, &newer).pop().unwrap();

        let versions = [Some("0.9.8"), Some("1.0.6"), Some("1.1.1"), Some("1.1.3"), Some("1.2.0"), None];
        let levels = versions.map(|version| of(version).level);
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Warn, Level::Ok, Level::Ok, Level::Ok]);
        assert!(versions.iter().all(|version| of(*version).what.contains("has written sets of table inet calico")));
        assert!(of(Some("1.0.6")).fix.contains("nft list table ip fairlead1"), "it lists a table that is named");
        assert!(!of(Some("0.9.8")).fix.contains("nft list table"), "it lists none");
    }
}
