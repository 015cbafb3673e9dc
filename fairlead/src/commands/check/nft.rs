//! Checks the nft of this node. Fairlead runs none, but other programs do, and versions clash: what 1.1.3 and later write
//! into the kernel for a set, earlier ones crash on when they list it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use netlink::nft::{NftHandle, TableFamily};

use super::{Finding, kernel::running_kernel};

/// The versions with which `make nft-versions` has listed Fairlead's tables, and on which kernel.
const TESTED: [&str; 4] = ["0.9.8", "1.0.6", "1.1.3", "1.1.7"];
const TESTED_KERNEL: &str = "Linux 6.18";

/// When a version of nft crashes beside sets that a newer one has written.
#[derive(Debug, PartialEq, Eq)]
enum Crash {
    Never,
    /// On most commands; it still lists a table that is named.
    OnMostCommands,
    /// On all that read, because it reads all tables first.
    OnAllCommands,
}

/// The version of nft, and what is known of it with this kernel and these tables. `None`: neither nft nor sets of a newer
/// one are here, or they cannot be read, which other checks report.
pub(super) fn check() -> Option<Finding> {
    let newer = tables_of_newer_nft().unwrap_or_default();
    match (installed_version(), newer.is_empty()) {
        (Some(version), _) => Some(finding(&version, &running_kernel(), &newer)),
        (None, true) => None,
        (None, false) => Some(Finding::ok(
            "nft",
            format!(
                "{}; versions before 1.1.3, also those of kube-proxy and CNI plugins in containers, crash on them",
                written_by_newer(&newer)
            ),
        )),
    }
}

fn finding(version: &str, kernel: &str, newer: &[String]) -> Finding {
    let is_tested = TESTED.contains(&version) && kernel.starts_with(TESTED_KERNEL);
    let evidence = if is_tested { "tested" } else { "by version, not tested" };
    let pair = format!("nft {version} on {kernel}");
    let crash = Crash::of(version);

    if newer.is_empty() || crash == Crash::Never {
        return Finding::ok("nft", format!("{pair} lists Fairlead's tables ({evidence}); Fairlead runs no nft"));
    }
    let mut fix = "upgrade nft on this node to 1.1.3 or later".to_owned();
    if crash == Crash::OnMostCommands {
        fix += ", or list one table at a time: nft list table ip fairlead1";
    }
    Finding::ok("nft", format!("{pair}: {}", written_by_newer(newer))).warn(
        "unless its distribution has mended it, this nft crashes when it lists everything or changes rules, and programs \
         that run it fail; Fairlead runs no nft",
        fix,
    )
}

fn written_by_newer(tables: &[String]) -> String {
    format!("nft 1.1.3 or later has written sets of table {}", tables.join(", "))
}

/// What `nft --version` says, without the name; `None`: there is no nft in `PATH`.
fn installed_version() -> Option<String> {
    let output = Command::new("nft").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1)?.strip_prefix('v').map(str::to_owned)
}

/// The tables with sets on which earlier versions crash.
fn tables_of_newer_nft() -> Result<Vec<String>> {
    let mut handle = NftHandle::open().context("cannot open a netlink socket for nf_tables")?;
    let mut found = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family)? {
            if !handle.sets_of_newer_nft(&table)?.is_empty() {
                found.push(format!("{family} {}", table.name));
            }
        }
    }
    Ok(found)
}

impl Crash {
    /// That of a version such as `1.0.6`.
    fn of(version: &str) -> Self {
        let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
        match numbers[..] {
            [0, ..] | [1, 0, 0, ..] => Self::OnAllCommands,
            [1, 0, ..] | [1, 1, 0..=2, ..] => Self::OnMostCommands,
            _ => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Level;

    const KERNEL: &str = "Linux 6.18.44";

    #[test]
    fn known_pairs_are_tested_and_others_are_not() {
        let text = |version, kernel| finding(version, kernel, &[]).what;
        let expected = "nft 1.0.6 on Linux 6.18.44 lists Fairlead's tables (tested); Fairlead runs no nft";
        assert_eq!(text("1.0.6", KERNEL), expected);
        assert!(text("1.0.9", KERNEL).contains("(by version, not tested)"));
        assert!(text("1.0.6", "Linux 6.1.0").contains("(by version, not tested)"));
    }

    #[test]
    fn old_versions_warn_beside_sets_of_newer_ones() {
        let newer = ["inet calico".to_owned()];
        let of = |version| finding(version, KERNEL, &newer);

        let levels = ["0.9.8", "1.0.6", "1.1.1", "1.1.3", "1.2.0"].map(|version| of(version).level);
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Warn, Level::Ok, Level::Ok]);
        assert!(of("1.0.6").what.ends_with("nft 1.1.3 or later has written sets of table inet calico"));
        assert!(of("1.0.6").fix.contains("nft list table ip fairlead1"), "it lists a table that is named");
        assert!(!of("0.9.8").fix.contains("nft list table"), "it lists none");
    }
}
