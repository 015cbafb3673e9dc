//! The node: follows a stream, keeps the node's state, drives a [`Backend`], reports.
//!
//! ```text
//!   Connect ──▶ feed ──▶ mirror ──stage──commit──▶ NodeState + Changes ──▶ pending ──▶ Backend ──▶ kernel
//!    (gRPC,      ▲                                     │                                 │
//!     in-process)└──────────── acks, digests ──────────┼─────────────────────────────────┤
//!                                                      ▼                                 ▼
//!                    store (the last committed state, in a file)         health (health-check node ports)
//!                                                                        Progress, metrics ──▶ observe (HTTP)
//! ```
//!
//! [`Runner`] puts these together; `sync` is the loop in which they work, and the only place where the backend is called.

mod backend;
mod changes;
mod client;
mod conntrack;
mod drifts;
mod feed;
mod health;
pub mod iptables;
mod metrics;
mod mirror;
mod observe;
mod pending;
mod preview;
mod progress;
mod runner;
mod stage;
mod state;
mod store;
mod sync;
mod sysctl;
pub mod traffic;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backend::{Applied, Backend, Drift, Item};
pub use changes::Changes;
pub use client::{Candidate, Credentials, Discover, Grpc, GrpcOptions};
pub use conntrack::Conntrack;
pub use feed::{Attach, Connect, FeedOptions, Session};
pub use metrics::NoLocalCounts;
pub use observe::{Observer, Pages};
pub use preview::{Difference, Preview, Previewed, Verb};
pub use progress::{ChangeCounts, Progress};
pub use runner::{RunMode, Runner, RunnerOptions};
pub use stage::{Committed, Loss, LossLimit, RefusedOperation, Stage};
pub use state::{NodeState, Service};
pub use store::{DEFAULT_STATE_FILE, Store, Stored};
pub use sysctl::ConntrackSettings;
