//! The flags of the iptables backend.

use anyhow::{Result, bail};
use backend::dataplane::{DataplaneOptions, LocalhostNodePorts};
use backend_iptables::{Iptables, IptablesPreview};
use clap::Args;
use iptables::Variant;

use super::BackendName;

#[derive(Debug, Args)]
pub(crate) struct IptablesArgs {
    #[command(flatten)]
    pub(crate) variant: VariantArgs,

    /// For iptables: node ports answer on 127.0.0.0/8 too. For that the kernel routes loopback addresses
    /// (net.ipv4.conf.all.route_localnet); what other hosts send there is dropped.
    #[arg(long)]
    iptables_localhost_nodeports: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VariantArgs {
    /// For iptables and ipvs: which of the two keeps the rules, `nft` (in nf_tables) or `legacy`. Without it, the one that holds Fairlead's
    /// or other chains of Kubernetes already; else what `iptables` is on this machine.
    #[arg(long, value_name = "nft|legacy|auto", value_parser = variant)]
    iptables_variant: Option<Choice>,
}

/// `--iptables-variant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Only(Variant),
}

impl IptablesArgs {
    /// The backend that is asked for.
    pub(crate) fn backend(&self, options: DataplaneOptions) -> Iptables {
        backend_iptables::open(self.options(options), self.variant.variant())
    }

    /// The same, as one that writes nothing.
    pub(crate) fn preview(&self, options: DataplaneOptions) -> IptablesPreview {
        backend_iptables::open_preview(self.options(options), self.variant.variant())
    }

    fn options(&self, options: DataplaneOptions) -> DataplaneOptions {
        let localhost_nodeports = match self.iptables_localhost_nodeports {
            true => LocalhostNodePorts::Open,
            false => LocalhostNodePorts::Closed,
        };
        DataplaneOptions { localhost_nodeports, ..options }
    }

    /// The flags are of use for one backend only.
    pub(crate) fn check(&self, backend: BackendName) -> Result<()> {
        if self.iptables_localhost_nodeports && backend != BackendName::Iptables {
            bail!("--iptables-localhost-nodeports is of no use without the iptables backend");
        }
        self.variant.check(Some(backend))
    }
}

impl VariantArgs {
    /// `None`: whichever is in use.
    pub(crate) fn variant(&self) -> Option<Variant> {
        match self.iptables_variant {
            Some(Choice::Only(variant)) => Some(variant),
            Some(Choice::Auto) | None => None,
        }
    }

    /// The flags are of use for one backend only.
    pub(crate) fn check(&self, backend: Option<BackendName>) -> Result<()> {
        let of_use = matches!(backend, Some(BackendName::Iptables | BackendName::Ipvs));
        if self.iptables_variant.is_some() && !of_use {
            bail!("--iptables-variant is of no use without the iptables or the ipvs backend");
        }
        Ok(())
    }
}

/// Reads `--iptables-variant`.
fn variant(text: &str) -> Result<Choice, String> {
    match text {
        "auto" => Ok(Choice::Auto),
        text => text.parse().map(Choice::Only).map_err(|error: iptables::UnknownVariant| format!("{error}, or auto")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{local, parse},
        *,
    };

    #[test]
    fn the_variant_is_one_of_two_or_whichever_is_in_use() {
        for (given, expected) in [("auto", None), ("nft", Some(Variant::Nft)), ("legacy", Some(Variant::Legacy))] {
            assert_eq!(local(&["--iptables-variant", given]).any.iptables.variant.variant(), expected);
        }
        let error = parse(&["local", "--backend", "iptables", "--iptables-variant", "old"]).unwrap_err();
        assert!(error.contains("expected nft or legacy, or auto"), "{error}");
    }

    #[test]
    fn the_flags_belong_to_iptables() {
        for given in [&["--iptables-variant", "nft"][..], &["--iptables-localhost-nodeports"]] {
            let args = local(given).any.iptables;
            assert!(args.check(BackendName::Nft).is_err());
            assert!(args.check(BackendName::Iptables).is_ok());
        }
        assert!(local(&[]).any.iptables.check(BackendName::Nft).is_ok());
        assert!(local(&["--iptables-variant", "nft"]).any.iptables.variant.check(None).is_err());
    }
}
