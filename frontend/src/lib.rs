//! The frontend: watches the Kubernetes API, decides what each node must program, and streams it to the nodes.
//!
//! ```text
//!   source ──SourceUpdate──▶ Frontend::run: index ──▶ view ──▶ log    one writer
//!                                                        │
//!                            node 1 ◀── session ◀────────┤ watch: a new revision
//!                            node 2 ◀── session ◀────────┘    each sends what the commits since sent, in shared chunks
//!                                          ▲
//!                 server (gRPC) or local (channels in one process)
//! ```
//!
//! The way in is [`Frontend::run`] in `engine`: it applies the updates of a [`source`] to the [`index`], computes the
//! `view` of each service port that may have changed, and commits the changes to the `log`. `cluster` has index and log
//! with their locks.
//!
//! `session` is the other side: one stream of one node, for which it asks the log what has changed since the revision
//! of the node. It knows no transport. `context` is what all sessions and the engine share: the settings, the open
//! `streams`, and the limits of `clients`, because a client must not take the frontend away from others.
//!
//! All else stands beside this path: [`identity`] and `tls` tell who a client is, `page`, `metrics` and `events` tell
//! people what happens, and `drains` tells nodes when a pod that ends gets no new connections any more.

mod cached;
mod clients;
mod cluster;
mod config;
mod context;
mod discovery;
mod drains;
mod engine;
mod events;
mod excerpt;
#[cfg(feature = "testing")]
pub mod fuzzing;
pub mod identity;
pub mod index;
mod local;
mod log;
mod metrics;
pub mod object;
mod page;
mod per_client;
mod scrape;
mod server;
mod session;
pub mod source;
#[cfg(feature = "testing")]
pub mod stages;
mod startup_taint;
mod streams;
#[cfg(test)]
mod testing;
mod tls;
mod view;

pub use config::{Config, ConnectionLimits, HistoryLimits};
pub use discovery::discover_frontends;
pub use engine::{Frontend, StreamStats};
pub use runtime::Rate;
pub use server::{Listener, TlsAuth};
pub use session::SessionError;
pub use tls::{ReloadingTls, TlsFiles};
