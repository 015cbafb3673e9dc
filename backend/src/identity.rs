//! What identifies a backend process to a frontend, and in its metrics and status.

use std::{sync::Arc, time::SystemTime};

#[derive(Debug)]
pub(crate) struct BackendIdentity {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// [`Backend::NAME`](crate::Backend::NAME).
    pub(crate) backend: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}
