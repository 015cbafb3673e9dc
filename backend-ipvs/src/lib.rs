//! Programs Kubernetes Services into IPVS, with sets and a dummy device, over netlink.
//!
//! ```text
//!   packet to a VIP ─▶ its address is on fairlead-ipvs0, so it comes up
//!     ─▶ mangle INPUT (of the node itself: OUTPUT): who is in no source range is dropped; a set says what becomes of the others, as a mark
//!     ─▶ filter INPUT: verdicts. A VIP without endpoint, another port of the address: refused, or dropped
//!     ─▶ IPVS: a cluster IP by its address, what comes from outside by the mark ─▶ an endpoint
//!     ─▶ nat POSTROUTING: masquerade what is to be
//! ```
//!
//! | kernel object | what it holds |
//! |---|---|
//! | device `fairlead-ipvs0` | cluster IPs, and external and load-balancer IPs that no other device has |
//! | virtual server `tcp 10.96.0.1:80` | a cluster IP: the cluster pool, or the local one under internal policy Local |
//! | virtual server `mark 0xfa...` | external IPs, load-balancer IPs and the node port of a service port and family, together: the cluster pool; under external policy Local the local pool, and one more with the cluster pool for pods and the node itself |
//! | set `FAIRLEAD-VIPS` | address, port → mark: a virtual server's, "cluster IP", "drop" or "reject" |
//! | set `FAIRLEAD-NODE-PORTS` | port → mark |
//! | sets `...-INSIDE` | the same, of packets of pods and of the node itself, where that differs |
//! | set `FAIRLEAD-ADDRESSES` | the addresses on the device: other ports of them are refused, so that nothing of the node's own answers there |
//! | sets `FAIRLEAD-RESTRICTED`, `FAIRLEAD-SOURCES` | load-balancer IPs with source ranges, and these |
//! | set `FAIRLEAD-HAIRPIN` | endpoints on this node: who reaches itself is masqueraded |
//! | chains `FAIRLEAD-IPVS...` | rules that ask the sets, the same whatever services there are |
//!
//! Names of IPv6 sets begin with `FAIRLEAD-6-`. What is ours is known by its mark, by its name, or by its address on our device; nothing
//! else is ever touched.
//!
//! A TCP destination that leaves gets no new connections and goes when its last one has ended. Until then it has weight 0, and the
//! time at which it goes at the latest is kept with it in the kernel (as its limits), so that a restart changes nothing.
//!
//! IPVS has no transactions: a change is a list of operations in an order in which nothing that stays is missing for a moment.
//! How a change becomes operations, from the inside out: `mark`, `set`, `object` , `desired`, `applied` (which also has what
//! was observed), `plan` (the difference, in a safe order), `kernel`; `data_plane` puts them together for the driver. `view` shows
//! what is programmed.

mod applied;
mod data_plane;
mod describe;
mod desired;
mod ids;
mod kernel;
mod mark;
mod object;
mod plan;
mod set;
mod settings;
mod view;

use anyhow::Result;
use backend::driver::Driver;
use proto::model::IpFamily;

use data_plane::IpvsDataPlane;
use kernel::{DryRun, Netlink};
pub use netlink::ipvs::IpvsTimeouts;
pub use settings::{Arp, Settings};
pub use view::{Destination, ServerMatch, VirtualServer};

/// The IPVS backend.
pub type Ipvs = Driver<IpvsDataPlane<Netlink>>;

/// The IPVS backend as one that writes nothing, and loads no module.
pub type IpvsPreview = Driver<IpvsDataPlane<DryRun>>;

/// Opens the backend for the network namespace of the calling thread. It changes nothing before the first reconcile.
///
/// # Errors
/// When a netlink socket could not be opened or a thread not be started.
pub fn open(settings: Settings) -> Result<Ipvs> {
    Ok(Driver::new(IpvsDataPlane::new(Netlink::open(settings.iptables)?, settings)))
}

/// Opens the backend as one that writes nothing, as [`open`] does.
///
/// # Errors
/// See [`open`].
pub fn open_preview(settings: Settings) -> Result<IpvsPreview> {
    Ok(Driver::new(IpvsDataPlane::new(DryRun::new(Netlink::open(settings.iptables)?), settings)))
}

/// The families that we have programmed; none if iptables is not installed.
///
/// # Errors
/// When the rules could not be read.
pub async fn programmed_families() -> Result<Vec<IpFamily>> {
    Netlink::open(None)?.families().await
}

/// Our virtual servers with their destinations and connection counts. Changes nothing, and loads no module: none if the kernel has no
/// IPVS.
///
/// # Errors
/// When the kernel could not be read.
pub async fn virtual_servers() -> Result<Vec<VirtualServer>> {
    let (objects, connections) = Netlink::open(None)?.look().await?;
    Ok(view::view(&objects, &connections))
}
