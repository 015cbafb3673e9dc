//! How much is kept of what clients report.

use proto::model::Hello;

/// The most characters of the name, and of the version, of a backend: a client chooses them, and status, logs and
/// Events show them.
const MAX_LABEL_CHARS: usize = 64;
/// The most texts about what does not work on a node: the status of all nodes has them.
const MAX_DEGRADED: usize = 8;
/// The most bytes of one of these texts.
const MAX_DEGRADED_BYTES: usize = 512;

/// A Hello with the start of the name and version of the backend.
pub(super) fn truncated_hello(hello: Hello) -> Hello {
    let start = |text: &str| text.chars().take(MAX_LABEL_CHARS).collect();
    Hello { backend: start(&hello.backend), backend_version: start(&hello.backend_version), ..hello }
}

/// The first texts, and the first bytes of each.
pub(super) fn truncated_degraded(texts: Vec<String>) -> Vec<String> {
    let truncated = texts.into_iter().take(MAX_DEGRADED).map(|mut text| {
        text.truncate(text.floor_char_boundary(MAX_DEGRADED_BYTES));
        text
    });
    truncated.collect()
}
