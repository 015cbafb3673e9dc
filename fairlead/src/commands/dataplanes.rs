//! The data planes of the three backends: opens the one that a setting names, and finds those that have programmed this
//! node.

use anyhow::Result;
use backend::dataplane::DataplaneOptions;
use iptables::VariantSelection;
use proto::model::IpFamily;

use crate::{
    cli::{IptablesArgs, IpvsArgs},
    config::BackendName,
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

/// Opens the named backend and passes it on: each has its own type.
macro_rules! with_backend {
    ($name:expr, $settings:expr, |$backend:pat_param| $then:expr) => {{
        use anyhow::Context as _;
        let $crate::commands::dataplanes::DataplaneSettings { options, variant, ipvs } = $settings;
        match $name {
            $crate::config::BackendName::Nftables => {
                let opened = backend_nft::open(options);
                let $backend = opened.context("cannot open a netlink socket for nf_tables")?;
                $then
            }
            $crate::config::BackendName::Iptables => {
                let $backend = backend_iptables::open(options, variant);
                $then
            }
            $crate::config::BackendName::Ipvs => {
                let opened = backend_ipvs::open(ipvs.settings(options, variant));
                let $backend = opened.context("cannot open a netlink socket for IPVS")?;
                $then
            }
        }
    }};
}
pub(super) use with_backend;

/// The backends that have programmed this node, with the IP families of each.
pub(super) async fn programmed() -> Result<Vec<(BackendName, Vec<IpFamily>)>> {
    let mut programmed = vec![
        (BackendName::Nftables, backend_nft::programmed_families().await?),
        (BackendName::Iptables, backend_iptables::programmed_families(None).await?),
        (BackendName::Ipvs, backend_ipvs::programmed_families().await?),
    ];
    programmed.retain(|(_, families)| !families.is_empty());
    Ok(programmed)
}
