//! Takes over from the other modes of Fairlead: what a backend of another mode, or of another variant of iptables, has
//! left in the kernel is reported at the start, and removed when this backend has programmed all service ports.
//!
//! ```text
//!   find ─▶ WARN, metric ─▶ state programmed ─▶ find ─▶ remove ─┬─▶ nothing is left
//!                                                ▲              │
//!                                                └── delay ◀────┴── an error, or open connections of IPVS
//! ```
//!
//! Until then the node has the rules of both, and the first that a new connection meets translates it: both were right
//! when they were written. Open connections follow connection tracking, and continue.

use std::time::Duration;

use anyhow::{Context as _, Result};
use backend::{InstalledObject, Progress, dataplane::LocalhostNodePorts};
use backend_iptables::{LoopbackRouting, OwnChains};
use ipnet::IpNet;
use iptables::{Program, SavedRules, Tools, Variant, VariantSelection, save_variants};
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use proto::model::IpFamily;
use runtime::{failure::Repeated, metrics::Registry, warn_if_news};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    commands::dataplanes::{DataplaneSettings, programmed_families},
    modes::Mode,
};

/// The delay between two attempts to remove stale objects. Connections of IPVS may last for hours.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// How long the removal waits for service ports that could not be programmed, and are tried again.
const FAILURES_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the search waits for the backend's first sync, which detects the variant of iptables.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The values of the label `mode`: of iptables each variant.
const LABELS: [&str; 4] = ["nftables", "iptables-nft", "iptables-legacy", "ipvs"];

/// The metric `fairlead_backend_stale_objects`: the numbers of objects, by mode.
#[derive(Clone, Debug, Default)]
pub(super) struct StaleObjects(Family<[(&'static str, &'static str); 1], Gauge>);

/// Finds and removes objects that other modes have left.
#[derive(Debug)]
pub(super) struct OtherModes {
    mode: Mode,
    variant: VariantSelection,
    loopback: LoopbackRouting,
    exclude: Vec<IpNet>,
}

/// Objects of another mode in the kernel.
#[derive(Debug)]
struct StaleMode {
    /// One of [`LABELS`].
    label: &'static str,
    /// The number of objects.
    count: usize,
    /// Their description.
    objects: String,
    /// The IP families that they serve: of mode ipvs those of its virtual servers, because its sets and chains are
    /// always of both families.
    families: Vec<IpFamily>,
    removal: RemovalMethod,
}

/// How the objects of a mode are removed.
#[derive(Debug)]
enum RemovalMethod {
    Nftables,
    Iptables {
        program: Program,
        /// The chains that are only emptied.
        kept: Vec<String>,
    },
    Ipvs,
    /// Only the chains of IPVS, because no other object of IPVS exists that needs them.
    IpvsChains(SavedRules),
}

/// What an attempt to remove all stale objects has achieved.
#[derive(Debug)]
enum RemovalOutcome {
    Complete,
    /// Objects remain, for this number of open connections of the IPVS mode, or because this backend does not serve
    /// their IP family.
    Incomplete {
        connections: u64,
    },
}

impl StaleObjects {
    /// Registers the metric.
    pub(super) fn registry(&self) -> Registry {
        self.set(&[]);
        let mut registry = Registry::default();
        let text = "Objects of other modes of Fairlead in the kernel, which are removed when this backend has \
                    programmed the kernel and their connections have ended";
        registry.sub_registry_with_prefix("fairlead_backend").register("stale_objects", text, self.0.clone());
        registry
    }

    fn set(&self, stale: &[StaleMode]) {
        for label in LABELS {
            let count: usize = stale.iter().filter(|stale| stale.label == label).map(|stale| stale.count).sum();
            self.0.get_or_create(&[("mode", label)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl OtherModes {
    /// Of a backend with this mode and these settings.
    pub(super) fn new(mode: Mode, settings: &DataplaneSettings) -> Self {
        let loopback = match settings.options.localhost_nodeports {
            LocalhostNodePorts::Open => LoopbackRouting::Keep,
            LocalhostNodePorts::Closed => LoopbackRouting::Reset,
        };
        let exclude = settings.ipvs.exclude.ipvs_exclude_cidrs.clone();
        Self { mode, variant: settings.variant.clone(), loopback, exclude }
    }

    /// Reports and removes objects of other modes; ends when no such object is left.
    pub(super) async fn take_over(&self, mut progress: watch::Receiver<Progress>, gauge: &StaleObjects) {
        self.report(gauge).await;
        if progress.wait_for(|progress| progress.programmed.is_some()).await.is_err() {
            return;
        }
        // After the timeout they are removed as well: the kernel may never accept the rest, and the old rules do not
        // follow changes.
        let _ = timeout(FAILURES_TIMEOUT, progress.wait_for(has_no_retryable_failure)).await;

        let mut failures = Repeated::default();
        let mut awaited_connections = 0;
        loop {
            match self.remove(gauge).await {
                Ok(RemovalOutcome::Complete) => return,
                Ok(RemovalOutcome::Incomplete { connections }) => {
                    failures.recovered();
                    if connections > 0 && awaited_connections == 0 {
                        info!(
                            connections,
                            "objects of the IPVS mode are kept until its open connections have ended; new connections \
                             do not use them"
                        );
                    }
                    awaited_connections = connections;
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    warn_if_news!(failures.failed(&error), error, "cannot remove objects of other modes, retrying");
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Logs what is found at the start.
    async fn report(&self, gauge: &StaleObjects) {
        let mut found = Vec::new();
        if let Err(error) = self.find(&mut found).await {
            warn!(error = format!("{error:#}"), "cannot list all objects of other modes of Fairlead");
        }
        gauge.set(&found);
        for stale in found {
            warn!(
                mode = stale.label,
                objects = stale.objects,
                "found objects of another mode of Fairlead, removing them once this mode has programmed all service \
                 ports"
            );
        }
    }

    /// Reads the kernel, and changes nothing. After an error there may be more than `found`.
    async fn find(&self, found: &mut Vec<StaleMode>) -> Result<()> {
        found.extend(self.find_tables().await?);
        let ipvs = self.find_ipvs().await?;
        let has_ipvs = ipvs.is_some();
        found.extend(ipvs);
        self.find_chains(has_ipvs, found).await
    }

    /// The tables of mode nftables.
    async fn find_tables(&self) -> Result<Option<StaleMode>> {
        if self.mode == Mode::Nftables {
            return Ok(None);
        }
        let families = backend_nft::programmed_families().await.context("list the tables of nf_tables")?;
        if families.is_empty() { Ok(None) } else { Ok(Some(StaleMode::nftables(families))) }
    }

    /// The virtual servers, the device and the sets of mode ipvs, with the chains that need them.
    async fn find_ipvs(&self) -> Result<Option<StaleMode>> {
        if self.mode == Mode::Ipvs {
            return Ok(None);
        }
        let listed = backend_ipvs::installed_objects(self.exclude.clone()).await;
        let objects = listed.context("list the objects of IPVS")?;
        if objects.is_empty() {
            return Ok(None);
        }

        let servers = backend_ipvs::virtual_servers().await.context("list the virtual servers of IPVS")?;
        let has_servers = |family: &IpFamily| servers.iter().any(|server| server.at.family() == *family);
        Ok(Some(StaleMode::ipvs(&objects, IpFamily::ALL.into_iter().filter(has_servers).collect())))
    }

    /// The chains of mode iptables, and those of mode ipvs that nothing needs. `has_ipvs`: other objects of mode ipvs
    /// exist, with which its chains are removed.
    async fn find_chains(&self, has_ipvs: bool, found: &mut Vec<StaleMode>) -> Result<()> {
        let own_variant = if self.mode.traits().runs_iptables { Some(self.used_variant().await?) } else { None };
        // The iptables backend compares the rules of its own variant itself.
        let is_searched = |variant: &Variant| self.mode != Mode::Iptables || Some(*variant) != own_variant;
        let searched: Vec<_> = Variant::ALL.into_iter().filter(is_searched).collect();

        let mut result = Ok(());
        for saved in save_variants(&searched).await? {
            let program = saved.program;
            let are_own = self.mode == Mode::Ipvs && Some(program.variant) == own_variant;
            let of_iptables = backend_iptables::own_chains(&saved);
            let of_ipvs = if has_ipvs || are_own { Ok(0) } else { backend_ipvs::count_chains(&saved) };

            match of_ipvs {
                Ok(0) => {}
                Ok(count) => found.push(StaleMode::chains(count, program, RemovalMethod::IpvsChains(saved))),
                Err(error) => result = Err(error),
            }
            match of_iptables {
                Ok(OwnChains { count: 0, .. }) => {}
                Ok(OwnChains { count, kept }) => {
                    found.push(StaleMode::chains(count, program, RemovalMethod::Iptables { program, kept }));
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// The variant of iptables that this backend uses. The backend detects it at its first sync, because reading all
    /// rules again takes minutes in large clusters. While it has nothing to sync, they are read here.
    async fn used_variant(&self) -> Result<Variant> {
        match timeout(DETECTION_TIMEOUT, self.variant.used()).await {
            Ok(Some(used)) => Ok(used),
            Ok(None) | Err(_) => Ok(Tools::new(self.variant.wanted()).program(IpFamily::V4).await?.variant),
        }
    }

    /// Removes the objects of other modes for the IP families that this backend serves.
    async fn remove(&self, gauge: &StaleObjects) -> Result<RemovalOutcome> {
        let mut found = Vec::new();
        let result = self.find(&mut found).await;
        if found.is_empty() {
            result?;
            gauge.set(&[]);
            return Ok(RemovalOutcome::Complete);
        }

        // Only the iptables backend reads the rules of one variant.
        let variant = if self.mode == Mode::Iptables { Some(self.used_variant().await?) } else { None };
        let served = programmed_families(self.mode, variant).await?;
        let mut kept = Vec::new();
        let mut connections = 0;
        for stale in found {
            let open = stale.remove(&served, self.loopback, &self.exclude).await?;
            connections += open;
            if open == 0 && stale.is_served_by(&served) {
                info!(mode = stale.label, objects = stale.objects, "removed the objects of another mode of Fairlead");
            } else {
                kept.push(stale);
            }
        }

        gauge.set(&kept);
        result?;
        if kept.is_empty() { Ok(RemovalOutcome::Complete) } else { Ok(RemovalOutcome::Incomplete { connections }) }
    }
}

fn has_no_retryable_failure(progress: &Progress) -> bool {
    !progress.failures.iter().any(|failure| failure.retryable)
}

impl StaleMode {
    fn nftables(families: Vec<IpFamily>) -> Self {
        let tables: Vec<_> = families.iter().map(|family| format!("{family} table")).collect();
        Self {
            label: "nftables",
            count: tables.len(),
            objects: tables.join(", "),
            families,
            removal: RemovalMethod::Nftables,
        }
    }

    fn ipvs(objects: &[InstalledObject], families: Vec<IpFamily>) -> Self {
        let describe = |object: &InstalledObject| format!("{} {} ({})", object.subsystem, object.kind, object.count);
        let described: Vec<_> = objects.iter().map(describe).collect();
        Self {
            label: "ipvs",
            count: objects.iter().map(|object| object.count).sum(),
            objects: described.join(", "),
            families,
            removal: RemovalMethod::Ipvs,
        }
    }

    /// Chains in the rules of one iptables program.
    fn chains(count: usize, program: Program, removal: RemovalMethod) -> Self {
        let label = match (&removal, program.variant) {
            (RemovalMethod::IpvsChains(_), _) => "ipvs",
            (_, Variant::Nft) => "iptables-nft",
            (_, Variant::Legacy) => "iptables-legacy",
        };
        Self { label, count, objects: format!("{count} chains of {program}"), families: vec![program.family], removal }
    }

    /// Whether all its families are among `served`.
    fn is_served_by(&self, served: &[IpFamily]) -> bool {
        self.families.iter().all(|family| served.contains(family))
    }

    /// Removes the objects that serve these families. Returns the number of connections because of which objects are
    /// kept.
    async fn remove(&self, served: &[IpFamily], loopback: LoopbackRouting, exclude: &[IpNet]) -> Result<u64> {
        match &self.removal {
            RemovalMethod::Nftables => {
                let is_served = |family: &IpFamily| served.contains(family);
                let families: Vec<_> = self.families.iter().copied().filter(is_served).collect();
                backend_nft::remove(&families).await.context("delete the tables of mode nftables")?;
            }
            _ if !self.is_served_by(served) => {
                warn!(mode = self.label, "this backend does not serve an IP family that another mode serves");
            }
            RemovalMethod::Iptables { program, kept } => {
                let removed = backend_iptables::remove(*program, loopback).await;
                removed.with_context(|| format!("remove the chains of {program}"))?;
                if !kept.is_empty() {
                    warn!(
                        %program, chains = ?kept,
                        "kept chains without their rules, because rules of other programs refer to them"
                    );
                }
            }
            RemovalMethod::IpvsChains(saved) => {
                let removed = backend_ipvs::remove_chains(saved).await;
                removed.with_context(|| format!("remove the chains of mode ipvs with {}", saved.program))?;
            }
            RemovalMethod::Ipvs => {
                return backend_ipvs::retire(exclude.to_vec()).await.context("remove the objects of mode ipvs");
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipvs_is_replaced_by_a_backend_that_serves_the_families_of_its_virtual_servers() {
        let of = |families: &[IpFamily]| StaleMode::ipvs(&[], families.to_vec());
        let (v4, v6) = (IpFamily::V4, IpFamily::V6);
        for (families, served, is_replaced) in [
            (&[v4][..], &[v4][..], true),
            (&[], &[v4], true),
            (&[v4, v6], &[v4, v6], true),
            (&[v4, v6], &[v4], false),
            (&[v6], &[v4], false),
        ] {
            assert_eq!(of(families).is_served_by(served), is_replaced, "{families:?}, {served:?}");
        }
    }
}
