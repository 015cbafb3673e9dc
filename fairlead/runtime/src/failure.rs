//! How failures are reported: the whole chain of causes of an error, and one log line when a repeated failure begins,
//! changes and ends.

mod counted;

use std::{error::Error, time::Duration};

use tokio::time::Instant;

use crate::connect_advice::causes;

pub use counted::{CountedLog, LINE_INTERVALS};

/// The error and all its sources, outermost first, separated by `: `.
///
/// Libraries disagree on whether an error's text repeats that of its source. A source whose text the chain already ends
/// with is left out.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error).map(ToString::to_string) {
        if cause.is_empty() || text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// A condition that may fail many times in a row, such as a connection that is retried.
///
/// It decides what is worth a log line: the first failure, a failure with another cause, and the recovery. Everything
/// between is counted.
#[derive(Debug, Default)]
pub struct Repeated {
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    cause: String,
    since: Instant,
    count: u64,
}

/// One more failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The number of failures so far, this one included.
    pub count: u64,
    /// Whether it should be logged above DEBUG: the first failure, or one with another cause than the last.
    pub is_news: bool,
}

/// A failing condition that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// How often it failed.
    pub count: u64,
    /// From the first failure to the recovery.
    pub duration: Duration,
}

impl Repeated {
    /// Records a failure. `cause` is compared with that of the last one; numbers in it are ignored, because ports,
    /// attempts and durations change with every try.
    pub fn failed(&mut self, cause: &str) -> Occurrence {
        let new = || Failing { cause: String::new(), since: Instant::now(), count: 0 };
        let failing = self.failing.get_or_insert_with(new);
        failing.count += 1;

        let is_news = failing.count == 1 || without_numbers(&failing.cause).ne(without_numbers(cause));
        if is_news {
            cause.clone_into(&mut failing.cause);
        }
        Occurrence { count: failing.count, is_news }
    }

    /// Records a success. `Some` when this ends a failure.
    pub fn recovered(&mut self) -> Option<Recovery> {
        let Failing { since, count, .. } = self.failing.take()?;
        Some(Recovery { count, duration: since.elapsed() })
    }

    /// Whether the last attempt failed.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }
}

/// Logs an [`Occurrence`] with these fields and this message: at WARN if it is news, otherwise at DEBUG.
#[macro_export]
macro_rules! warn_if_news {
    ($occurrence:expr, $($event:tt)*) => {
        if $occurrence.is_news { ::tracing::warn!($($event)*) } else { ::tracing::debug!($($event)*) }
    };
}

fn without_numbers(cause: &str) -> impl Iterator<Item = char> + '_ {
    cause.chars().filter(|c| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("handshake failed: certificate expired")]
    struct Middle(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("certificate expired")]
    struct Inner;

    #[test]
    fn chain_has_every_cause_once() {
        assert_eq!(chain(&Outer(Middle(Inner))), "client error (Connect): handshake failed: certificate expired");
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_failure_is_news_when_it_begins_changes_and_ends() {
        let mut condition = Repeated::default();
        assert_eq!(condition.recovered(), None);
        assert_eq!(condition.failed("connect 10.0.0.1:6443: refused"), Occurrence { count: 1, is_news: true });
        assert_eq!(condition.failed("connect 10.0.0.2:6443: refused"), Occurrence { count: 2, is_news: false });
        assert_eq!(condition.failed("certificate expired"), Occurrence { count: 3, is_news: true });
        assert!(condition.is_failing());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(condition.recovered(), Some(Recovery { count: 3, duration: Duration::from_secs(7) }));
        assert_eq!(condition.recovered(), None);
    }
}
