//! IPVS: the kernel's virtual servers and the destinations behind them, over generic netlink.
//!
//! ```text
//!   virtual server  tcp 10.96.0.10:80 ──┬──▶ Destination 10.244.1.5:8080  weight 1, 3 active connections
//!                                       └──▶ Destination 10.244.2.6:8080  weight 0, no new connections
//! ```

mod abi;
pub(crate) mod codec;
mod command;
mod handle;

use std::{fmt, net::SocketAddr, path::Path, sync::Arc};

pub use command::IpvsCommand;
pub use handle::IpvsHandle;

use proto::model::{IpFamily, Protocol};

/// The file with the virtual servers of the thread's network namespace, which exists once the module is loaded.
const TABLE: &str = "/proc/thread-self/net/ip_vs";

/// The key of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualServerKey {
    /// Packets of a protocol to an address.
    Address(Protocol, SocketAddr),
    /// Packets with a mark, of a family.
    FwMark(IpFamily, u32),
}

/// The scheduler of a virtual server, with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scheduling {
    /// `rr`, `wlc`, `mh`; at most 15 characters.
    pub scheduler: Arc<str>,
    /// `IP_VS_SVC_F_*`, as far as they can be set: [`PERSISTENT`], and the scheduler's own.
    pub flags: u32,
    /// The persistence timeout in seconds; used with [`PERSISTENT`].
    pub timeout: u32,
}

/// The timeouts of idle connections, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// TCP connections.
    pub tcp: u32,
    /// TCP connections that have been closed from one side.
    pub tcp_fin: u32,
    /// UDP flows.
    pub udp: u32,
}

/// `IP_VS_SVC_F_PERSISTENT`: a client stays with its destination.
pub const PERSISTENT: u32 = 1;
/// `IP_VS_SVC_F_SCHED1` of the schedulers `sh` and `mh`: while the destination has weight 0, another one is chosen.
pub const SCHED_FALLBACK: u32 = 0x08;
/// `IP_VS_SVC_F_SCHED2` of the schedulers `sh` and `mh`: the hash includes the client's port.
pub const SCHED_PORT: u32 = 0x10;

/// Where a virtual server sends its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Its address.
    pub address: SocketAddr,
    /// How packets get there: `IP_VS_CONN_F_FWD_MASK`, 0 for translation (masquerading).
    pub forwarding: u32,
    /// Its share of the new connections; 0 for none.
    pub weight: u32,
    /// At this number of connections it gets no new connections; 0 for no limit.
    pub upper_threshold: u32,
    /// Below this number of connections it gets new connections again.
    pub lower_threshold: u32,
    /// Connections in which data flow.
    pub active: u32,
    /// Connections that are being opened or closed; UDP flows always.
    pub inactive: u32,
}

/// Whether the module `ip_vs` is loaded. Does not load it.
pub fn is_loaded() -> bool {
    Path::new(TABLE).exists()
}

// === impl VirtualServerKey ===

impl VirtualServerKey {
    /// The family of the packets.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        match self {
            Self::Address(_, address) => IpFamily::of(&address.ip()),
            Self::FwMark(family, _) => *family,
        }
    }
}

impl fmt::Display for VirtualServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(protocol, address) => write!(f, "{} {address}", protocol.lower()),
            Self::FwMark(family, mark) => write!(f, "{family:?} mark {mark}"),
        }
    }
}

// === impl Destination ===

impl Destination {
    /// A destination of this weight that is reached by translation, without connections or limits.
    #[must_use]
    pub fn new(address: SocketAddr, weight: u32) -> Self {
        Self { address, forwarding: 0, weight, upper_threshold: 0, lower_threshold: 0, active: 0, inactive: 0 }
    }
}
