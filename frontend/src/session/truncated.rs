//! How much is kept of what clients report.

use proto::model::ServicePortFailure;

/// What does not work on a node: texts, and bytes of each.
const MAX_DEGRADED: usize = 8;
const MAX_DEGRADED_BYTES: usize = 512;
/// Failures, in bytes.
const MAX_FAILURE_BYTES: usize = 256 << 10;

/// The first texts, and the first bytes of each.
pub(super) fn truncated_degraded(texts: Vec<String>) -> Vec<String> {
    let truncated = texts.into_iter().take(MAX_DEGRADED).map(|mut text| {
        text.truncate(text.floor_char_boundary(MAX_DEGRADED_BYTES));
        text
    });
    truncated.collect()
}

/// The first failures, up to [`MAX_FAILURE_BYTES`].
pub(super) fn truncated_failures(failures: Vec<ServicePortFailure>) -> Vec<ServicePortFailure> {
    let mut bytes = 0;
    let fits = failures.into_iter().take_while(|ServicePortFailure { key, reason, .. }| {
        bytes +=
            key.namespace.len() + key.name.len() + key.port_name.len() + reason.len() + size_of::<ServicePortFailure>();
        bytes <= MAX_FAILURE_BYTES
    });
    fits.collect()
}
