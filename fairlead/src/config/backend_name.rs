//! The name of a backend in settings.

use clap::ValueEnum;

/// A backend, as a flag or a field of a file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// nftables
    #[value(alias = "nft")]
    Nftables,
    /// iptables
    Iptables,
    /// IPVS and ipset
    Ipvs,
}

impl BackendName {
    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}
