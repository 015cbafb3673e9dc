//! Programs Kubernetes Services into nftables, over netlink, without starting a process.
//!
//! Rules are slow to change and elements of maps are fast. So the rules are few, the same whatever services there are, and
//! nearly all changes are changes of elements. For each family there is one table, `ip fairlead` and `ip6 fairlead`:
//!
//! ```text
//!  prerouting ─┐                  ┌ vips ────────────────────▶ cluster-ip-pool-3 ─▶ pool-3       ─▶ endpoints
//!              ├─▶ services ──────┤   (or drop, or reject)     masq-pool-3       ─▶ pool-3
//!  output ─────┘     │            │                            cluster-ip-local-pool-1 ─▶ local-pool-1
//!                    │            └ policy-local-vips ─▶ policy-local
//!                    │                 pods, this node: cluster-vips ─▶ pool-3
//!                    │                 everybody else:  local-vips   ─▶ local-pool-1 ─▶ local-endpoints
//!                    └ this node ─▶ nodeports ─── the same again, with a port instead of a VIP for key
//!
//!  forward, output ─▶ cluster-ips-check ─▶ reject other ports of cluster IPs, drop other addresses of the service CIDRs
//!  postrouting ─▶ masquerade what is marked, and endpoints that reached themselves (hairpin)
//! ```
//!
//! | object | key → value |
//! |---|---|
//! | map `vips` | address . protocol . port → `goto` a pool chain, `goto reject` or `drop` |
//! | map `endpoints`, `endpoints-64`, `endpoints-256`, `endpoints-many` | address . protocol . port . place → endpoint, by the pool's size |
//! | map `local-endpoints` | the same key → endpoint on this node |
//! | set `policy-local-vips` | address . protocol . port under external traffic policy Local |
//! | map `cluster-vips`, `local-vips` | the same key → pool chain or `drop`, by where the packet comes from |
//! | map `nodeports`, `cluster-nodeports`, `local-nodeports`, set `policy-local-nodeports` | protocol . port → the same |
//! | map `nodeport-endpoints`, `nodeport-local-endpoints` | protocol . port . place → endpoint |
//! | map `affinity` | address . protocol . port . client → endpoint, for as long as the chain says; written by rules, never by us |
//! | map `affine-endpoints`, `local-affine-endpoints` | the key of `endpoints` → endpoint, under session affinity |
//! | set `live`, `local-live` | endpoint . port . address . protocol . port: who is in the pool, under session affinity |
//! | the same with `nodeport-` | without the address |
//! | set `cluster-ips` | address: the cluster IPs of all services |
//! | set `hairpin` | endpoint . endpoint . protocol . port of each endpoint on this node |
//! | chain `pool-<n>`, `local-pool-<n>`, `nodeport-pool-<n>`, `nodeport-local-pool-<n>` | one of *n* endpoints, at random |
//! | chain `cluster-ip-pool-<n>`, `cluster-ip-local-pool-<n>` | masquerade, unless from a pod; then the pool |
//! | chain `masq-pool-<n>`, `masq-nodeport-pool-<n>` | masquerade; then the pool |
//! | chain `affine-...-<n>-<timeout>s` | with session affinity: the client's endpoint, or one to be remembered; without room for it, the pool |
//!
//! The chains with a number are made when the first service port has so many endpoints, and are shared by all that have. An
//! endpoint that is replaced is one element; one that is added is one element and the VIP's verdict; one that is removed leaves
//! its place to the last one. Everything is one transaction, unless it is so much that nobody else should have to wait for it (`commit`).
//!
//! How a change becomes a transaction, from the inside out: `order` (places), `desired` (what should be there), `plan` (the
//! difference, in a safe order), `present` (what is there), `commit` (without what the kernel refuses), `kernel`.

mod commit;
mod desired;
mod driver;
mod element;
mod expected;
mod kernel;
mod order;
mod plan;
mod present;
mod programmed;
mod words;

use anyhow::Result;
use backend::{
    Backend, Changes, Drift, InstalledObject, NodeState, Preview, PreviewReport, SyncReport,
    dataplane::DataplaneOptions,
};
use proto::model::IpFamily;

use driver::Driver;
use kernel::{DryRun, Netlink};

/// The nftables backend.
#[derive(Debug)]
pub struct Nft(Driver<Netlink>);

impl Nft {
    /// For the network namespace of the calling thread. Nothing is changed before the first
    /// [`reconcile`](Backend::reconcile).
    ///
    /// # Errors
    /// When there is no netlink socket or no thread to be had.
    pub fn new(options: DataplaneOptions) -> Result<Self> {
        Ok(Self(Driver::new(Netlink::open()?, options)))
    }

    /// The families of which the kernel holds a table of ours: it is made in one transaction with what is in it.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn families(&mut self) -> Result<Vec<IpFamily>> {
        self.0.families().await
    }

    /// What [`cleanup`](Backend::cleanup) would delete: tables.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let families = self.families().await?;
        let tables = families.into_iter().map(desired::table);
        let what = tables.map(|table| format!("table {} {}", table.family, table.name));
        Ok(what.map(|what| InstalledObject { subsystem: "nf_tables".to_owned(), kind: what, count: 1 }).collect())
    }
}

impl Backend for Nft {
    const NAME: &'static str = "nftables";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.0.reconcile(state).await
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        self.0.apply(state, changes).await
    }

    async fn drifted(&mut self) -> Drift {
        self.0.drifted().await
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.0.cleanup().await
    }
}

/// The nftables backend as one that writes nothing.
#[derive(Debug)]
pub struct NftPreview(Driver<DryRun<Netlink>>);

impl NftPreview {
    /// For the network namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no netlink socket or no thread to be had.
    pub fn new(options: DataplaneOptions) -> Result<Self> {
        Ok(Self(Driver::new(DryRun::new(Netlink::open()?), options)))
    }
}

impl Preview for NftPreview {
    const NAME: &'static str = Nft::NAME;

    async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.0.preview(state).await
    }

    async fn drifted(&mut self) -> Drift {
        self.0.drifted().await
    }
}
