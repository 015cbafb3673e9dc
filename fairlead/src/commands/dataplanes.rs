//! The data planes of the modes: opens one of them, and finds those that have programmed this node.

use anyhow::Result;
use backend::dataplane::DataplaneOptions;
use clap::ValueEnum as _;
use iptables::{Variant, VariantSelection};
use proto::model::IpFamily;

use crate::{
    cli::{IptablesArgs, IpvsArgs},
    modes::Mode,
};

/// The settings of a data plane. Each backend reads its own.
#[derive(Debug, Default)]
pub(super) struct DataplaneSettings {
    pub(super) options: DataplaneOptions,
    pub(super) variant: VariantSelection,
    pub(super) ipvs: IpvsArgs,
}

impl DataplaneSettings {
    pub(super) fn new(options: DataplaneOptions, iptables: IptablesArgs, ipvs: IpvsArgs) -> Self {
        Self { options: iptables.options(options), variant: iptables.variant.variant().into(), ipvs }
    }
}

/// Opens the backend of a mode and passes it on: each has its own type.
macro_rules! with_backend {
    ($mode:expr, $settings:expr, |$backend:pat_param| $then:expr) => {{
        use anyhow::Context as _;
        let $crate::commands::dataplanes::DataplaneSettings { options, variant, ipvs } = $settings;
        match $mode {
            $crate::modes::Mode::Nftables => {
                let opened = backend_nft::open(options);
                let $backend = opened.context("cannot open a netlink socket for nf_tables")?;
                $then
            }
            $crate::modes::Mode::Iptables => {
                let $backend = backend_iptables::open(options, variant);
                $then
            }
            $crate::modes::Mode::Ipvs => {
                let opened = backend_ipvs::open(ipvs.settings(options, variant));
                let $backend = opened.context("cannot open a netlink socket for IPVS")?;
                $then
            }
        }
    }};
}
pub(super) use with_backend;

/// The IP families that a mode has programmed on this node. `variant`: the variant of
/// mode iptables; by default the variant in use.
pub(super) async fn programmed_families(mode: Mode, variant: Option<Variant>) -> Result<Vec<IpFamily>> {
    match mode {
        Mode::Nftables => backend_nft::programmed_families().await,
        Mode::Iptables => backend_iptables::programmed_families(variant).await,
        Mode::Ipvs => backend_ipvs::programmed_families().await,
    }
}

/// The modes that have programmed this node, with the IP families of each.
pub(super) async fn programmed() -> Result<Vec<(Mode, Vec<IpFamily>)>> {
    let mut programmed = Vec::new();
    for mode in Mode::value_variants() {
        let families = programmed_families(*mode, None).await?;
        if !families.is_empty() {
            programmed.push((*mode, families));
        }
    }
    Ok(programmed)
}
