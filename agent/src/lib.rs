//! The node: follows a stream, keeps the node's state, drives a [`Backend`], reports.
//!
//! ```text
//!   client ──▶ staged operations ──commit──▶ NodeState + Changes ──▶ Backend::apply ──▶ ack
//!                                                │
//!                                              store (the last committed state, in a file)
//! ```

mod backend;
mod changes;
mod stage;
mod state;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backend::{Applied, Backend};
pub use changes::Changes;
pub use stage::{Committed, RefusedOperation, Stage};
pub use state::{NodeState, Service};
