//! Models of what tasks and threads share: each compiles a file of another crate again, with the mutexes and condition
//! variables of `shuttle`, whose scheduler decides at each of their operations which thread runs next. A failure prints
//! its schedule, and `shuttle::replay` runs it again.
//!
//! | model | code |
//! |---|---|
//! | `tokens` | `frontend/src/identity/tokens/cache.rs` |
//! | `connections` | `fairlead/runtime/src/connections/table.rs` |
//! | `conntrack` | `backend/src/flows/requests.rs` |
#![allow(dead_code, unreachable_pub, reason = "files of other crates, of which a model uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a model fails")]

mod connections;
mod conntrack;
mod tokens;

/// How many interleavings of each model are tried.
const INTERLEAVINGS: usize = 3_000;

/// What files of `runtime` find at the root of their crate.
mod failure {
    pub(crate) use runtime::failure::CountedLog;
}
