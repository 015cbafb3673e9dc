//! What identifies a backend process to a frontend, and in its metrics and status.

use std::{sync::Arc, time::SystemTime};

/// The identity of a backend process.
#[derive(Debug)]
pub(crate) struct BackendIdentity {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// [`Backend::NAME`](crate::Backend::NAME).
    pub(crate) backend: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}
