//! The two variants of iptables. Both can hold rules at the same time, so a backend has to use the one that kubelet and
//! others use.

use std::{fmt, str::FromStr};

/// Where iptables keeps its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// In nf_tables.
    Nft,
    /// In ip_tables, the older kernel interface.
    Legacy,
}

/// The text names no variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected nft or legacy")]
pub struct UnknownVariant(String);

// === impl Variant ===

impl Variant {
    /// Both variants.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// Reads the output of `iptables --version`. Versions before 1.8, which had one variant, print none.
    #[must_use]
    pub fn from_version(version: &str) -> Self {
        if version.contains("(nf_tables)") { Self::Nft } else { Self::Legacy }
    }

    /// Chooses by the rules that each variant holds: the only one with chains of Fairlead, else the only one with
    /// chains of Kubernetes (kubelet creates `KUBE-IPTABLES-HINT` for this purpose), else `default`.
    #[must_use]
    pub fn choose(saved: &[(Self, String)], default: Self) -> Self {
        let only = |prefix: &str| {
            let marker = format!("\n:{prefix}");
            let mut found = saved.iter().filter(|(_, saved)| saved.contains(&marker)).map(|(variant, _)| *variant);
            found.next().filter(|_| found.next().is_none())
        };
        only("FAIRLEAD-").or_else(|| only("KUBE-")).unwrap_or(default)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        })
    }
}

impl FromStr for Variant {
    type Err = UnknownVariant;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let variant = Self::ALL.into_iter().find(|variant| variant.to_string() == text);
        variant.ok_or_else(|| UnknownVariant(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variant_with_chains_of_fairlead_or_kubernetes_is_chosen() {
        let kubelet = "*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
        let ours = "*filter\n:KUBE-SERVICES - [0:0]\n:FAIRLEAD-REJECT - [0:0]\nCOMMIT\n";
        let foreign = "*nat\n:CNI-KUBE - [0:0]\nCOMMIT\n";
        let ipvs = "*mangle\n:INPUT ACCEPT [0:0]\n:FAIRLEAD-IPVS - [0:0]\nCOMMIT\n";
        let saved = |nft: &str, legacy: &str| [(Variant::Nft, nft.to_owned()), (Variant::Legacy, legacy.to_owned())];
        let choose = |nft: &str, legacy: &str| Variant::choose(&saved(nft, legacy), Variant::Nft);
        assert_eq!(choose("", ""), Variant::Nft);
        assert_eq!(choose(foreign, kubelet), Variant::Legacy);
        assert_eq!(choose(kubelet, kubelet), Variant::Nft);
        assert_eq!(choose(kubelet, ours), Variant::Legacy);
        assert_eq!(choose(kubelet, ipvs), Variant::Legacy);
        assert_eq!(Variant::choose(&[], Variant::Legacy), Variant::Legacy);
        assert_eq!(Variant::choose(&saved("", ""), Variant::Legacy), Variant::Legacy);
        assert_eq!(Variant::from_version("iptables v1.8.9 (nf_tables)"), Variant::Nft);
        assert_eq!(Variant::from_version("iptables v1.8.9 (legacy)"), Variant::Legacy);
        assert_eq!(Variant::from_version("iptables v1.6.1"), Variant::Legacy);
        assert_eq!("legacy".parse(), Ok(Variant::Legacy));
        assert!("auto".parse::<Variant>().is_err());
    }
}
