//! Programs Kubernetes Services into nftables, over netlink, without starting a process.
//!
//! Rules are slow to change and elements of maps are fast. So the rules are few, the same whatever services there are,
//! and nearly all changes are changes of elements. For each family there is one table, `ip fairlead` and `ip6
//! fairlead`:
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
//! The chains with a number are made when the first service port has so many endpoints, and are shared by all that
//! have. An endpoint that is replaced is one element; one that is added is one element and the VIP's verdict; one that
//! is removed leaves its place to the last one. Everything is one transaction, unless it is so much that nobody else
//! should have to wait for it (`commit`).
//!
//! How a change becomes a transaction, from the inside out: `slots` (which endpoint has which), `desired`, `observed`
//! and `applied` (the three states), `plan` (the difference, in a safe order), `commit` (in batches), `kernel`;
//! `data_plane` puts them together for the driver.

mod applied;
mod commit;
mod data_plane;
mod describe;
mod desired;
mod element;
mod kernel;
mod observed;
mod plan;
mod slots;

use anyhow::Result;
use backend::{dataplane::DataplaneOptions, driver::Driver};
use proto::model::IpFamily;

use data_plane::NftDataPlane;
use kernel::{DryRun, Kernel, Netlink};

/// The nftables backend.
pub type Nft = Driver<NftDataPlane<Netlink>>;

/// The nftables backend as one that writes nothing.
pub type NftPreview = Driver<NftDataPlane<DryRun<Netlink>>>;

/// Opens the backend for the network namespace of the calling thread. It changes nothing before the first reconcile.
///
/// # Errors
/// When a netlink socket could not be opened or a thread not be started.
pub fn open(options: DataplaneOptions) -> Result<Nft> {
    Ok(Driver::new(NftDataPlane::new(Netlink::open()?, options)))
}

/// Opens the backend as one that writes nothing, as [`open`] does.
///
/// # Errors
/// See [`open`].
pub fn open_preview(options: DataplaneOptions) -> Result<NftPreview> {
    Ok(Driver::new(NftDataPlane::new(DryRun::new(Netlink::open()?), options)))
}

/// The families of which the kernel has a table of ours. A table is created in one transaction with its content.
///
/// # Errors
/// When the kernel could not be read.
pub async fn programmed_families() -> Result<Vec<IpFamily>> {
    Netlink::open()?.tables().await
}
