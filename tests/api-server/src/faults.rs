//! What fails, for each kind of object.

use std::time::Duration;

/// What happens to requests for one kind. The default is a healthy server.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Of lists that are no watches, and of single objects.
    pub lists: Option<Fault>,
    /// Of watches, and of lists that are streamed.
    pub watches: Option<Fault>,
    /// Of objects that are created or changed.
    pub writes: Option<Fault>,
    /// Whether watches send bookmarks. An API server whose etcd sends no progress notifications does not, for a kind
    /// without changes.
    pub bookmarks: bool,
    /// Whether lists may be streamed (`sendInitialEvents`).
    pub streaming: bool,
    /// Whether watches send anything. If not, they are accepted, and end in order.
    pub events: bool,
    /// The version that lists show, and that watches do not go beyond, as of a server whose cache does not advance.
    pub frozen_at: Option<u64>,
}

/// A fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered with a `Status` of this code.
    Refuse(u16),
    /// Answered with 429, and `Retry-After` in seconds.
    Throttle(u32),
    /// Answered correctly, after a delay.
    Delay(Duration),
    /// Not answered.
    Hang,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            lists: None,
            watches: None,
            writes: None,
            bookmarks: true,
            streaming: true,
            events: true,
            frozen_at: None,
        }
    }
}
