//! The protocol between a frontend and its backends: the typed model, its wire form, and digests.
//!
//! ```text
//!   frontend ──▶ model::Operation ──▶ bytes (encoded once) ──▶ gRPC ──▶ model::Operation ──▶ backend
//! ```
//!
//! All crates work with the types of [`model`], which cannot hold invalid values. [`v1`] is the generated wire form,
//! used here, where gRPC is served or called, and in the status commands. [`convert`] maps one to the other,
//! [`encoded`] has messages in wire form, [`state`] is what the operations lead to, and [`digest`] compares the states
//! of two peers. The rules of the protocol are in `docs/protocol.md`.

pub mod convert;
pub mod digest;
pub mod encoded;
#[cfg(feature = "testing")]
pub mod fuzzing;
pub mod model;
pub mod node_set;
pub mod state;

/// The generated messages and client of `fairlead.v1`, documented in the `.proto` file. `make generate` writes them.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    include!("v1/messages.rs");

    /// A generated server that sends [`crate::encoded::EncodedMessage`]s, for the protocol test and tests of clients.
    pub mod server {
        include!("v1/server.rs");
        pub use fairlead_server::{Fairlead, FairleadServer};
    }
}

pub use convert::InvalidMessage;

/// The version of the protocol that this build supports. A peer of another version is rejected.
pub const PROTOCOL_VERSION: u32 = 1;

/// The maximum size of the answer to any other call than `Watch` in bytes: that of the status of 5,000 nodes which all
/// report failures. A frontend sends no larger one, and a client accepts none.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The maximum size of a message on the stream in bytes. Senders split batches accordingly.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
