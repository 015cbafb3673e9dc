//! The backends that the cases run with, and the little in which they differ.

use std::path::Path;
use std::process::Command;

use super::program::fairlead;
use crate::netns::Netns;
use crate::tools::nft;

/// The limit of flows is the machine's: no network namespace but the first may set it.
const LEAVE_LIMIT: [&str; 2] = ["--conntrack-max-per-core", "0"];

/// Which backend programs the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables.
    Nft,
}

// === impl Backend ===

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
        }
    }

    /// A backend that follows a frontend.
    pub(crate) fn follow(self, socket: &str, node: &str, state: &Path, arguments: &[String]) -> Command {
        let mut command = fairlead();
        command.args(["backend", self.name(), "--frontend", socket, "--node-name", node, "--state-dir"]);
        command.arg(state).args(LEAVE_LIMIT).args(arguments);
        command
    }

    /// Frontend and backend in one process.
    pub(crate) fn local(self, manifests: &Path, node: &str, state: &Path) -> Command {
        let mut command = fairlead();
        command.args(["local", "--backend", self.name(), "--node-name", node, "--manifests"]);
        command.arg(manifests).args(LEAVE_LIMIT).arg("--state-dir").arg(state);
        command
    }

    /// Removes all that it has programmed, behind its back.
    #[track_caller]
    pub(crate) fn flush(self, netns: &Netns) {
        match self {
            Self::Nft => nft(netns, "delete table ip fairlead\ndelete table ip6 fairlead\n"),
        }
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
