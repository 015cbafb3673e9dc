//! Errors of connections and calls, with all their causes.

use std::{error::Error, fmt};

use proto::InvalidMessage;
use runtime::failure::chain;
use tonic::Status;

use super::advice::advice;

/// Why a call or a stream failed.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The status of the call. Its own text omits the cause.
    Status(Status),
    /// A received message is invalid.
    Invalid(InvalidMessage),
}

/// The error with all its causes, and what to do about it if that is known.
pub(super) fn explained(error: &(dyn Error + 'static)) -> anyhow::Error {
    let causes = chain(error);
    match advice(error) {
        Some(advice) => anyhow::anyhow!("{causes} ({advice})"),
        None => anyhow::anyhow!(causes),
    }
}

impl From<Status> for StreamError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<InvalidMessage> for StreamError {
    fn from(error: InvalidMessage) -> Self {
        Self::Invalid(error)
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{:?}: {}", status.code(), status.message()),
            Self::Invalid(_) => f.write_str("received an invalid message"),
        }
    }
}

impl Error for StreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Status(status) => status.source(),
            Self::Invalid(error) => Some(error),
        }
    }
}
