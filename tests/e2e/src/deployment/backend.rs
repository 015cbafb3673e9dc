//! The backends that the cases run with: their command lines, and how to list and remove their kernel objects.

use std::{path::Path, process::Command};

use super::{kernel_changes, program::fairlead};
use crate::{
    netns::Netns,
    tools::{nft, nft_list},
};

/// Leaves the conntrack limit alone: the kernel allows to set it in the initial network namespace only.
const KEEP_CONNTRACK_LIMIT: [&str; 2] = ["--conntrack-max-per-core", "0"];

/// Empty tables, for `iptables-restore`. In the legacy variant the table nat also has INPUT.
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

/// A table that does not belong to Fairlead.
const OTHERS: &str = "table inet others { set seen { type ipv4_addr; elements = { 192.0.2.1 }; }\n\
     chain input { type filter hook input priority 0; ip saddr @seen drop; }\n}\n";
/// A device, virtual servers, a set and a chain that do not belong to Fairlead: each with the program that creates it
/// and the program's input.
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

/// The device with the VIPs.
pub(super) const IPVS_DEVICE: &str = "kube-ipvs0";

/// Which backend programs the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables.
    Nft,
    /// iptables, variant nft.
    IptablesNft,
    /// iptables, variant legacy.
    IptablesLegacy,
    /// IPVS, with its rules in iptables-legacy: it runs in user-mode-linux, whose kernel has no nf_tables for
    /// IPv4 and IPv6.
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

    /// The iptables programs that it uses, for both families.
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
        command.arg(state).args(KEEP_CONNTRACK_LIMIT).args(self.arguments()).args(arguments);
        command
    }

    /// Records the kernel changes of the iptables programs that `command` runs, if any, in this directory.
    #[track_caller]
    pub(super) fn record_kernel_changes(self, command: &mut Command, directory: &Path) {
        if matches!(self, Self::IptablesNft | Self::IptablesLegacy) {
            kernel_changes::record(command, directory, self.tools());
        }
    }

    /// Frontend and backend in one process.
    pub(crate) fn local(self, manifests: &Path, node: &str, state: &Path) -> Command {
        let mut command = fairlead();
        command.args(["local", "--backend", self.name(), "--node-name", node, "--manifests"]);
        command.arg(manifests).args(KEEP_CONNTRACK_LIMIT).args(self.arguments()).arg("--state-dir").arg(state);
        command
    }

    /// Removes everything that it has programmed, as another process would.
    #[track_caller]
    pub(crate) fn flush(self, netns: &Netns) {
        match self {
            Self::Nft => nft(netns, "delete table ip fairlead1\ndelete table ip6 fairlead1\n"),
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

    /// Creates the tables that iptables creates and does not remove, so that listings before and after are comparable.
    #[track_caller]
    pub(crate) fn create_empty_tables(self, netns: &Netns) {
        self.tools().iter().for_each(|tool| netns.run_with_input(&format!("{tool}-restore"), &[], EMPTY));
        if self == Self::Ipvs {
            for tool in self.tools() {
                netns.run_with_input(&format!("{tool}-restore"), &["--noflush"], "*mangle\nCOMMIT\n");
            }
        }
    }

    /// Creates kernel objects that do not belong to Fairlead.
    #[track_caller]
    pub(crate) fn add_foreign_objects(self, netns: &Netns) {
        match self {
            Self::Nft | Self::IptablesNft | Self::IptablesLegacy => nft(netns, OTHERS),
            Self::Ipvs => OTHERS_OF_IPVS.iter().for_each(|(program, arguments, input)| {
                netns.run_with_input(program, arguments, input);
            }),
        }
    }

    /// Lists the objects of [`Self::add_foreign_objects`].
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

    /// All rules of a namespace, without counters, sorted: the order of tables depends on when they were created.
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

    /// The names of what this backend has in the kernel: its tables, chains, sets, virtual servers and device.
    #[track_caller]
    pub fn installed(self, netns: &Netns) -> Vec<String> {
        let mut found = Vec::new();
        let mut add = |list: String, is_own: &dyn Fn(&str) -> bool| {
            found.extend(list.lines().filter(|line| is_own(line)).map(str::to_owned));
        };
        let is_ipvs_chain = |line: &str| line.contains("FAIRLEAD-IPVS");
        match self {
            Self::Nft => add(netns.output("nft", &["list", "tables"]), &|line| line.ends_with(" fairlead1")),
            Self::IptablesNft | Self::IptablesLegacy => {
                let is_own =
                    |line: &str| (line.contains("KUBE-") || line.contains("FAIRLEAD-")) && !is_ipvs_chain(line);
                self.tools().iter().for_each(|tool| add(netns.output(&format!("{tool}-save"), &[]), &is_own));
            }
            Self::Ipvs => {
                self.tools().iter().for_each(|tool| add(netns.output(&format!("{tool}-save"), &[]), &is_ipvs_chain));
                add(ipvs(netns), &|_| true);
                add(netns.output("ip", &["-oneline", "link"]), &|line| line.contains(IPVS_DEVICE));
            }
        }
        found
    }

    /// The revision that was programmed according to this log line, if it reports one.
    pub(crate) fn programmed_revision(self, line: &str) -> Option<u64> {
        let (before, rest) = line.split_once(" revision=")?;
        if !before.ends_with(": applied") && !before.ends_with(": reconciled") {
            return None;
        }
        rest.split_whitespace().next()?.parse().ok()
    }
}

/// Virtual servers, sets and addresses of a namespace, one in each line.
#[track_caller]
pub(super) fn ipvs(netns: &Netns) -> String {
    // Destinations with weight 0 are removed when their connections have ended.
    let servers = netns.output("ipvsadm", &["-Sn"]);
    let mut list = String::new();
    for line in servers.lines().filter(|line| !line.trim_end().ends_with(" -w 0")) {
        list += line;
        list.push('\n');
    }
    // The last parameter of a set is a random number of the kernel.
    let sets = netns.output("ipset", &["save"]);
    // Packets write the entries with a timeout.
    for line in sets.lines().filter(|line| !(line.starts_with("add ") && line.contains(" timeout "))) {
        list += line.split(" initval").next().unwrap_or_default();
        list.push('\n');
    }
    // Each line begins with the index of the device.
    for line in netns.output("ip", &["-oneline", "address", "show", "type", "dummy"]).lines() {
        list += line.split_once(": ").map_or(line, |(_, address)| address);
        list.push('\n');
    }
    list
}
