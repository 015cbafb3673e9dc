//! The modes, each a mechanism of the kernel that a backend programs, and how they differ for commands. A fourth mode
//! begins with a row here: docs/guides/write-a-backend.md.

use clap::ValueEnum;
use serde::Serialize;

/// A mode, as a flag or a field of a file names it. Those of kube-proxy have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// nftables
    #[value(alias = "nft")]
    Nftables,
    /// iptables
    Iptables,
    /// IPVS and ipset
    Ipvs,
}

/// What distinguishes a mode.
#[derive(Debug)]
pub(crate) struct ModeTraits {
    /// On the command line, in files and in metrics.
    pub(crate) name: &'static str,
    /// Whether it writes rules with `iptables-restore`, of one of the two variants.
    pub(crate) runs_iptables: bool,
    /// Whether it can serve node ports at 127.0.0.0/8.
    pub(crate) serves_localhost_nodeports: bool,
    /// Whether each VIP is an address of every node. A node then cannot reach another host with this address.
    pub(crate) binds_vips: bool,
    /// Whether it selects endpoints by bits of the packet mark that Calico's Felix overwrites by default.
    pub(crate) shares_marks_with_felix: bool,
    /// How to make a node fit for it.
    pub(crate) requirements: &'static str,
}

impl Mode {
    pub(crate) const fn traits(self) -> ModeTraits {
        match self {
            Self::Nftables => ModeTraits {
                name: "nftables",
                runs_iptables: false,
                serves_localhost_nodeports: false,
                binds_vips: false,
                shares_marks_with_felix: false,
                requirements: "upgrade to Linux 5.13 or later, load the modules nf_tables, nft_chain_nat, nft_numgen, \
                               nft_hash, nft_fib_inet, nft_masq, nft_reject_inet; or use backend iptables",
            },
            Self::Iptables => ModeTraits {
                name: "iptables",
                runs_iptables: true,
                serves_localhost_nodeports: true,
                binds_vips: false,
                shares_marks_with_felix: false,
                requirements: "install iptables 1.8.9 or later, load the modules xt_comment, xt_conntrack, xt_mark, \
                               xt_MASQUERADE, xt_nat, xt_recent, xt_statistic, xt_addrtype; or use backend nftables",
            },
            Self::Ipvs => ModeTraits {
                name: "ipvs",
                runs_iptables: true,
                serves_localhost_nodeports: false,
                binds_vips: true,
                shares_marks_with_felix: true,
                requirements: "run `modprobe -a ip_vs ip_vs_rr ip_set ip_set_hash_ip ip_set_hash_ipport \
                               ip_set_hash_net xt_set dummy`; or use backend nftables",
            },
        }
    }

    /// On the command line, in files and in metrics.
    pub(crate) const fn name(self) -> &'static str {
        self.traits().name
    }

    /// The mode with exactly this name. Flags accept `nft`, too.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|mode| mode.name() == name)
    }
}
