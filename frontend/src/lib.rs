//! The cluster: Kubernetes objects in, one stream of decisions per node out.
//!
//! ```text
//!   source ──Update──▶ Frontend::run: index ──▶ view ──▶ log      one writer; what is dirty, what it looks like, what changed
//!                                                         │
//!                            node 1 ◀── session ◀─────────┤ watch: a new revision
//!                            node 2 ◀── session ◀─────────┘       each computes its own net difference, from shared chunks
//!                                          ▲
//!                 server (gRPC) or local (channels in one process)
//! ```
//!
//! | module | answers |
//! |---|---|
//! | [`object`] | What is an object, as far as it matters? |
//! | [`source`] | Which objects are there? |
//! | [`index`] | Which service ports does a change touch, and who gets a VIP that two claim? |
//! | [`view`] | What does a service port look like from a zone, from a node? Pure. |
//! | [`log`] | What changed since revision N for this node? What must it hold? |
//! | `engine` | When is something committed? |
//! | `session` | What does one client hear next? |
//! | [`identity`] | Who is this, and what may it ask for? |
//! | `server`, `local` | How does it get there? |
//! | `streams` | Who is connected, and who should be? |
//! | `metrics` | What is measured, and who may read it? |
//! | `events` | What does Kubernetes get to know of what nodes cannot do? |
//! | `page`, `recent` | What do people see in a browser? What has changed lately? |
//! | `discovery` | Where are frontends? |
//! | `permissions` | May it do what it has to? |

mod change_history;
mod cluster;
mod config;
mod discovery;
mod engine;
mod events;
pub mod identity;
pub mod index;
mod local;
pub mod log;
mod metrics;
pub mod object;
mod outgoing;
mod page;
mod permissions;
mod server;
mod session;
pub mod source;
mod status;
mod streams;
#[cfg(test)]
mod testing;
pub mod view;

pub use config::Config;
pub use discovery::discover_frontends;
pub use engine::{Frontend, StreamStats};
pub use outgoing::OutgoingMessage;
pub use permissions::{Permission, check_permissions};
pub use server::{ConnectionLimits, Listener, ReloadingTls, TlsAuth, TlsFiles};
pub use session::{NodeLimits, Rate, SessionError};
pub use streams::StreamStatus;
