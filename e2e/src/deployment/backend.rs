//! The backends that the cases run with, and the little in which they differ.

use std::path::Path;
use std::process::Command;

use super::{program::fairlead, written};
use crate::netns::Netns;
use crate::tools::{nft, nft_list};

/// The limit of flows is the machine's: no network namespace but the first may set it.
const LEAVE_LIMIT: [&str; 2] = ["--conntrack-max-per-core", "0"];

/// Tables with nothing in them, for `iptables-restore`. The older variant has INPUT in nat too, whatever it is told.
const EMPTY: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
COMMIT
";

/// Which backend programs the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables.
    Nft,
    /// iptables that keeps its rules in nf_tables.
    IptablesNft,
    /// The older iptables.
    IptablesLegacy,
}

// === impl Backend ===

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::IptablesNft | Self::IptablesLegacy => "iptables",
        }
    }

    /// What it is told besides; clean-ups find out by themselves.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Nft => &[],
            Self::IptablesNft => &["--iptables-variant", "nft"],
            Self::IptablesLegacy => &["--iptables-variant", "legacy"],
        }
    }

    /// Its iptables of both families.
    fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Nft => &[],
            Self::IptablesNft => &["iptables-nft", "ip6tables-nft"],
            Self::IptablesLegacy => &["iptables-legacy", "ip6tables-legacy"],
        }
    }

    /// A backend that follows a frontend.
    pub(crate) fn follow(self, socket: &str, node: &str, state: &Path, arguments: &[String]) -> Command {
        let mut command = fairlead();
        command.args(["backend", self.name(), "--frontend", socket, "--node-name", node, "--state-dir"]);
        command.arg(state).args(LEAVE_LIMIT).args(self.arguments()).args(arguments);
        command
    }

    /// What the programs do that it runs, if it runs any, is noted in this directory.
    #[track_caller]
    pub(super) fn note(self, command: &mut Command, directory: &Path) {
        if !self.tools().is_empty() {
            written::install(directory, self.tools());
            let path = std::env::var("PATH").expect("a path to programs");
            command.env("PATH", format!("{}:{path}", directory.display()));
        }
    }

    /// Frontend and backend in one process.
    pub(crate) fn local(self, manifests: &Path, node: &str, state: &Path) -> Command {
        let mut command = fairlead();
        command.args(["local", "--backend", self.name(), "--node-name", node, "--manifests"]);
        command.arg(manifests).args(LEAVE_LIMIT).args(self.arguments()).arg("--state-dir").arg(state);
        command
    }

    /// Removes all that it has programmed, behind its back.
    #[track_caller]
    pub(crate) fn flush(self, netns: &Netns) {
        match self {
            Self::Nft => nft(netns, "delete table ip fairlead\ndelete table ip6 fairlead\n"),
            Self::IptablesNft | Self::IptablesLegacy => {
                self.tools().iter().for_each(|tool| netns.feed(&format!("{tool}-restore"), &[], EMPTY));
            }
        }
    }

    /// What is there before it has ever programmed anything: tables that iptables makes and keeps.
    #[track_caller]
    pub(crate) fn make_tables(self, netns: &Netns) {
        self.tools().iter().for_each(|tool| netns.feed(&format!("{tool}-restore"), &[], EMPTY));
    }

    /// All rules of a namespace, without counters and in no order: that of tables is how they came.
    #[track_caller]
    pub(crate) fn rules(self, netns: &Netns) -> Vec<String> {
        let mut rules = nft_list(netns);
        for tool in self.tools() {
            rules += &netns.output(&format!("{tool}-save"), &[]);
        }
        let lines = rules.lines().filter(|line| !line.starts_with('#'));
        let mut lines: Vec<_> =
            lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect();
        lines.sort();
        lines
    }

    /// The revision that the kernel holds according to this log line, if that is what it is about.
    pub(crate) fn programmed(self, line: &str) -> Option<u64> {
        let (before, rest) = line.split_once(" revision=")?;
        if !before.ends_with(": applied") && !before.ends_with(": reconciled") {
            return None;
        }
        rest.split_whitespace().next()?.parse().ok()
    }
}
