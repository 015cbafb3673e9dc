//! What a data plane reports when the kernel does not accept a transaction.

use anyhow::Result;

/// Why a transaction was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel rejected a part of it; without that part it may be accepted.
    #[error("{0}")]
    Rejected(Rejection),
    /// Another transaction would fail as well.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// What the kernel rejected. Service ports are given by their index in [`Change::service_ports`](super::Change).
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub struct Rejection {
    /// The service ports that the kernel named, each with the reason.
    pub named: Vec<(u32, String)>,
    /// The reason of a rejection that could not be traced to a service port.
    pub unnamed: Option<String>,
}

/// What a transaction does with objects that no service port in it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unneeded {
    /// It deletes them.
    Delete,
    /// It leaves them: a later transaction may need them.
    Keep,
}

impl CommitError {
    /// The rejection.
    ///
    /// # Errors
    /// When it is none.
    pub fn into_rejection(self) -> Result<Rejection> {
        match self {
            Self::Rejected(rejection) => Ok(rejection),
            Self::Failed(error) => Err(error),
        }
    }
}

impl Rejection {
    /// The first reason.
    fn reason(&self) -> &str {
        let reasons = self.named.iter().map(|(_, reason)| reason).chain(&self.unnamed);
        reasons.map(String::as_str).next().unwrap_or("rejected")
    }
}
