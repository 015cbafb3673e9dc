//! The two variants of iptables. Both can hold rules at the same time, so a backend has to use the one that kubelet and
//! others use.

use std::{fmt, str::FromStr, sync::Arc};

use tokio::sync::watch;

use crate::SavedRules;

/// Where iptables keeps its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// In nf_tables.
    Nft,
    /// In ip_tables, the older kernel interface.
    Legacy,
}

/// The variant that the operator wants, and the variant that [`Tools`](crate::Tools) detect when they first read rules.
/// Clones are one selection, so that other parts of the process know the variant without reading rules.
#[derive(Clone, Debug)]
pub struct VariantSelection {
    wanted: Option<Variant>,
    used: Arc<watch::Sender<Option<Variant>>>,
}

// === impl Variant ===

impl Variant {
    /// Both variants.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// Reads the output of `iptables --version`. Versions before 1.8, which had one variant, print none.
    pub(crate) fn from_version(version: &str) -> Self {
        if version.contains("(nf_tables)") { Self::Nft } else { Self::Legacy }
    }

    /// Chooses by the rules that each variant holds: the only one with chains of Fairlead, else the only one with
    /// chains of Kubernetes (kubelet creates `KUBE-IPTABLES-HINT` for this purpose), else `default`, else the first.
    pub(crate) fn choose(saved: &[SavedRules], default: Self) -> Option<&SavedRules> {
        let only = |marker| only_with(saved, marker);
        let by_chains = only("\n:FAIRLEAD-").or_else(|| only("\n:KUBE-"));
        by_chains.or_else(|| saved.iter().find(|saved| saved.program.variant == default)).or(saved.first())
    }
}

/// The rules that contain a text, if no others contain it.
fn only_with<'a>(saved: &'a [SavedRules], text: &str) -> Option<&'a SavedRules> {
    let mut found = saved.iter().filter(|saved| saved.text.contains(text));
    let first = found.next()?;
    if found.next().is_none() { Some(first) } else { None }
}

// === impl VariantSelection ===

impl VariantSelection {
    /// The variant that the operator asked for; `None`: the one that others use is detected.
    #[must_use]
    pub fn wanted(&self) -> Option<Variant> {
        self.wanted
    }

    /// The variant in use, once it has been detected.
    pub async fn used(&self) -> Option<Variant> {
        // The sender is part of this selection.
        self.used.subscribe().wait_for(Option::is_some).await.ok().and_then(|used| *used)
    }

    pub(crate) fn use_variant(&self, used: Option<Variant>) {
        self.used.send_replace(used);
    }
}

impl Default for VariantSelection {
    fn default() -> Self {
        None.into()
    }
}

impl From<Option<Variant>> for VariantSelection {
    fn from(wanted: Option<Variant>) -> Self {
        Self { wanted, used: Arc::new(watch::Sender::new(None)) }
    }
}

impl PartialEq for VariantSelection {
    fn eq(&self, other: &Self) -> bool {
        self.wanted == other.wanted
    }
}

impl Eq for VariantSelection {}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        })
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let variant = Self::ALL.into_iter().find(|variant| variant.to_string() == text);
        variant.ok_or_else(|| format!("{text:?}: expected nft or legacy"))
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use proto::model::IpFamily;

    use super::*;
    use crate::Program;

    fn saved(variant: Variant, text: &str) -> SavedRules {
        SavedRules { program: Program::new(IpFamily::V4, variant), text: text.to_owned() }
    }

    #[test]
    fn the_variant_with_chains_of_fairlead_or_kubernetes_is_chosen() {
        let kubelet = "*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
        let ours = "*filter\n:KUBE-SERVICES - [0:0]\n:FAIRLEAD-REJECT - [0:0]\nCOMMIT\n";
        let foreign = "*nat\n:CNI-KUBE - [0:0]\nCOMMIT\n";
        let ipvs = "*mangle\n:INPUT ACCEPT [0:0]\n:FAIRLEAD-IPVS - [0:0]\nCOMMIT\n";
        let choose = |nft: &str, legacy: &str, default| {
            let both = [saved(Variant::Nft, nft), saved(Variant::Legacy, legacy)];
            Variant::choose(&both, default).map(|chosen| chosen.program.variant)
        };

        assert_eq!(choose("", "", Variant::Nft), Some(Variant::Nft));
        assert_eq!(choose("", "", Variant::Legacy), Some(Variant::Legacy));
        assert_eq!(choose(foreign, kubelet, Variant::Nft), Some(Variant::Legacy));
        assert_eq!(choose(kubelet, kubelet, Variant::Nft), Some(Variant::Nft));
        assert_eq!(choose(kubelet, ours, Variant::Nft), Some(Variant::Legacy));
        assert_eq!(choose(kubelet, ipvs, Variant::Nft), Some(Variant::Legacy));
        let only_nft = saved(Variant::Nft, "");
        assert_eq!(Variant::choose(slice::from_ref(&only_nft), Variant::Legacy), Some(&only_nft));
        assert_eq!(Variant::choose(&[], Variant::Legacy), None);
    }

    #[test]
    fn variant_is_read_from_versions_and_flags() {
        assert_eq!(Variant::from_version("iptables v1.8.9 (nf_tables)"), Variant::Nft);
        assert_eq!(Variant::from_version("iptables v1.8.9 (legacy)"), Variant::Legacy);
        assert_eq!(Variant::from_version("iptables v1.6.1"), Variant::Legacy);
        assert_eq!("legacy".parse(), Ok(Variant::Legacy));
        assert!("auto".parse::<Variant>().is_err());
    }
}
