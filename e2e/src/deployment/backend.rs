//! The backends that the cases run with, and the little in which they differ.

use std::path::Path;
use std::process::Command;

use super::{kernel_changes, program::fairlead};
use crate::netns::Netns;
use crate::tools::{nft, nft_list};

/// The limit of flows is the machine's: no network namespace but the first may set it.
const LEAVE_LIMIT: [&str; 2] = ["--conntrack-max-per-core", "0"];

/// Tables with nothing in them, for `iptables-restore`. The legacy variant always has INPUT in nat too.
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

/// Others' rules.
const OTHERS: &str = "table inet others { set seen { type ipv4_addr; elements = { 192.0.2.1 }; }\n\
     chain input { type filter hook input priority 0; ip saddr @seen drop; }\n}\n";
/// Others' device, virtual server with a destination, set and chain: which program is fed what.
const OTHERS_OF_IPVS: [(&str, &[&str], &str); 4] = [
    ("ip", &["-batch", "-"], "link add others0 type dummy\naddress add 192.0.2.77/32 dev others0\n"),
    ("ipvsadm", &["-R"], "-A -t 192.0.2.77:80 -s rr\n-a -t 192.0.2.77:80 -r 10.244.1.12:8080 -m\n-A -f 7 -s rr\n"),
    ("ipset", &["restore"], "create others hash:ip\nadd others 192.0.2.77\n"),
    (
        "iptables-legacy-restore",
        &["--noflush"],
        "*mangle\n:others - [0:0]\n-A INPUT -s 192.0.2.77/32 -j others\nCOMMIT\n",
    ),
];

/// The device that VIPs are on.
pub(super) const IPVS_DEVICE: &str = "fairlead-ipvs0";

/// Which backend programs the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables.
    Nft,
    /// iptables that keeps its rules in nf_tables.
    IptablesNft,
    /// The older iptables.
    IptablesLegacy,
    /// IPVS, with its rules in the older iptables: it runs in user-mode-linux, which has no other.
    Ipvs,
}

// === impl Backend ===

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nftables",
            Self::IptablesNft | Self::IptablesLegacy => "iptables",
            Self::Ipvs => "ipvs",
        }
    }

    /// Its additional flags; cleanup detects these itself.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Nft => &[],
            Self::IptablesNft => &["--iptables-variant", "nft"],
            Self::IptablesLegacy | Self::Ipvs => &["--iptables-variant", "legacy"],
        }
    }

    /// Its iptables of both families.
    fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Nft => &[],
            Self::IptablesNft => &["iptables-nft", "ip6tables-nft"],
            Self::IptablesLegacy | Self::Ipvs => &["iptables-legacy", "ip6tables-legacy"],
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
        if matches!(self, Self::IptablesNft | Self::IptablesLegacy) {
            kernel_changes::install(directory, self.tools());
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
                self.tools().iter().for_each(|tool| netns.run_with_input(&format!("{tool}-restore"), &[], EMPTY));
            }
            Self::Ipvs => {
                netns.output("ipvsadm", &["-C"]);
                netns.output("ipset", &["flush"]);
                netns.output("ip", &["address", "flush", "dev", IPVS_DEVICE]);
                self.tools().iter().for_each(|tool| drop(netns.output(tool, &["-t", "mangle", "-F"])));
            }
        }
    }

    /// Rules that exist before it has programmed anything: tables that iptables creates and keeps.
    #[track_caller]
    pub(crate) fn create_empty_tables(self, netns: &Netns) {
        self.tools().iter().for_each(|tool| netns.run_with_input(&format!("{tool}-restore"), &[], EMPTY));
        if self == Self::Ipvs {
            for tool in self.tools() {
                netns.run_with_input(&format!("{tool}-restore"), &["--noflush"], "*mangle\nCOMMIT\n");
            }
        }
    }

    /// Puts something of others' beside what it programs.
    #[track_caller]
    pub(crate) fn add_foreign_objects(self, netns: &Netns) {
        match self {
            Self::Nft | Self::IptablesNft | Self::IptablesLegacy => nft(netns, OTHERS),
            Self::Ipvs => OTHERS_OF_IPVS.iter().for_each(|(program, arguments, input)| {
                netns.run_with_input(program, arguments, input);
            }),
        }
    }

    /// Its rules in the kernel.
    #[track_caller]
    pub(crate) fn foreign_objects(self, netns: &Netns) -> String {
        match self {
            Self::Nft | Self::IptablesNft | Self::IptablesLegacy => {
                netns.output("nft", &["list", "table", "inet", "others"])
            }
            Self::Ipvs => {
                let lines = self.rules(netns).into_iter();
                lines.filter(|line| line.contains("others") || line.contains("192.0.2.77")).collect()
            }
        }
    }

    /// All rules of a namespace, without counters and in no order: that of tables is how they came.
    #[track_caller]
    pub fn rules(self, netns: &Netns) -> Vec<String> {
        let mut rules = nft_list(netns);
        for tool in self.tools() {
            rules += &netns.output(&format!("{tool}-save"), &[]);
        }
        if self == Self::Ipvs {
            rules += &ipvs(netns);
        }
        let lines = rules.lines().filter(|line| !line.starts_with('#'));
        let mut lines: Vec<_> = lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect();
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

/// Virtual servers, sets and addresses of a namespace, one a line.
#[track_caller]
pub(super) fn ipvs(netns: &Netns) -> String {
    let mut list = netns.output("ipvsadm", &["-Sn"]);
    // Behind the parameters of a set comes one that the kernel has drawn.
    for line in netns.output("ipset", &["save"]).lines() {
        list += line.split(" initval").next().unwrap_or_default();
        list.push('\n');
    }
    // In front of each stands the number of its device.
    for line in netns.output("ip", &["-oneline", "address", "show", "type", "dummy"]).lines() {
        list += line.split_once(": ").map_or(line, |(_, address)| address);
        list.push('\n');
    }
    list
}
