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
//! | module | what it does |
//! |---|---|
//! | [`object`] | the relevant parts of Kubernetes objects |
//! | [`source`] | reads objects from the API server or from manifests |
//! | [`index`] | finds the service ports that a change affects, and resolves VIP conflicts |
//! | `view` | computes a service port as seen from a zone or a node; pure |
//! | `log` | current state, history and digests; differences, snapshots and repairs for a node; changes for people |
//! | `cluster` | index, log and current revision, shared by all parts |
//! | `engine` | applies updates and commits revisions |
//! | `session` | the protocol of one stream |
//! | [`identity`] | authentication and authorization of clients |
//! | `server`, `local` | transports |
//! | `tls` | TLS files, and the configuration of new handshakes |
//! | `streams` | the open streams and the nodes that should have one |
//! | `config` | settings, and limits of clients, connections and history |
//! | `context` | what all parts share |
//! | `clients`, `per_client` | what one client may take |
//! | `page`, `metrics`, `scrape` | what operators see |
//! | `cached` | what is computed once per second for all of them |
//! | `events` | Kubernetes Events about nodes |
//! | `excerpt` | the start of a text that a client has chosen |
//! | `discovery` | addresses of frontends |
//! | `drains` | whether any node still sends new connections to a pod that ends |
//! | `startup_taint` | removes the taint of nodes that start |

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
