//! Errors of connections and calls, with all their causes, and what an operator can do about them, in terms of flags.

use std::{
    error::Error,
    fmt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use proto::{InvalidMessage, PROTOCOL_VERSION};
use runtime::{
    certificate,
    connect_advice::{ConnectSettings, REJECTED, causes, connect_advice},
    failure::chain,
};
use tonic::{Code, Status};

/// Why a call or a stream failed.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The status of the call. Its own text omits the cause.
    Status(Status),
    Invalid(InvalidMessage),
}

/// The flags of a backend.
const SETTINGS: ConnectSettings<'_> = ConnectSettings {
    server: "the frontend",
    address: "--frontend",
    ca: "--tls-ca",
    server_name: "--frontend-name",
    client_certificate: "--tls-cert",
};

/// The advice for an operator about an error, if there is one.
pub(super) fn advice(error: &(dyn Error + 'static)) -> Option<String> {
    let code = causes(error).find_map(|cause| match cause.downcast_ref::<StreamError>()? {
        StreamError::Status(status) => Some(status.code()),
        StreamError::Invalid(_) => None,
    });

    let advice = match code {
        Some(Code::Unauthenticated) if causes(error).any(|cause| cause.to_string().contains("no credential")) => {
            "the frontend needs a client certificate (--tls-cert, --tls-key) or a token (--token-file)"
        }
        Some(Code::PermissionDenied) => {
            "a certificate or token is valid for one node: check that --node-name (--node) is that node, and that \
             --tls-cert or --token-file are not another node's"
        }
        Some(Code::FailedPrecondition) => {
            return Some(format!(
                "this backend supports protocol version {PROTOCOL_VERSION}: upgrade it or the frontend"
            ));
        }
        _ if causes(error).any(|cause| cause.to_string().starts_with("HTTP/2 was not negotiated")) => {
            "the server at that address is not a frontend: check the host and the port in --frontend"
        }
        _ => return connect_advice(error, &SETTINGS),
    };
    Some(advice.to_owned())
}

/// The own certificate of a connection, for errors.
#[derive(Clone, Debug)]
pub(super) struct OwnCertificate {
    path: PathBuf,
    /// Why frontends reject it, if that is known.
    flaw: Option<String>,
}

impl OwnCertificate {
    pub(super) fn new(path: &Path, pem: &[u8]) -> Self {
        Self { path: path.to_owned(), flaw: certificate::flaw(pem, SystemTime::now()) }
    }
}

/// The error of a call. With TLS 1.3 a frontend verifies the certificate of a client when the client regards the
/// connection as open. Its request may then fail before the client has received the reason, which the client's own
/// certificate tells as well.
pub(super) fn explained_call(status: Status, own: Option<&OwnCertificate>) -> anyhow::Error {
    let error = StreamError::Status(status);
    if error.sent_code().is_some() {
        return explained(&error);
    }

    let advice = connect_advice(&error, &SETTINGS);
    let is_rejection = advice.as_ref().is_none_or(|advice| advice.contains(REJECTED));

    match own {
        Some(OwnCertificate { path, flaw: Some(flaw) }) if is_rejection => {
            anyhow::anyhow!("the frontend {REJECTED} (--tls-cert) {}: {flaw}", path.display())
        }
        Some(OwnCertificate { path, flaw: None }) if advice.is_none() => anyhow::anyhow!(
            "{} (if that repeats, the frontend {REJECTED} (--tls-cert) {}: use one that a CA in its --tls-client-ca \
             has signed)",
            chain(&error),
            path.display()
        ),
        _ => explained(&error),
    }
}

/// The error with all its causes, and with advice if there is one.
pub(super) fn explained(error: &(dyn Error + 'static)) -> anyhow::Error {
    let causes = chain(error);
    match advice(error) {
        Some(advice) => anyhow::anyhow!("{causes} ({advice})"),
        None => anyhow::anyhow!(causes),
    }
}

impl StreamError {
    /// The status that the frontend sent; `None` if it was made from a failure of the connection, or a message is
    /// invalid.
    fn sent_code(&self) -> Option<Code> {
        match self {
            Self::Status(status) if status.source().is_none() => Some(status.code()),
            Self::Status(_) | Self::Invalid(_) => None,
        }
    }

    /// Whether the frontend ended the stream because it shuts down, or the stream is too old.
    pub(super) fn is_orderly(&self) -> bool {
        self.sent_code() == Some(Code::Unavailable)
    }

    /// Whether the frontend would answer the same to the next call.
    pub(super) fn is_rejection(&self) -> bool {
        self.sent_code().is_some_and(|code| !matches!(code, Code::Ok | Code::Unavailable | Code::Cancelled))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_stream_is_orderly_a_rejection_or_a_failure() {
        let sent = |code| StreamError::Status(Status::new(code, "sent by the frontend"));
        assert!(sent(Code::Unavailable).is_orderly() && !sent(Code::Unavailable).is_rejection());
        for code in [Code::PermissionDenied, Code::Unauthenticated, Code::InvalidArgument, Code::ResourceExhausted] {
            assert!(sent(code).is_rejection() && !sent(code).is_orderly(), "{code:?}");
        }
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let broken = StreamError::Status(Status::from_error(Box::new(reset)));
        assert!(!broken.is_orderly() && !broken.is_rejection(), "{broken:?}");
    }
}
