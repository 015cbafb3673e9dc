//! What travels between a frontend and its agents.
//!
//! ```text
//!   frontend ──▶ model::Operation ──▶ bytes (encoded once) ──▶ gRPC ──▶ model::Operation ──▶ agent
//! ```
//!
//! [`model`] is what everybody works with: types that cannot hold an invalid value. [`v1`] is the generated wire form,
//! used only here, at the two gRPC edges and where a Status is shown; [`convert`] leads from one to the other, [`encoded`] carries bytes that
//! were encoded before. [`digest`] is how two sides find out that they hold the same. The rules of the exchange are in
//! `docs/protocol.md`.

pub mod convert;
pub mod digest;
pub mod encoded;
pub mod model;

/// The generated wire types and client of `fairlead.v1`. Their documentation is the `.proto` file.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    tonic::include_proto!("fairlead.v1");

    /// The generated server, whose stream consists of bytes that were encoded before. Tests of clients use it; the frontend sends
    /// such bytes without copying them.
    pub mod server {
        include!(concat!(env!("OUT_DIR"), "/server/fairlead.v1.Fairlead.rs"));
        pub use fairlead_server::{Fairlead, FairleadServer};
    }
}

pub use convert::InvalidMessage;

/// The version of the contract that this build speaks, sent in `Hello` and `Welcome`.
pub const PROTOCOL_VERSION: u32 = 1;

/// No message on the stream is larger than this, in bytes; a sender splits batches accordingly.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
