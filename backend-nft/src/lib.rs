//! Programs Kubernetes Services into nftables, over netlink, without starting a process.
//!
//! Changing rules is slow, and changing map elements is fast. So there are few rules, which do not depend on the
//! service ports, and nearly all changes are changes of elements. Each family has one table, `ip fairlead1` and `ip6
//! fairlead1`, whose number is that of the layout:
//!
//! ```text
//!  prerouting ─┐                  ┌ vips ───────────────▶ cluster-ip-pool-3 ─▶ pool-3 ─▶ endpoints
//!              ├─▶ services ──────┤ (or drop, or reject)  cluster-ip-local-pool-1 ─▶ local-pool-1
//!  output ─────┘     │            │                       masq-alias-pool-3 ─▶ alias-pool-3 ─▶ aliases ─▶ endpoints
//!                    │            └ policy-local-vips ─▶ policy-local
//!                    │                 pods, this node: cluster-vips ─▶ alias-pool-3
//!                    │                 elsewhere: local-vips ─▶ alias-local-pool-1 ─▶ aliases ─▶ local-endpoints
//!                    └ this node ─▶ nodeports ─── the same with a port instead of a VIP, and nodeport-aliases
//!
//!  prerouting, output, earlier ─▶ restricted-vips ─▶ sources-<group> ─▶ allowed-sources, or drop
//!  forward, output ─▶ cluster-ips-check ─▶ reject other ports of cluster IPs, drop other service CIDR addresses
//!  postrouting ─▶ masquerade packets with the mark, and those of endpoints that reach themselves by a VIP (hairpin)
//! ```
//!
//! | object | key → value |
//! |---|---|
//! | map `vips` | address . protocol . port → `goto` a pool chain, `goto reject` or `drop` |
//! | map `endpoints`, `endpoints-64`, `endpoints-256`, `endpoints-many` | pool key . slot → endpoint, by the size of the pool |
//! | map `local-endpoints` | the same key → endpoint on this node |
//! | map `aliases` | address . protocol . port → pool key: of a service port, its cluster IP, port and protocol |
//! | set `policy-local-vips` | address . protocol . port under external traffic policy Local |
//! | map `cluster-vips`, `local-vips` | the same key → pool chain or `drop`, by source class |
//! | map `nodeports`, `nodeport-aliases`, `cluster-nodeports`, `local-nodeports`, set `policy-local-nodeports` | protocol . port → the same |
//! | map `affine-clients` | pool key . bucket of clients → endpoint, with the timeout of the chain; written by rules only |
//! | map `affine-endpoints`, `local-affine-endpoints` | the key of `endpoints` → endpoint, under session affinity |
//! | set `live`, `local-live` | endpoint . port . pool key: the endpoints of the pool, under session affinity |
//! | set `cluster-ips` | address: the cluster IPs of all services |
//! | set `hairpin` | endpoint . endpoint . protocol . port of each endpoint on this node |
//! | set `equal-bytes` | each byte . the same byte: compares source and destination of connections that were translated, for endpoints without node name |
//! | map `restricted-vips` | address . protocol . port of load-balancer IPs with source ranges → `goto` the chain of the group |
//! | set `allowed-sources` | group . prefix length . first address of each source range |
//! | chain `sources-<group>` | a rule for each prefix length in the group, and drop |
//! | chain `pool-<n>`, `local-pool-<n>` | a random one of *n* endpoints; the VIP is the key |
//! | chain `alias-...`, `nodeport-alias-...` | the same; the key is the value of `aliases`, `nodeport-aliases` |
//! | chain `cluster-ip-pool-<n>`, `cluster-ip-local-pool-<n>` | masquerade, unless from a pod; then the pool |
//! | chain `masq-alias-pool-<n>`, `masq-nodeport-alias-pool-<n>` | masquerade; then the pool |
//! | chain `affine-...-<n>-<timeout>s` | with session affinity: the endpoint of the client, or a random one that is stored; if the map is full, the pool |
//!
//! A chain with a number is created when the first service port has that number of endpoints, and is shared by all of
//! them. Replacing an endpoint changes one element; adding one adds an element and changes the verdict of the VIP; when
//! one is removed, the last endpoint moves to its slot. A change is one transaction, unless it is so large that it
//! would block other users of nf_tables for long; then a service port is changed in several steps (`edits`).
//!
//! How a change becomes a transaction, from the inside out: a module uses only those to its left.
//!
//! ```text
//!  element ─▶ desired ─▶ operation, refs ─▶ kernel ─▶ observed ─▶ applied ─▶ plan ─▶ data_plane, for the driver
//!  slots ──┘                             ├─▶ edits ────────────┘                  │
//!                                        └─▶ describe ────────────────────────────┤
//!                                                              batch_sizer ───────┘
//! ```

mod affine_ports;
mod applied;
mod batch_sizer;
mod data_plane;
mod describe;
mod desired;
mod edits;
mod element;
#[cfg(test)]
mod fake_driver;
mod kernel;
#[cfg(feature = "testing")]
mod memory;
mod observed;
mod operation;
mod plan;
mod refs;
mod slots;

use std::collections::BTreeSet;

use anyhow::Result;
use backend::{dataplane::DataplaneOptions, driver::Driver};
use proto::model::IpFamily;

use data_plane::{NftDataPlane, delete_tables};
pub use desired::is_own_table;
use kernel::{Kernel, Netlink};
#[cfg(feature = "testing")]
pub use memory::Memory;

/// The nftables backend.
pub type Nft = Driver<NftDataPlane<Netlink>>;

/// Opens the backend for the network namespace of the calling thread. It changes nothing before the first reconcile.
///
/// # Errors
/// If a netlink socket cannot be opened or a thread cannot be started.
pub fn open(options: DataplaneOptions) -> Result<Nft> {
    Ok(Driver::new(NftDataPlane::new(Netlink::open()?, options)))
}

/// The families for which the kernel contains a table of ours.
///
/// # Errors
/// If the kernel cannot be read.
pub async fn programmed_families() -> Result<Vec<IpFamily>> {
    let tables = Netlink::open()?.tables().await?;
    let families: BTreeSet<IpFamily> = tables.into_iter().map(|(family, _)| family).collect();
    Ok(families.into_iter().collect())
}

/// Deletes our tables of these families. Established connections continue.
///
/// # Errors
/// If the kernel rejects the deletion.
pub async fn remove(families: &[IpFamily]) -> Result<()> {
    delete_tables(&mut Netlink::open()?, families).await
}
