//! Programs Kubernetes Services into IPVS, with ipsets and a dummy device, over netlink.
//!
//! ```text
//!   packet to a VIP, an address on kube-ipvs0
//!     ─▶ mangle INPUT (OUTPUT for the node itself): drop sources outside the source ranges; set a mark from the ipsets
//!     ─▶ filter INPUT: reject or drop VIPs without endpoints and other ports of their addresses, by mark
//!     ─▶ IPVS: a virtual server, by address for cluster IPs, by mark for other VIPs ─▶ an endpoint
//!     ─▶ nat POSTROUTING: masquerade, by connmark
//! ```
//!
//! | kernel object | content |
//! |---|---|
//! | device `kube-ipvs0` | cluster IPs, and external and load-balancer IPs that no other device has |
//! | virtual server `tcp 10.96.0.1:80` | a cluster IP: the cluster pool, or the local pool under internal policy Local |
//! | virtual server `mark 0xfa...` | the external IPs, load-balancer IPs and node port of a service port and family: the cluster pool; under external policy Local the local pool, and a second one with the cluster pool for pods and the node itself |
//! | set `FAIRLEAD-VIPS` | address, port → mark: of a virtual server, "cluster IP", "drop" or "reject" |
//! | set `FAIRLEAD-NODE-PORTS` | port → mark |
//! | sets `...-INSIDE` | the same for packets from pods and the node itself, where it differs |
//! | set `FAIRLEAD-ADDRESSES` | the addresses on the device; their other ports are rejected, so that no process on the node answers there |
//! | sets `FAIRLEAD-RESTRICTED`, `FAIRLEAD-SOURCES` | load-balancer IPs with source ranges, and the ranges |
//! | set `FAIRLEAD-HAIRPIN` | endpoints on this node; their connections to themselves are masqueraded |
//! | set `FAIRLEAD-RETURNING` | sources of connections, for a few seconds: finds endpoints without node name that reach themselves |
//! | chains `FAIRLEAD-IPVS...` | fixed rules that match the sets |
//!
//! Names of IPv6 sets begin with `FAIRLEAD-6-`. Fairlead's objects are recognised by their mark, their name, or an
//! address on its device; no others are changed. The device is Fairlead's while a set of Fairlead exists; without one
//! it is kube-proxy's, whose addresses and virtual servers are adopted when the sets are created.
//!
//! A removed TCP destination gets weight 0, and is deleted when its last connection has ended or its deadline has
//! passed. The deadline is stored in the kernel (in the thresholds of the destination), so that a restart changes
//! nothing. A UDP destination keeps its flows at weight 0 for as long as its endpoint serves.
//!
//! IPVS has no transactions: a change is a sequence of operations, ordered so that no object that stays is missing in
//! between. How a change becomes operations, from the inside out: a module uses only those to its left.
//!
//! ```text
//!  mark, set ─▶ object ─▶ desired ─▶ plan ─▶ ids ─▶ kernel ─▶ applied ─▶ data_plane, for the driver
//! ```

mod applied;
mod data_plane;
mod describe;
mod desired;
mod ids;
mod kernel;
mod mark;
#[cfg(feature = "testing")]
mod memory;
mod object;
mod plan;
mod set;
mod settings;
mod view;

use anyhow::Result;
use backend::{InstalledObject, driver::Driver};
use ipnet::IpNet;
use proto::model::IpFamily;

use data_plane::IpvsDataPlane;
pub use kernel::rules::{count_chains, remove_chains};
use kernel::{
    Kernel as _, Netlink, Ours,
    netlink::{Worker, open as open_kernel},
    rules,
};
#[cfg(feature = "testing")]
pub use memory::Memory;
pub use netlink::ipvs::{IpvsTimeouts, VirtualServerKey};
pub use settings::{Arp, Settings};
pub use view::{Destination, VirtualServer};

/// The IPVS backend.
pub type Ipvs = Driver<IpvsDataPlane<Netlink>>;

/// Opens the backend for the network namespace of the calling thread. It changes nothing before the first reconcile.
///
/// # Errors
/// If a netlink socket could not be opened or a thread could not be started.
pub fn open(settings: Settings) -> Result<Ipvs> {
    Ok(Driver::new(IpvsDataPlane::new(open_kernel(&settings)?, settings)))
}

/// The families that we have programmed; none if iptables is not installed.
///
/// # Errors
/// If the rules could not be read.
pub async fn programmed_families() -> Result<Vec<IpFamily>> {
    let counts = open_kernel(&Settings::default())?.run(|_| rules::count()).await??;
    let has_chains = |family: &IpFamily| counts.iter().any(|(_, of, chains)| of == family && *chains > 0);
    Ok(IpFamily::ALL.into_iter().filter(has_chains).collect())
}

/// Our virtual servers with their destinations and connection counts. Changes nothing, and loads no module: none if the
/// kernel has no IPVS.
///
/// # Errors
/// If the kernel could not be read.
pub async fn virtual_servers() -> Result<Vec<VirtualServer>> {
    let (objects, connections) = open_kernel(&Settings::default())?.run(Worker::objects_and_connections).await??;
    Ok(view::view(&objects, &connections))
}

/// The objects of this backend, if one of its sets exists. Changes nothing, and loads no module.
/// `exclude`: see [`Settings::exclude`].
///
/// # Errors
/// If the kernel could not be read.
pub async fn installed_objects(exclude: Vec<IpNet>) -> Result<Vec<InstalledObject>> {
    let mut kernel = open_kernel(&Settings::default())?;
    if !kernel.run(Worker::is_programmed).await?? {
        return Ok(Vec::new());
    }
    kernel.installed_objects(Ours { exclude, ..Ours::default() }).await
}

/// Removes the objects of this backend from a node that another backend serves. Virtual servers with TCP or SCTP
/// connections are kept, without accepting new ones, with the objects that they need. Returns the number of these
/// connections: if it is not zero, call this again when they may have ended.
///
/// # Errors
/// If the kernel could not be read or changed. It can be repeated.
pub async fn retire(exclude: Vec<IpNet>) -> Result<u64> {
    let ours = Ours { exclude, ..Ours::default() };
    open_kernel(&Settings::default())?.run(move |worker| worker.retire(&ours)).await?
}
