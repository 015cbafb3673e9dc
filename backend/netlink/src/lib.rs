//! Bytes to and from the kernel, synchronous: nf_tables, conntrack, ipset, IPVS, and links with their addresses.
//!
//! ```text
//!   NftBatch                      NftHandle     ConntrackHandle   IpsetHandle   IpvsHandle      rtnl
//!      | transactions        dumps    |               |               |             | genl        |
//!      v                              v               v               v             v             |
//!   nft/commit                        +------------- exchange: requests ------------+             |
//!      |                                                 |                                        v
//!      +------------- message, attr ------------------ Socket <---- NftMonitor          crate rtnetlink
//!                                                        |                                        |
//!                                                     kernel <------------------------------------+
//! ```
//!
//! Each subsystem is a module with a handle, whose methods are the requests (`rtnl` has functions). The numbers of the
//! kernel's headers are in `abi.rs` beside it, the encoding in `codec.rs`, `flow.rs` or `decode.rs`. Begin at
//! [`nft::NftHandle`].
//!
//! Calls block: the kernel executes a transaction inside `sendmsg`, in the caller's context. Keep a handle on a thread
//! of its own (or in `spawn_blocking`), never on an async worker. Nothing here starts a process.

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
