//! Observes what a backend writes to its node's kernel: by `nft monitor`; for iptables, whose legacy variant sends no
//! notifications, by scripts in the backend's PATH that record each `iptables-restore` and `iptables-save` and run it;
//! for IPVS by comparing snapshots.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::backend::ipvs;
use crate::{netns::Netns, tools::NftMonitor};

/// Records the input of `iptables-restore`. If [`crate::FaultPoint`]s prepared a fault, counts down to it.
const RESTORE: &str = r#"#!/bin/sh
PATH=${PATH#*:}
here=${0%/*} tool=${0##*/}
if [ -e "$here/fault" ]; then
    exec 9>"$here/lock"
    flock 9
    left=$(cat "$here/left")
    [ "$left" = 0 ] || echo $((left - 1)) >"$here/left"
    exec 9>&-
    [ "$left" != 1 ] || . "$here/fault"
fi
tee -a "$here/restored" | exec "$tool" "$@"
"#;
/// Records each run of `iptables-save`.
const SAVE: &str = "#!/bin/sh\nPATH=${PATH#*:}\necho \"${0##*/}\" >> \"${0%/*}/saved\"\nexec \"${0##*/}\" \"$@\"\n";

/// Reports the changes since it was created.
#[derive(Debug)]
pub enum Monitor {
    /// From notifications of the kernel.
    Nft(NftMonitor),
    /// From the recorded input of iptables.
    Iptables(IptablesCalls),
    /// By comparing IPVS objects before and after.
    Ipvs(IpvsSnapshot),
}

/// The IPVS objects at the last call.
#[derive(Debug)]
pub struct IpvsSnapshot {
    netns: Netns,
    lines: BTreeSet<String>,
}

/// The calls that the scripts recorded, in a file for each script.
#[derive(Debug)]
pub struct IptablesCalls {
    directory: PathBuf,
    restored: usize,
    saved: usize,
}

/// Records the calls of all iptables programs: a takeover also runs those of other modes.
#[track_caller]
pub(super) fn record_all_tools(command: &mut Command, directory: &Path) {
    record(command, directory, &["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"]);
}

/// Records the calls of these iptables programs that `command` makes.
#[track_caller]
pub(super) fn record(command: &mut Command, directory: &Path, tools: &[&str]) {
    let path = std::env::var("PATH").expect("PATH is set");
    command.env("PATH", format!("{}:{path}", directory.display()));
    fs::create_dir_all(directory).expect("a directory for scripts");
    for tool in tools {
        for (script, text) in [("restore", RESTORE), ("save", SAVE)] {
            let path = directory.join(format!("{tool}-{script}"));
            fs::write(&path, text).expect("write a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it a program");
        }
    }
}

// === impl Monitor ===

impl Monitor {
    /// The changes since the last call, one in each line.
    #[track_caller]
    pub fn changes(&mut self) -> Vec<String> {
        match self {
            Self::Nft(monitor) => monitor.changes(),
            Self::Iptables(calls) => calls.restored(),
            Self::Ipvs(snapshot) => snapshot.changes(),
        }
    }
}

// === impl IpvsSnapshot ===

impl IpvsSnapshot {
    #[track_caller]
    pub(super) fn take(netns: Netns) -> Self {
        let lines = read(&netns);
        Self { netns, lines }
    }

    /// The lines that were added or removed.
    #[track_caller]
    fn changes(&mut self) -> Vec<String> {
        let lines = read(&self.netns);
        let changes = lines.symmetric_difference(&self.lines).cloned().collect();
        self.lines = lines;
        changes
    }
}

/// Lists IPVS objects with a space after each address, as in the output of `nft`.
#[track_caller]
fn read(netns: &Netns) -> BTreeSet<String> {
    ipvs(netns).lines().map(|line| format!("{} ", line.replace(',', " "))).collect()
}

// === impl IptablesCalls ===

impl IptablesCalls {
    pub(super) fn open(directory: PathBuf) -> Self {
        let mut calls = Self { directory, restored: 0, saved: 0 };
        calls.restored();
        calls.saved();
        calls
    }

    /// The lines of changes in the input of `iptables-restore` since the last call.
    #[track_caller]
    pub fn restored(&mut self) -> Vec<String> {
        let mut lines = new_lines(&self.directory.join("restored"), &mut self.restored);
        lines.retain(|line| !line.starts_with('*') && line != "COMMIT");
        lines
    }

    /// The programs that were run to read rules, since the last call.
    #[track_caller]
    pub fn saved(&mut self) -> Vec<String> {
        new_lines(&self.directory.join("saved"), &mut self.saved)
    }
}

/// A missing file means that nothing was written.
fn new_lines(path: &Path, seen: &mut usize) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().skip(*seen).map(str::to_owned).collect();
    *seen += lines.len();
    lines
}
