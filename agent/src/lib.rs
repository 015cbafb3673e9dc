//! The node: follows a stream, keeps the node's state, drives a [`Backend`], reports.
//!
//! ```text
//!   client ──▶ staged operations ──commit──▶ NodeState + Changes ──▶ Backend::apply ──▶ ack
//!                                                │
//!                                              store (the last committed state, in a file)
//! ```

mod backend;
mod changes;
mod state;

pub use backend::{Applied, Backend};
pub use changes::Changes;
pub use state::{NodeState, Service};
