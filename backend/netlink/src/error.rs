//! Errors of netlink calls, with the kernel's errno.

use std::fmt;

use nix::libc;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a netlink call; the `is_*` methods classify it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call on the socket itself failed.
    #[error("{call}: {errno}{}", permission_advice(*.errno))]
    Socket {
        /// The purpose of the call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The kernel rejected a request outside a transaction, such as a dump.
    #[error("{request}: {errno}{}{}", hint(.message), permission_advice(*.errno))]
    Request {
        /// The request as the command line tool would write it, e.g. `list map ip fairlead vips`.
        request: String,
        /// The kernel's reason.
        errno: Errno,
        /// The message of the kernel's extended acknowledgement.
        message: Option<String>,
    },
    /// The kernel rejected the transaction and applied nothing of it.
    #[error("{}", rejected_text(.operations, *.is_complete))]
    Rejected {
        /// The operations that the kernel rejected. It continues after an error and reports each of them.
        operations: Vec<RejectedOperation>,
        /// False if the kernel rejected more operations than the receive buffer could hold.
        is_complete: bool,
    },
    /// The receive buffer was full (`ENOBUFS`), so the kernel dropped replies. It may have applied the transaction:
    /// dump, or reconcile.
    #[error("the kernel dropped replies, so the transaction may or may not be applied")]
    OutcomeUnknown,
    /// The transaction is larger than the socket's send buffer, and raising that takes `CAP_NET_ADMIN` in the initial
    /// user namespace. Split the transaction.
    #[error("a transaction of {bytes} bytes is larger than the socket's send buffer")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
    },
    /// Another process changed the ruleset during each attempt at a dump (`NLM_F_DUMP_INTR`).
    #[error("{request}: the ruleset changed during each of {attempts} attempts")]
    Interrupted {
        /// The request as `nft` would write it.
        request: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// `rtnetlink` failed for another reason than a rejection by the kernel.
    #[error("{request}")]
    Rtnetlink {
        /// The request as `ip` would write it.
        request: String,
        /// The reason.
        source: rtnetlink::Error,
    },
    /// A reply of the kernel does not follow the protocol.
    #[error("malformed reply from the kernel: {0}")]
    Malformed(&'static str),
}

impl Error {
    /// The kernel's errno; of a rejected transaction, that of the first rejected operation.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Socket { errno, .. } | Error::Request { errno, .. } => Some(*errno),
            Error::Rejected { operations, .. } => operations.first().map(|operation| operation.errno),
            Error::OutcomeUnknown => Some(Errno(libc::ENOBUFS)),
            Error::TooLarge { .. } => Some(Errno(libc::EMSGSIZE)),
            Error::Interrupted { .. } => Some(Errno(libc::EINTR)),
            Error::Rtnetlink { .. } | Error::Malformed(_) => None,
        }
    }

    /// The object does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.is(libc::ENOENT)
    }

    /// Another process changed the ruleset at the same time (`EINTR`, `ERESTART`, `EAGAIN`): retry.
    pub fn is_interrupted(&self) -> bool {
        self.is(libc::EINTR) || self.is(libc::ERESTART) || self.is(libc::EAGAIN)
    }

    /// The process lacks `CAP_NET_ADMIN` (`EPERM`, `EACCES`), or the table belongs to another process.
    pub fn is_not_permitted(&self) -> bool {
        self.is(libc::EPERM) || self.is(libc::EACCES)
    }

    /// The kernel does not understand the request (`EINVAL`).
    pub fn is_invalid(&self) -> bool {
        self.is(libc::EINVAL)
    }

    /// The kernel does not support the request (`EOPNOTSUPP`).
    pub fn is_unsupported(&self) -> bool {
        self.is(libc::EOPNOTSUPP)
    }

    fn is(&self, errno: i32) -> bool {
        self.errno() == Some(Errno(errno))
    }
}

/// One of several requests that the kernel rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedRequest {
    /// The index of the command, entry or address among those of the call.
    pub index: usize,
    /// The kernel's reason; numbers from 4096 on are those of ipset.
    pub errno: Errno,
}

/// An operation of a transaction that the kernel rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedOperation {
    /// The kernel's reason.
    pub errno: Errno,
    /// The index of the operation in its batch; `None` if the kernel rejected the whole transaction (at its commit, or
    /// for lack of permission).
    pub operation: Option<usize>,
    /// The operation as `nft` would write it, e.g. `add element ip fairlead vips { 10.96.0.1 . tcp . 80 : goto pool-3
    /// }`. Without elements if the operation has several and the kernel did not report which one it rejected.
    pub label: String,
    /// The index of the rejected element in the operation, if the kernel reported one.
    pub element: Option<usize>,
    /// The kernel's own explanation, if it gave one.
    pub message: Option<String>,
}

impl fmt::Display for RejectedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.label, self.errno, hint(&self.message))
    }
}

fn rejected_text(operations: &[RejectedOperation], is_complete: bool) -> String {
    match operations {
        [] => "the transaction was rejected".to_owned(),
        [only] if is_complete => only.to_string(),
        [first, rest @ ..] => {
            let more = if is_complete { "" } else { " at least" };
            format!("{first} (and{more} {} more)", rest.len())
        }
    }
}

/// Advice about a call that the kernel permits only with the capability. Not for a transaction, because the kernel
/// also rejects it with `EPERM` if the table belongs to another process.
fn permission_advice(errno: Errno) -> &'static str {
    if errno == Errno(libc::EPERM) { "; run as root (CAP_NET_ADMIN)" } else { "" }
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

    fn rejected(errno: i32, label: &str) -> RejectedOperation {
        RejectedOperation { errno: Errno(errno), operation: Some(3), label: label.into(), element: None, message: None }
    }

    #[test]
    fn a_rejected_transaction_displays_its_first_operation_and_the_number_of_others() {
        let operations =
            vec![rejected(libc::ENOENT, "delete chain ip t a"), rejected(libc::EBUSY, "delete chain ip t b")];
        let error = Error::Rejected { operations, is_complete: true };
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "delete chain ip t a: No such file or directory (ENOENT) (and 1 more)");
    }

    #[test]
    fn call_that_is_not_permitted_says_to_run_as_root() {
        let error = |errno| Error::Socket { call: "join a netlink group", errno: Errno(errno) }.to_string();
        let expected = "join a netlink group: Operation not permitted (EPERM); run as root (CAP_NET_ADMIN)";
        assert_eq!(error(libc::EPERM), expected);
        assert!(!error(libc::ENOMEM).contains("root"));
    }

    #[test]
    fn an_unnamed_errno_is_displayed_as_its_number() {
        assert_eq!(Errno(4103).to_string(), "errno 4103");
        assert_eq!(Errno(libc::ERESTART).to_string(), "Interrupted system call should be restarted (ERESTART)");
    }
}
