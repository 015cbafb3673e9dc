//! The cluster: Kubernetes objects in, one stream of decisions per node out.
//!
//! ```text
//!   source ──▶ index ──▶ view ──▶ log ──▶ session (one per node) ──▶ server (gRPC), or the agent itself in `local`
//! ```

pub mod object;
