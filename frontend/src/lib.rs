//! The cluster: Kubernetes objects in, one stream of decisions per node out.
//!
//! ```text
//!   source ──▶ index ──▶ view ──▶ log ──▶ session (one per node) ──▶ server (gRPC), or the agent itself in `local`
//! ```

mod engine;
mod frame;
pub mod index;
mod local;
pub mod log;
pub mod object;
mod server;
mod session;
pub mod source;
mod streams;
#[cfg(test)]
mod testing;
pub mod view;

pub use engine::{Config, Frontend};
pub use frame::Frame;
pub use server::Listener;
pub use session::SessionError;
pub use streams::StreamStatus;
