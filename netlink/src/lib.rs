//! Bytes to and from the kernel, synchronous: netlink sockets, typed errors, nf_tables, conntrack, IPVS and ipset.
//!
//! ```text
//!   nft::NftBatch  (a transaction: one buffer, append-only, printable)
//!       |  commit                                    nft::NftMonitor (who changed what)
//!       v                                                 ^
//!   nft::NftHandle --- Socket --- kernel --------------------+
//!       ^                         |
//!       +---- dumps, decoded -----+   Table, Chain, Set, ListedRule, Element
//! ```
//!
//! [`conntrack`] dumps and deletes flows, [`ipvs`] reads and changes virtual servers, [`ipset`] sets, [`device`] makes and deletes a
//! dummy device and changes its addresses; [`addresses`] says which addresses each interface has.
//!
//! Calls block: the kernel executes a transaction inside `sendmsg`, in the caller's context. Keep a [`nft::NftHandle`]
//! on a thread of its own (or in `spawn_blocking`), never on an async worker. Nothing here starts a process.

pub mod addresses;
mod attr;
#[cfg(test)]
mod captured;
pub mod conntrack;
pub mod device;
mod error;
mod exchange;
mod family;
mod genl;
pub mod ipset;
pub mod ipvs;
mod message;
pub mod nft;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{Errno, Error, RejectedOperation, RejectedOperations, Result};
pub use family::AddressFamily;
pub use socket::Socket;
