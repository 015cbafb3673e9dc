//! What can go wrong, with the kernel's errno kept: callers branch on "is not there", "is busy", "outcome unknown".

use std::fmt;

use nix::libc;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a netlink call. [`Error::errno`] and the `is_*` predicates answer what callers branch on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call on the socket itself failed.
    #[error("{call}: {errno}")]
    Socket {
        /// The call, in words.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A request outside a transaction (a dump, a query) was refused.
    #[error("{request}: {errno}{}", hint(.message))]
    Request {
        /// The request in nft's words, e.g. `list map ip fairlead vips`.
        request: String,
        /// Why.
        errno: Errno,
        /// The kernel's own explanation, if it gave one.
        message: Option<String>,
    },
    /// The transaction was refused; nothing of it is in force.
    #[error("{0}")]
    Rejected(RejectedOperations),
    /// The kernel had no room for its answers (`ENOBUFS`): the transaction may be in force or not. Look (compare
    /// `generation`, dump) or send everything again.
    #[error("the kernel dropped its answers: it is unknown whether the transaction was executed")]
    OutcomeUnknown,
    /// The transaction does not fit into the socket's send buffer, and it could not be raised (that takes
    /// `CAP_NET_ADMIN` in the initial user namespace). Send it in smaller parts.
    #[error("a transaction of {bytes} bytes is larger than the socket's send buffer")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
    },
    /// Each attempt at a dump was disturbed by somebody's changes (`NLM_F_DUMP_INTR`).
    #[error("{request}: the ruleset changed during each of {attempts} attempts")]
    Interrupted {
        /// The request in nft's words.
        request: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// An answer is not what the protocol promises.
    #[error("malformed answer from the kernel: {0}")]
    Malformed(&'static str),
}

impl Error {
    /// The kernel's errno; of a refused transaction, the first refusal's.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Socket { errno, .. } | Error::Request { errno, .. } => Some(*errno),
            Error::Rejected(refusals) => refusals.first().map(|refusal| refusal.errno),
            Error::OutcomeUnknown => Some(Errno(libc::ENOBUFS)),
            Error::TooLarge { .. } => Some(Errno(libc::EMSGSIZE)),
            Error::Interrupted { .. } => Some(Errno(libc::EINTR)),
            Error::Malformed(_) => None,
        }
    }

    /// What was named does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.is(libc::ENOENT)
    }

    /// What was to be added is there, and differs (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        self.is(libc::EEXIST)
    }

    /// What was to be removed is still used (`EBUSY`).
    pub fn is_busy(&self) -> bool {
        self.is(libc::EBUSY)
    }

    /// Somebody else changed the ruleset meanwhile (`EINTR`, `ERESTART`, `EAGAIN`): try again.
    pub fn is_interrupted(&self) -> bool {
        self.is(libc::EINTR) || self.is(libc::ERESTART) || self.is(libc::EAGAIN)
    }

    /// The process lacks `CAP_NET_ADMIN` (`EPERM`, `EACCES`), or the table belongs to another process.
    pub fn is_not_permitted(&self) -> bool {
        self.is(libc::EPERM) || self.is(libc::EACCES)
    }

    /// The kernel does not have the feature (`EOPNOTSUPP`, `EPROTONOSUPPORT`).
    pub fn is_not_supported(&self) -> bool {
        self.is(libc::EOPNOTSUPP) || self.is(libc::EPROTONOSUPPORT)
    }

    /// It is unknown whether the transaction was executed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown)
    }

    /// The refusals of a refused transaction; empty for every other error.
    pub fn rejected_operations(&self) -> &[RejectedOperation] {
        match self {
            Error::Rejected(refusals) => refusals,
            _ => &[],
        }
    }

    fn is(&self, errno: i32) -> bool {
        self.errno() == Some(Errno(errno))
    }
}

/// All that the kernel refused of one transaction: it goes on after an error, so that each culprit is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedOperations {
    list: Vec<RejectedOperation>,
    complete: bool,
}

impl RejectedOperations {
    pub(crate) fn new(list: Vec<RejectedOperation>, complete: bool) -> Self {
        RejectedOperations { list, complete }
    }

    /// False when the kernel had more refusals than its queue could hold.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

impl std::ops::Deref for RejectedOperations {
    type Target = [RejectedOperation];

    fn deref(&self) -> &[RejectedOperation] {
        &self.list
    }
}

impl fmt::Display for RejectedOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.list[..] {
            [] => f.write_str("the transaction was refused"),
            [only] if self.complete => only.fmt(f),
            [first, rest @ ..] => {
                let more = if self.complete { "" } else { " at least" };
                write!(f, "{first} (and{more} {} more)", rest.len())
            }
        }
    }
}

/// One operation of a transaction that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedOperation {
    /// Why.
    pub errno: Errno,
    /// The index of the operation in its batch; `None` when the transaction as a whole was refused (at its commit, or
    /// for lack of permission).
    pub operation: Option<usize>,
    /// The operation in nft's words, e.g. `add element ip fairlead vips { 10.96.0.1 . tcp . 80 : goto pool-3 }`. When
    /// the operation holds many elements and the kernel did not say which one, without elements.
    pub label: String,
    /// The index of the element in the operation, when it holds elements and the kernel pointed at one.
    pub element: Option<usize>,
    /// The kernel's own explanation, if it gave one.
    pub message: Option<String>,
}

impl fmt::Display for RejectedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.label, self.errno, hint(&self.message))
    }
}

fn hint(message: &Option<String>) -> String {
    message.as_ref().map(|text| format!(" ({text})")).unwrap_or_default()
}

/// A number from `errno.h`, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::errno::Errno::from_raw(self.0) {
            nix::errno::Errno::UnknownErrno => write!(f, "errno {}", self.0),
            known => write!(f, "{} ({known:?})", known.desc()),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::errno::Errno::from_raw(self.0) {
            nix::errno::Errno::UnknownErrno => write!(f, "{}", self.0),
            known => write!(f, "{known:?}"),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(errno: nix::errno::Errno) -> Self {
        Errno(errno as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(errno: i32, label: &str) -> RejectedOperation {
        RejectedOperation { errno: Errno(errno), operation: Some(3), label: label.into(), element: None, message: None }
    }

    #[test]
    fn a_refused_transaction_names_the_first_and_counts_the_rest() {
        let error = Error::Rejected(RejectedOperations::new(
            vec![refusal(libc::ENOENT, "delete chain ip t a"), refusal(libc::EBUSY, "delete chain ip t b")],
            true,
        ));
        assert!(error.is_not_found() && !error.is_busy());
        assert_eq!(error.rejected_operations().len(), 2);
        assert_eq!(error.to_string(), "delete chain ip t a: No such file or directory (ENOENT) (and 1 more)");
    }

    #[test]
    fn an_errno_without_a_name_keeps_its_number() {
        assert_eq!(Errno(4103).to_string(), "errno 4103");
        assert_eq!(Errno(libc::ERESTART).to_string(), "Interrupted system call should be restarted (ERESTART)");
    }
}
