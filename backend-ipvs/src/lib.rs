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
//! How a change becomes operations, from the inside out: `mark`, `set`, `object` (pieces), `desired` (what should be there), `plan` (the
//! difference, in a safe order), `driver`, `kernel`. What is there is shown by `view`.

mod describe;
mod desired;
mod driver;
mod ids;
mod kernel;
mod mark;
mod object;
mod plan;
mod set;
mod settings;
mod view;

use anyhow::Result;
use backend::{Backend, Changes, Drift, InstalledObject, NodeState, Preview, PreviewReport, SyncReport};
use proto::model::IpFamily;

use driver::Driver;
use kernel::{DryRun, Netlink};
pub use netlink::ipvs::IpvsTimeouts;
pub use settings::{Arp, Settings};
pub use view::{Destination, ServerMatch, VirtualServer};

/// The IPVS backend.
#[derive(Debug)]
pub struct Ipvs(Driver<Netlink>);

impl Ipvs {
    /// For the network namespace of the calling thread. Nothing is changed before the first [`reconcile`](Backend::reconcile).
    ///
    /// # Errors
    /// When there is no netlink socket or no thread to be had.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Self(Driver::new(Netlink::open(settings.iptables)?, settings)))
    }

    /// The families in which something is programmed. None where no iptables is installed.
    ///
    /// # Errors
    /// When iptables does not say.
    pub async fn programmed() -> Result<Vec<IpFamily>> {
        Netlink::open(None)?.families().await
    }

    /// The virtual servers that are ours, with their destinations and how many connections these have now. Changes nothing, and loads
    /// no module: none where the kernel has no IPVS.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn virtual_servers() -> Result<Vec<VirtualServer>> {
        let (objects, connections) = Netlink::open(None)?.look().await?;
        Ok(view::view(&objects, &connections))
    }

    /// What [`cleanup`](Backend::cleanup) would remove.
    ///
    /// # Errors
    /// When the kernel or iptables does not answer.
    pub async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        self.0.installed_objects().await
    }
}

impl Backend for Ipvs {
    const NAME: &'static str = "ipvs";

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

/// The IPVS backend as one that writes nothing, and loads no module.
#[derive(Debug)]
pub struct IpvsPreview(Driver<DryRun>);

impl IpvsPreview {
    /// As [`Ipvs::new`].
    ///
    /// # Errors
    /// When there is no netlink socket or no thread to be had.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Self(Driver::new(DryRun::new(Netlink::open(settings.iptables)?), settings)))
    }
}

impl Preview for IpvsPreview {
    const NAME: &'static str = Ipvs::NAME;

    async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.0.preview(state).await
    }

    /// Not noticed: what is compared is not in force, so that nothing tells a change of others from it.
    async fn drifted(&mut self) -> Drift {
        std::future::pending().await
    }
}
