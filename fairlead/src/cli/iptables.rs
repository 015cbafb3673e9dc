//! The flags of the iptables backend.

use anyhow::{Result, bail};
use backend::dataplane::{DataplaneOptions, LocalhostNodePorts};
use clap::Args;
use iptables::Variant;

use crate::modes::Mode;

#[derive(Debug, Default, Args)]
pub(crate) struct IptablesArgs {
    #[command(flatten)]
    pub(crate) variant: VariantArgs,

    /// For iptables: serve node ports on 127.0.0.0/8 too. Sets net.ipv4.conf.all.route_localnet, and drops packets of
    /// other hosts to these addresses.
    #[arg(long, env = "FAIRLEAD_IPTABLES_LOCALHOST_NODEPORTS")]
    pub(crate) iptables_localhost_nodeports: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VariantArgs {
    /// For iptables and ipvs: write rules with this variant of iptables. Default: the variant that has chains of
    /// Fairlead or Kubernetes, else that of the program `iptables`.
    #[arg(long, env = "FAIRLEAD_IPTABLES_VARIANT", value_name = "nft|legacy|auto", value_parser = variant)]
    iptables_variant: Option<VariantChoice>,
}

/// `--iptables-variant`. `None`: `auto`.
#[derive(Clone, Copy, Debug)]
struct VariantChoice(Option<Variant>);

impl IptablesArgs {
    /// The options of the data plane, with the options of this mode.
    pub(crate) fn options(&self, options: DataplaneOptions) -> DataplaneOptions {
        let is_open = self.iptables_localhost_nodeports;
        let localhost_nodeports = if is_open { LocalhostNodePorts::Open } else { LocalhostNodePorts::Closed };
        DataplaneOptions { localhost_nodeports, ..options }
    }

    /// Rejects the flags for other backends.
    pub(crate) fn validate(&self, mode: Mode) -> Result<()> {
        let traits = mode.traits();
        if self.iptables_localhost_nodeports && !traits.serves_localhost_nodeports {
            bail!("--iptables-localhost-nodeports applies to the iptables backend only");
        }
        if self.variant.iptables_variant.is_some() && !traits.runs_iptables {
            bail!("--iptables-variant applies to the iptables and ipvs backends only");
        }
        Ok(())
    }
}

impl VariantArgs {
    /// `None`: detect it.
    pub(crate) fn variant(&self) -> Option<Variant> {
        self.iptables_variant.and_then(|VariantChoice(variant)| variant)
    }
}

/// Parses `--iptables-variant`.
fn variant(text: &str) -> Result<VariantChoice, String> {
    if text == "auto" {
        return Ok(VariantChoice(None));
    }
    let variant = text.parse::<Variant>().map_err(|error| format!("{error}, or auto"))?;
    Ok(VariantChoice(Some(variant)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{local, parse},
        *,
    };

    #[test]
    fn variant_is_given_or_detected() {
        for (given, expected) in [("auto", None), ("nft", Some(Variant::Nft)), ("legacy", Some(Variant::Legacy))] {
            assert_eq!(local("iptables", &["--iptables-variant", given]).any.iptables.variant.variant(), expected);
        }
        let error = parse(&["local", "--backend", "iptables", "--iptables-variant", "old"]).unwrap_err();
        assert!(error.contains("expected nft or legacy, or auto"), "{error}");
    }

    #[test]
    fn flags_apply_to_iptables_only() {
        for given in [&["--iptables-variant", "nft"][..], &["--iptables-localhost-nodeports"]] {
            let args = local("iptables", given).any.iptables;
            assert!(args.validate(Mode::Nftables).is_err());
            let error = parse(&[&["local", "--backend=nftables"], given].concat()).unwrap_err();
            assert!(error.contains("only"), "{error}");
        }
    }
}
