//! For tests and benchmarks of this crate and of every backend: builders for states, random histories, the contract
//! tests that a [`Backend`](crate::Backend) must pass, and a backend that programs a map.
//!
//! ```
//! # use fairlead_backend as backend;
//! use backend::testing::mk_state;
//!
//! let state = mk_state()
//!     .service("default/web", |web| web.cluster_ip("10.96.0.1").port(80).endpoints(["10.244.1.1:8080"]))
//!     .build();
//! assert_eq!(state.service_ports().len(), 1);
//! ```

// A panic is how a test fails.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::missing_panics_doc)]

mod builders;
pub mod contract;
mod fake;
mod history;
mod memory;
mod program_all;
#[cfg(test)]
mod state_tests;
mod synthetic;
mod transition;

pub use builders::{NODE_NAME, ServiceBuilder, StateBuilder, mk_key, mk_state};
pub use fake::{Call, FakeBackend, FakeKernel, TornWrite};
pub use history::History;
pub use memory::{ErrorDetail, Gate, MemoryKernel};
pub use program_all::{ProgramAll, rejected_by_test};
pub use synthetic::{Stack, synthetic};
pub use transition::{apply, operations_between, transition};

/// Makes the state file of [`NODE_NAME`] one that a frontend has confirmed in another boot.
pub fn set_boot(file: &std::path::Path, boot: &str) {
    let stored = crate::StoredState::read(file, NODE_NAME).expect("a state file");
    let stored = crate::StoredState { boot: Some(boot.into()), ..stored };
    std::fs::write(file, stored.encode()).expect("a writable file");
}

/// Deletes the UDP flows of the thread's network namespace that are stale in this state, as after each sync. Returns
/// their number.
///
/// # Errors
/// When they cannot be listed or deleted.
pub fn delete_stale_udp_flows(state: &crate::NodeState) -> anyhow::Result<usize> {
    crate::flows::once::delete_stale_udp(state)
}

/// Deletes the half-open TCP connections of the thread's network namespace that a change misleads, as after a sync, but
/// without waiting for late answers. Returns their number.
///
/// # Errors
/// When they cannot be listed or deleted.
pub fn delete_half_open_connections(before: &crate::NodeState, after: &crate::NodeState) -> anyhow::Result<usize> {
    crate::flows::once::delete_half_open(before, after)
}

/// Handles the TCP connections of the thread's network namespace to endpoints that are gone in this state, as one pass
/// after a sync does. Returns their number.
///
/// # Errors
/// When they cannot be listed, or packets cannot be rejected.
pub fn reset_gone_connections(state: &crate::NodeState) -> anyhow::Result<usize> {
    crate::flows::once::reset(state)
}
