//! Bytes to and from the kernel, synchronous: netlink sockets, typed errors, nf_tables, conntrack, IPVS and ipset.
//!
//! ```text
//!   nft::NftBatch  (a transaction: one buffer, append-only, printable)
//!       |  commit                                    nft::NftMonitor (notifications)
//!       v                                                 ^
//!   nft::NftHandle --- Socket --- kernel --------------------+
//!       ^                         |
//!       +---- dumps, decoded -----+   Table, Chain, Set, ListedRule, Element
//! ```
//!
//! [`conntrack`] dumps and deletes flows, [`ipvs`] reads and changes virtual servers, [`ipset`] sets; [`rtnl`] reads
//! and changes links, addresses and routes.
//!
//! Calls block: the kernel executes a transaction inside `sendmsg`, in the caller's context. Keep a [`nft::NftHandle`]
//! on a thread of its own (or in `spawn_blocking`), never on an async worker. Nothing here starts a process.

#[macro_use]
mod macros;
mod attr;
pub mod conntrack;
mod error;
mod exchange;
mod family;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod genl;
pub mod ipset;
pub mod ipvs;
mod message;
pub mod nft;
pub mod rtnl;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{Errno, Error, RejectedOperation, RejectedRequest, Result};
pub use socket::Socket;

#[cfg(test)]
mod tests {
    pub(crate) mod captured;
}
