//! Tools of an operator on a node: `nft`, `nft monitor`, `conntrack`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{netns::Netns, plan::IpFamily, process::Process, wait::eventually};

const DEADLINE: Duration = Duration::from_secs(10);
/// A table that is added and deleted to mark a point in the monitor's output.
const FENCE: &str = "fairlead-e2e-fence";
/// `NETLINK_NETFILTER` (linux/netlink.h), as in the column Eth of `/proc/net/netlink`.
const NETLINK_NETFILTER: &str = "12";

/// A file of a tool that no Debian package has and `.ci/setup` installs, by its path below the directory in
/// `.ci/tools`.
///
/// # Panics
/// If it is missing.
#[track_caller]
pub fn installed(path: &str) -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache"));
    let path = cache.join("fairlead").join(path);
    assert!(path.exists(), "{} is missing: run .ci/setup", path.display());
    path
}

/// All rules of the namespace, as text.
pub fn nft_list(netns: &Netns) -> String {
    netns.output("nft", &["--stateless", "list", "ruleset"])
}

/// Loads rules.
#[track_caller]
pub fn nft(netns: &Netns, rules: &str) {
    netns.run_with_input("nft", &["-f", "-"], rules);
}

/// The conntrack entries of one family; `filter` are arguments of `conntrack -L`, such as `["-p", "udp"]`.
pub fn conntrack(netns: &Netns, family: IpFamily, filter: &[&str]) -> Vec<String> {
    let family = match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    };
    let arguments = [&["-L", "-f", family], filter].concat();
    netns.output("conntrack", &arguments).lines().map(str::to_owned).collect()
}

/// `nft monitor`, which prints every change of the rules of a namespace, by any process.
#[derive(Debug)]
pub struct NftMonitor {
    netns: Netns,
    process: Process,
    seen: usize,
}

// === impl NftMonitor ===

impl NftMonitor {
    /// Starts it, and returns when it has subscribed. Its output is also in the file `log`.
    #[track_caller]
    pub fn start(netns: &Netns, log: &Path) -> Self {
        let mut command = Command::new("nft");
        command.arg("monitor");
        let process = Process::spawn(netns, command, log);
        let pid = process.pid().to_string();
        eventually("nft monitor listens", DEADLINE, || {
            // Columns: sk, Eth, Pid, Groups, ... The file shows the namespace of the reading thread.
            let table = netns.run(|| fs::read_to_string("/proc/thread-self/net/netlink")).expect("procfs");
            let listens = table.lines().any(|line| {
                let columns = line.split_whitespace().collect::<Vec<_>>();
                columns.get(1..3) == Some(&[NETLINK_NETFILTER, &pid]) && columns[3] != "00000000"
            });
            listens.then_some(())
        });
        Self { netns: netns.clone(), process, seen: 0 }
    }

    /// The changes since the last call, one in each line.
    #[track_caller]
    pub fn changes(&mut self) -> Vec<String> {
        nft(&self.netns, &format!("add table ip {FENCE}\ndelete table ip {FENCE}\n"));
        // Events are in order: what precedes the fence is complete.
        self.process.wait_for_line(&format!("delete table ip {FENCE}"), self.seen, DEADLINE);
        self.process.wait_for_line("new generation", self.fence_end(), DEADLINE);
        let mut lines = self.process.lines_since(self.seen);
        self.seen += lines.len();
        lines.retain(|line| !line.contains(FENCE) && !line.contains("new generation"));
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }

    /// The index of the line after that of the fence.
    fn fence_end(&self) -> usize {
        let fence = format!("delete table ip {FENCE}");
        let lines = self.process.lines_since(self.seen);
        self.seen + lines.iter().position(|line| line.contains(&fence)).map_or(0, |at| at + 1)
    }
}
