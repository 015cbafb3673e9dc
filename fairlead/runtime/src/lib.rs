//! The process runtime that `fairlead frontend` and `fairlead backend` share. It knows nothing about Services or the
//! kernel's rules.

mod backoff;
pub mod certificate;
pub mod connect_advice;
mod connections;
pub mod failure;
pub mod http;
mod limits;
mod locks;
pub mod log;
pub mod metrics;
mod printable;
mod ready;
mod shares;
mod shutdown;
mod sleep;
mod tasks;
mod token_bucket;

/// What the table of connections is built on: a module, so that the tests in `tests/simulation/concurrency/` can
/// replace it.
mod primitives {
    pub(crate) use std::sync::{Arc, Mutex, PoisonError};
}

pub use backoff::Backoff;
pub use connections::{ClientSource, ConnectionBounds, ConnectionPermit, ConnectionTable};
pub use limits::{file_limit, raise_file_limit, set_oom_score_adj};
pub use locks::lock;
pub use log::LogFormat;
pub use printable::{printable, printable_lines};
pub use ready::{Ready, ReadyGuard};
pub use shares::Excess;
pub use shutdown::{Shutdown, Trigger};
pub use sleep::sleep_until;
pub use tasks::{Tasks, multi_thread_runtime};
pub use token_bucket::{Rate, TokenBucket};
