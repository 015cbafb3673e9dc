//! A Kubernetes API server in memory, over HTTP/1.1, for tests and benchmarks: lists in pages and as metadata, watches
//! with bookmarks, streaming lists, single objects, reviews of tokens and permissions. Its answers are compared with
//! those of a real one (`tests/answers.rs`).
//!
//! ```text
//!                 ┌─▶ ApiServer ─▶ Store (every version until it is compacted)   with Faults
//!   http, route ──┤
//!                 └─▶ ScriptedApiServer ─▶ the test answers each request
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `server` | [`ApiServer`]: what a test does with it, and requests |
//! | `store` | objects in all their versions |
//! | `list`, `watch` | the two ways to read objects |
//! | `selector` | label and field selectors |
//! | `resource` | the kinds, and their paths |
//! | `faults` | what fails, for each kind |
//! | `review` | tokens, the keys that sign them, and permissions |
//! | `script` | [`ScriptedApiServer`] |
//! | `status`, `http` | errors, and connections |
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "only for tests: a panic is how one fails")]

mod faults;
mod http;
mod list;
mod resource;
mod review;
mod script;
mod selector;
mod server;
mod status;
mod store;
mod watch;

pub use faults::{Fault, Faults};
pub use http::Cut;
pub use resource::Resource;
pub use review::ReviewedUser;
pub use script::{Call, OpenWatch, PATIENCE, ScriptedApiServer};
pub use server::{ApiServer, Backup, RequestKind};

/// A kubeconfig for a server without TLS and credentials.
#[must_use]
pub fn kubeconfig(address: std::net::SocketAddr) -> String {
    format!(
        "\
apiVersion: v1
kind: Config
clusters: [{{ name: fake, cluster: {{ server: 'http://{address}' }} }}]
contexts: [{{ name: fake, context: {{ cluster: fake, user: fake }} }}]
users: [{{ name: fake, user: {{}} }}]
current-context: fake
"
    )
}
