//! Programs Kubernetes Services into iptables, of either variant, with kube-proxy's chains, writing only what changed.
//!
//! ```text
//!  nat PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─┬ cluster IP ───────────▶ KUBE-SVC-..  (policy Local: KUBE-SVL-..)
//!                                           ├ external IP ──────────▶ KUBE-EXT-.. ─▶ KUBE-SVC-.., KUBE-SVL-..
//!                                           ├ with source ranges ───▶ KUBE-FW-.. ─▶ KUBE-EXT-..
//!                                           └ last: this node ─▶ KUBE-NODEPORTS ─▶ KUBE-EXT-..
//!      KUBE-SVC-.., KUBE-SVL-.. ─ a random endpoint, or that of session affinity ─▶ KUBE-SEP-.. ─▶ DNAT
//!      on the way: KUBE-MARK-MASQ; nat POSTROUTING ─▶ KUBE-POSTROUTING masquerades marked packets
//!
//!  filter FORWARD, OUTPUT ─▶ KUBE-SERVICES: cluster IPs without endpoints
//!                              └▶ FAIRLEAD-CLUSTER-IPS: other ports of cluster IPs, other addresses of service CIDRs
//!  filter INPUT, FORWARD, OUTPUT ─▶ KUBE-EXTERNAL-SERVICES: external IPs without endpoints
//!                              │      └▶ FAIRLEAD-NODEPORTS: node ports without endpoints
//!                              └─▶ KUBE-PROXY-FIREWALL: clients outside the source ranges
//!  filter INPUT ─▶ KUBE-NODEPORTS: health-check node ports
//!  filter FORWARD ─▶ KUBE-FORWARD: drops invalid packets, accepts marked ones
//!  filter OUTPUT ─▶ FAIRLEAD-SILENT: drops resets while no backend listens at the port of /drained
//! ```
//!
//! A chain is written when its own content changes, and chains that all service ports share are edited line by line, so
//! that the cost of a change does not depend on the size of the cluster. At the start, after a failure and after a
//! change by another process, the rules are compared as text, and only differing chains and rules are written: a
//! restart writes nothing.
//!
//! How a change becomes scripts for `iptables-restore`, from the inside out: a module uses only those to its left.
//!
//! ```text
//!  names, table ─▶ desired ─▶ observed ─▶ content ─▶ applied ─▶ plan ─▶ kernel ─▶ data_plane, for the driver
//! ```

mod applied;
mod content;
mod data_plane;
mod describe;
mod desired;
#[cfg(test)]
mod fake_driver;
mod kernel;
#[cfg(feature = "testing")]
mod memory;
mod names;
mod observed;
mod plan;
mod table;

use anyhow::Result;
use backend::{dataplane::DataplaneOptions, driver::Driver, read_rules};
use iptables::{Program, Ruleset, SavedRules, Variant, VariantSelection};
use proto::model::IpFamily;

use data_plane::IptablesDataPlane;
pub use data_plane::LoopbackRouting;
use kernel::IptablesKernel;
#[cfg(feature = "testing")]
pub use memory::Memory;
use observed::Observed;

/// The iptables backend.
pub type Iptables = Driver<IptablesDataPlane<IptablesKernel>>;

/// The backend for the network namespace of the calling thread. It changes nothing before the first reconcile.
#[must_use]
pub fn open(options: DataplaneOptions, variant: impl Into<VariantSelection>) -> Iptables {
    Driver::new(IptablesDataPlane::new(IptablesKernel::new(variant), options))
}

/// The families that we have programmed in this variant; `None`: in the variant in use. None if iptables is not
/// installed.
///
/// # Errors
/// If the rules could not be read.
pub async fn programmed_families(variant: Option<Variant>) -> Result<Vec<IpFamily>> {
    let kernel = IptablesKernel::new(variant);
    if !kernel.is_installed().await? {
        return Ok(Vec::new());
    }
    let observed = IptablesDataPlane::new(kernel, DataplaneOptions::default()).observed().await?;
    Ok(observed.into_iter().map(|(family, _)| family).collect())
}

/// The chains of this backend among some rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnChains {
    /// The number of chains that [`remove`] deletes.
    pub count: usize,
    /// The chains that [`remove`] only empties, because rules of other programs use them, each with such a program's
    /// chain.
    pub kept: Vec<String>,
}

/// The chains of this backend among these rules; none if it has not written them.
///
/// # Errors
/// If the rules cannot be read.
pub fn own_chains(saved: &SavedRules) -> Result<OwnChains> {
    let rules = read_rules(saved, &table::TABLES, names::is_only_ours)?;
    let mut chains = OwnChains::default();
    if !has_programmed(&rules) {
        return Ok(chains);
    }

    let observed = Observed::new(rules);
    for (table, name, _) in observed.ours() {
        match observed.user(table, name) {
            Some(user) => chains.kept.push(format!("{table} {name}, used by {user}")),
            None => chains.count += 1,
        }
    }
    Ok(chains)
}

/// Whether this backend has written these rules. If it has, all chains with names of [`is_own_chain`] are its own.
#[must_use]
pub fn has_programmed(rules: &Ruleset) -> bool {
    rules.chains().any(|(_, chain, _)| names::is_only_ours(chain))
}

/// Whether this backend creates chains with this name. kube-proxy creates some of them too.
#[must_use]
pub fn is_own_chain(name: &str) -> bool {
    names::is_ours(name)
}

/// As [`remove`], on a node where kube-proxy runs in mode iptables and uses chains of the same names. These are kept.
/// Returns the number of chains that are removed.
///
/// # Errors
/// If the rules cannot be read or removed.
pub async fn remove_unshared(program: Program) -> Result<usize> {
    let kernel = IptablesKernel::new(Some(program.variant));
    IptablesDataPlane::new(kernel, DataplaneOptions::default()).remove_unshared(program.family).await
}

/// Removes the rules of this backend that a program shows, of one family and variant. Established connections continue.
///
/// # Errors
/// If the rules cannot be read or removed.
pub async fn remove(program: Program, loopback: LoopbackRouting) -> Result<()> {
    let kernel = IptablesKernel::new(Some(program.variant));
    IptablesDataPlane::new(kernel, DataplaneOptions::default()).remove(program.family, loopback).await
}
