//! Several streams and churns that a change must not affect.

use std::time::Duration;

use super::{Churn, Stream};
use crate::uml;

/// The fewest echoes on each stream in one [`BackgroundTraffic::wait`].
const ECHOES: u64 = 5;

/// Long-lived and new connections.
#[derive(Debug, Default)]
pub struct BackgroundTraffic {
    /// Long-lived connections.
    pub streams: Vec<Stream>,
    /// New connections.
    pub churns: Vec<Churn>,
}

impl BackgroundTraffic {
    /// Without new connections in a guest: while its CPU is shared, one in some hundreds of them times out there.
    #[must_use]
    pub fn that_fits_a_guest(self) -> Self {
        match uml::is_guest() {
            true => Self { churns: Vec::new(), ..self },
            false => self,
        }
    }

    /// Waits until each churn has made `attempts` more requests, and each stream has echoed some more messages.
    #[track_caller]
    pub fn wait(&self, attempts: u64, deadline: Duration) {
        Churn::wait_for_attempts(&self.churns, attempts, deadline);
        Stream::wait_for_echoes(&self.streams, ECHOES, deadline);
    }

    /// Stops it, and checks that no connection was lost and no long-lived one moved to another endpoint.
    #[track_caller]
    pub fn finish(self) {
        for churn in self.churns {
            assert_eq!(churn.finish().failures, []);
        }
        for stream in self.streams {
            let report = stream.finish();
            assert!(report.is_clean() && report.pods.len() == 1, "{report:?}");
        }
    }
}
