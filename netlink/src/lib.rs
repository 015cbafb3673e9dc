//! Bytes to and from the kernel, synchronous: netlink sockets, typed errors, nf_tables and conntrack.
//!
//! ```text
//!   nft::Batch  (a transaction: one buffer, append-only, printable)
//!       |  commit                                    nft::Monitor (who changed what)
//!       v                                                 ^
//!   nft::Handle --- Socket --- kernel --------------------+
//!       ^                         |
//!       +---- dumps, decoded -----+   Table, Chain, Set, ListedRule, Element
//! ```
//!
//! [`conntrack`] dumps and deletes flows, [`addresses`] says which addresses the interfaces have.
//!
//! Calls block: the kernel executes a transaction inside `sendmsg`, in the caller's context. Keep a [`nft::Handle`]
//! on a thread of its own (or in `spawn_blocking`), never on an async worker. Nothing here starts a process.

pub mod addresses;
mod attr;
pub mod conntrack;
mod error;
mod message;
pub mod nft;
mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{Errno, Error, Refusal, Refusals, Result};
pub use socket::Socket;
