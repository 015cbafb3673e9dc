//! How failures are reported: the whole chain of causes of an error, and one log line when a repeated failure begins,
//! changes and ends.

mod counted;

use std::{error::Error, time::Duration};

use tokio::time::Instant;

use crate::connect_advice::causes;

pub use counted::CountedLog;

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

/// What to log about one more failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The condition worked before.
    First,
    /// It failed before, for another reason. The number of failures so far, this one included.
    CauseChanged(u64),
    /// The same failure again: not worth a line. The number of failures so far, this one included.
    Again(u64),
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
        let Some(failing) = &mut self.failing else {
            self.failing = Some(Failing { cause: cause.to_owned(), since: Instant::now(), count: 1 });
            return Occurrence::First;
        };
        failing.count += 1;
        if without_numbers(&failing.cause).eq(without_numbers(cause)) {
            return Occurrence::Again(failing.count);
        }
        cause.clone_into(&mut failing.cause);
        Occurrence::CauseChanged(failing.count)
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

impl Occurrence {
    /// Whether this failure should be logged above DEBUG.
    #[must_use]
    pub fn is_news(self) -> bool {
        !matches!(self, Self::Again(_))
    }
}

/// Logs an [`Occurrence`] with these fields and this message: at WARN if it is news, otherwise at DEBUG.
#[macro_export]
macro_rules! warn_if_news {
    ($occurrence:expr, $($event:tt)*) => {
        if $occurrence.is_news() { ::tracing::warn!($($event)*) } else { ::tracing::debug!($($event)*) }
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
        assert_eq!(condition.failed("connect 10.0.0.1:6443: refused"), Occurrence::First);
        assert_eq!(condition.failed("connect 10.0.0.2:6443: refused"), Occurrence::Again(2));
        assert_eq!(condition.failed("certificate expired"), Occurrence::CauseChanged(3));
        assert!(condition.is_failing());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(condition.recovered(), Some(Recovery { count: 3, duration: Duration::from_secs(7) }));
        assert_eq!(condition.recovered(), None);
    }
}
