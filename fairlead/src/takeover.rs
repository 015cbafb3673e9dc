//! What kube-proxy leaves in a node's kernel, in all its modes, and how to remove it without closing connections.
//!
//! ```text
//!   iptables-save ──▶ chains KUBE-*, jumps to them ──▶ iptables-restore               iptables
//!   nf_tables ──────▶ tables kube-proxy ─────────────▶ one transaction                here
//!   ip_vs, ip_set ──▶ virtual servers, device, sets ─▶ deleted unless connected       ipvs
//! ```
//!
//! NAT rules are evaluated for the first packet of a connection only, and connection tracking is not touched:
//! connections that kube-proxy's rules have set up continue without them. New connections need the rules of another
//! proxy, which must be in place first.
//!
//! IPVS handles every packet, so its virtual servers are kept while they have connections. Objects of other programs
//! are not touched: only those with names of kube-proxy, rules that only jump to them, and virtual servers at the
//! addresses and ports in its sets.

mod iptables;
mod ipvs;
mod rules;
#[cfg(test)]
mod testing;

use anyhow::{Context as _, Result};
use netlink::nft::{NftBatch, NftHandle, Table};
use proto::model::IpFamily;
use tracing::info;

pub(crate) use iptables::canary::{kube_proxy_may_run, running_kube_proxies};
pub(crate) use rules::{ConnectionVerdict, KubeProxyRules, VipKey, VipRules, kube_proxy_rules};

/// The name of kube-proxy's tables in nf_tables, `ip` and `ip6`. It owns them completely.
const KUBE_PROXY_TABLE: &str = "kube-proxy";
/// The table of Calico's Felix, in either family.
const FELIX_TABLE: &str = "calico";

/// What keeps Calico's Felix in nf_tables without kube-proxy.
pub(crate) const FELIX_REMEDY: &str = "set nftablesMode: Enabled in the FelixConfiguration `default`, or \
                                       linuxDataplane: Nftables in the operator's Installation, and wait until Felix \
                                       has restarted";

/// Objects of kube-proxy in the kernel, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftoverObject {
    /// The part of the kernel, by the tool that shows it: `iptables-nft nat`, `nf_tables`.
    pub(crate) subsystem: String,
    /// The IP family that it serves; `None` for both.
    pub(crate) family: Option<IpFamily>,
    /// A rule, a chain, a table, a set, a device, or several of one kind: `chain KUBE-SEP-*`.
    pub(crate) kind: String,
    /// How many.
    pub(crate) count: usize,
}

/// Everything of kube-proxy in the network namespace of the calling thread.
#[derive(Debug)]
pub(crate) struct Leftovers {
    iptables: Vec<iptables::ChainRemoval>,
    nft: Vec<(IpFamily, Table)>,
    has_felix: bool,
    ipvs: ipvs::IpvsLeftovers,
}

impl LeftoverObject {
    fn new(subsystem: impl Into<String>, family: Option<IpFamily>, kind: String, count: usize) -> Self {
        Self { subsystem: subsystem.into(), family, kind, count }
    }
}

impl Leftovers {
    /// Reads the kernel, and changes nothing.
    ///
    /// # Errors
    /// When a part of the kernel cannot be read. What is not installed or not loaded contains nothing.
    pub(crate) async fn find() -> Result<Self> {
        let iptables = iptables::ChainRemoval::find().await?;
        let mut handle = NftHandle::open()?;
        let nft = nft_tables(&mut handle, KUBE_PROXY_TABLE)?;
        let has_felix = !nft_tables(&mut handle, FELIX_TABLE)?.is_empty();
        Ok(Self { iptables, nft, has_felix, ipvs: ipvs::IpvsLeftovers::find()? })
    }

    /// The objects that will be removed.
    pub(crate) fn objects(&self) -> Vec<LeftoverObject> {
        let iptables = self.iptables.iter().flat_map(iptables::ChainRemoval::objects);
        let nft = self.nft.iter().map(|(family, table)| {
            LeftoverObject::new("nf_tables", Some(*family), format!("table {} {}", table.family, table.name), 1)
        });
        iptables.chain(nft).chain(self.ipvs.objects()).collect()
    }

    /// Whether Calico's Felix uses nf_tables and there are tables of kube-proxy, which it follows with
    /// `nftablesMode: Auto`.
    pub(crate) fn felix_may_follow(&self) -> bool {
        self.has_felix && !self.nft.is_empty()
    }

    /// Which objects are kept and why, and advice for the operator before the removal.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.iptables.iter().flat_map(|removal| removal.notes.clone()).collect();
        if self.iptables.is_empty() {
            notes.push("iptables is not installed, so rules written with it cannot be found or removed".to_owned());
        }
        if self.felix_may_follow() {
            notes.push(format!(
                "Calico's Felix uses nf_tables: unless its nftablesMode is Enabled, it restarts with iptables within \
                 15 s when the table kube-proxy is gone, and policies change their place in the meantime. First \
                 {FELIX_REMEDY}"
            ));
        }
        notes.extend(self.ipvs.notes());
        notes
    }

    /// Removes it. Returns the objects that the kernel did not remove because rules of other programs use them.
    ///
    /// # Errors
    /// The first rejection. Nothing was removed from the rejected table; the removal can be repeated.
    pub(crate) async fn remove(&self) -> Result<Vec<LeftoverObject>> {
        for removal in &self.iptables {
            removal.remove().await?;
        }
        remove_nft_tables(&self.nft)?;
        // Sets can only be destroyed after the rules that refer to them.
        let in_use = self.ipvs.remove()?;
        info!(objects = self.objects().len() - in_use.len(), "removed the rules and objects of kube-proxy");
        Ok(in_use)
    }
}

/// The tables of this name that exist.
fn nft_tables(handle: &mut NftHandle, name: &str) -> Result<Vec<(IpFamily, Table)>> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let tables = handle.tables(family).context("list the tables of nf_tables")?;
        found.extend(tables.into_iter().filter(|table| table.name == name).map(|table| (family, table)));
    }
    Ok(found)
}

/// Deletes tables in one transaction.
fn remove_nft_tables(tables: &[(IpFamily, Table)]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut batch = NftBatch::new();
    tables.iter().for_each(|(_, table)| batch.delete_table(table));
    NftHandle::open()?.commit(&batch).context("delete kube-proxy's tables")
}
