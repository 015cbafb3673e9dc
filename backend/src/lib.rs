//! The parts that all node backends share: the stream from the frontend, the committed state and its file, the loop
//! that drives a [`Backend`], and its reports.
//!
//! ```text
//!   Connect ──▶ stream ──▶ replica ──── commit ──▶ Target: the newest state ──▶ Backend ──▶ kernel
//!    (gRPC,       ▲                       │                                        │
//!     in-process) └──── acks, digests ────┼────────────────────────────────────────┤
//!                                         ▼                                        ▼
//!            store (the last committed state, in a file)           health (health-check node ports)
//!                                                                  Progress, metrics ──▶ observe (HTTP)
//! ```
//!
//! [`Runner`] assembles these; `sync` runs them, and is the only caller of the backend.

use std::time::Duration;

use runtime::Rate;

mod backend;
mod client;
pub mod dataplane;
mod disk;
pub mod drained;
mod drifts;
pub mod driver;
mod flows;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod health;
mod loss;
mod metrics;
mod observe;
mod progress;
mod replica;
mod runner;
mod saved_rules;
mod store;
mod stream;
mod sync;
mod sysctl;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backend::{Backend, Difference, DifferenceKind, Drift, InstalledObject, Nat, PreviewReport, SyncReport};
pub use client::{Credentials, Discover, FrontendAddress, Grpc, GrpcOptions};
pub use flows::{ConntrackCleanup, remove_reset_rules};
pub(crate) use loss::Loss;
pub use loss::LossLimit;
pub use metrics::{NFT_CLIENTS, NFT_TABLE};
pub use observe::{Observer, ObserverPages};
pub use progress::Progress;
pub(crate) use progress::{ChangeCounts, ProtocolCounters};
pub(crate) use proto::state::DepartedEndpoints;
pub use proto::state::{Changes, NodeState, RejectedOperation, ServiceName, ServicePortState};
pub use runner::{Runner, RunnerOptions};
pub use saved_rules::read_rules;
pub(crate) use store::Store;
pub use store::{StateFile, Storage, StoredState};
pub use stream::{Connect, ReconnectDelays, Rejected, Session};
pub use sysctl::{ConntrackSettings, tcp_is_liberal};

/// The rate of log lines about events whose frequency a tenant decides: changes of Services, ports of health checks
/// that open and close, flows that are cleaned up.
pub(crate) const LINE_RATE: Rate = Rate { burst: 10, every: Duration::from_millis(500) };

/// How long the end of the process waits for each of its threads. One writes the state file; after a restart a frontend
/// sends the commits that are not in it. The other one removes the rules of resets.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(2);
