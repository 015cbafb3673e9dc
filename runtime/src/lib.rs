//! The process shell that `fairlead frontend` and `fairlead backend` share; it knows nothing of Services or of the kernel.
//!
//! ```text
//! log::init                      one line per event on stderr, text or JSON
//! Shutdown::on_signals ──┐
//! Ready::guard ─ Ready   │       ready once every guard has been dropped
//! Tasks::spawn ─ Tasks::run      ends when any task ends or Shutdown is triggered, with a deadline for the others
//! Backoff                        how long to wait before the next try
//! raise_file_limit               for thousands of connections
//! set_oom_score_adj              who goes last when memory runs out
//! http::serve, http::serve_at    metrics and health, to whoever asks
//! metrics::scrape                what Prometheus reads
//! Profiling                      where the processor time goes, to whoever asks
//! ```

mod backoff;
pub mod failure;
mod files;
pub mod http;
pub mod log;
pub mod metrics;
mod oom;
mod profile;
mod ready;
mod shutdown;
mod tasks;

pub use backoff::Backoff;
pub use files::raise_file_limit;
pub use log::LogFormat;
pub use oom::set_oom_score_adj;
pub use profile::Profiling;
pub use ready::{Ready, ReadyGuard};
pub use shutdown::{Shutdown, Trigger};
pub use tasks::Tasks;
