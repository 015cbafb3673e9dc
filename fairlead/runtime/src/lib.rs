//! The process runtime that `fairlead frontend` and `fairlead backend` share. It knows nothing about Services or the
//! kernel's rules.
//!
//! ```text
//! log::init                      one event per line on stderr, text or JSON
//! log::init_queued, log::flush   the same, written by a thread: nothing waits for a stderr that hangs
//! Shutdown::on_signals ──┐
//! Ready::guard ─ Ready   │       ready once every guard has been dropped
//! Tasks::spawn ─ Tasks::run      ends when any task ends or Shutdown is triggered, with a deadline for the others
//! Backoff                        delays between retries
//! TokenBucket                    how often something may happen
//! sleep_until                    a timer that need not be set
//! failure                        error chains, and what to log of a repeated failure
//! printable                      text of others for a terminal
//! certificate                    when certificates are valid
//! connect_advice                 what to do about a failed connection
//! ConnectionTable                bounds of connections, in total and for each client
//! raise_file_limit, file_limit   RLIMIT_NOFILE, for thousands of connections
//! set_oom_score_adj              oom_score_adj of this process
//! http::serve, http::serve_at    HTTP/1.1 for metrics and health
//! metrics::scrape                the response to a Prometheus scrape
//! ```

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
pub use shutdown::{Shutdown, Trigger};
pub use sleep::sleep_until;
pub use tasks::Tasks;
pub use token_bucket::{Rate, TokenBucket};
