//! Why a client cannot connect to a server, and what the operator can do about it.
//!
//! Pure functions over an error and its sources.
//!
//! ```text
//! error of kube, tonic, hyper ──causes──▶ io::Error, rustls::Error ──▶ ConnectFailure ──advice(settings)──▶ one line
//! ```

use std::{
    error::Error,
    io, iter,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, Unit};
use rustls::{AlertDescription, CertificateError, pki_types::UnixTime};

/// How the advice refers to the server and to the settings that may be wrong: by flags, or by fields of a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSettings<'a> {
    /// The server: `the API server`.
    pub server: &'a str,
    /// The setting with the server's address.
    pub address: &'a str,
    /// The setting with the CA certificates that the server's certificate is verified with.
    pub ca: &'a str,
    /// The setting that overrides the name that the server's certificate must contain.
    pub server_name: &'a str,
    /// The setting with the client's own certificate.
    pub client_certificate: &'a str,
}

/// Why a connection cannot be established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The host answers that nothing listens on the port.
    Refused,
    /// There is no route to the host.
    Unreachable,
    /// No answer within the timeout.
    TimedOut,
    /// The host name has no address.
    UnresolvedName,
    /// The server ended the connection during the TLS handshake.
    HandshakeAborted,
    /// The server does not speak TLS.
    NotTls,
    /// No configured CA has signed the server's certificate.
    UnknownIssuer,
    /// The server uses a CA certificate as its own, which rustls rejects.
    CaUsedAsServerCertificate,
    /// The server's certificate has expired.
    Expired {
        /// Its `notAfter`, if known.
        not_after: Option<SystemTime>,
    },
    /// The server's certificate is not valid yet.
    NotYetValid {
        /// Its `notBefore`, if known.
        not_before: Option<SystemTime>,
    },
    /// The server's certificate does not contain the name or address that the client connects to.
    WrongName {
        /// The name or address.
        expected: Option<String>,
        /// What the certificate contains instead.
        presented: Vec<String>,
    },
    /// The server's certificate must not be used by a server (extended key usage).
    WrongPurpose,
    /// The server requires a client certificate.
    ClientCertificateRequired,
    /// The server says that the client's certificate has expired.
    ClientCertificateExpired,
    /// The server does not accept the client's certificate.
    ClientCertificateRejected,
}

/// What to do about an error that kept a client from connecting. `None` for any other error.
#[must_use]
pub fn connect_advice(error: &(dyn Error + 'static), settings: &ConnectSettings<'_>) -> Option<String> {
    Some(ConnectFailure::of(error)?.advice(settings, SystemTime::now()))
}

/// The error and all its causes, outermost first. This includes the error that an `io::Error` wraps, which
/// [`Error::source`] skips.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as _).or_else(|| error.source())
    })
}

/// What to do about a client certificate that is not valid at the local time. `None` for any other error.
#[must_use]
pub fn client_clock_advice(error: &(dyn Error + 'static)) -> Option<String> {
    let failure = ConnectFailure::of(error)?;
    let settings =
        ConnectSettings { server: "the client", address: "", ca: "", server_name: "", client_certificate: "" };
    let is_of_clock = matches!(failure, ConnectFailure::Expired { .. } | ConnectFailure::NotYetValid { .. });
    is_of_clock.then(|| failure.advice(&settings, SystemTime::now()))
}

// === impl ConnectFailure ===

impl ConnectFailure {
    /// Finds the failure among the causes of an error.
    #[must_use]
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        // The innermost cause is the most specific one.
        causes(error).filter_map(Self::of_cause).last()
    }

    fn of_cause(cause: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Self::of_tls(error);
        }
        let text = cause.to_string();
        if text == "dns error" || text.starts_with("failed to lookup address information") {
            return Some(Self::UnresolvedName);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return Self::of_io(error.kind());
        }
        // h2 keeps only the text of an alert that arrives after the handshake.
        let alert = |alert: &AlertDescription| rustls::Error::AlertReceived(*alert).to_string() == text;
        CLIENT_CERTIFICATE_ALERTS.into_iter().find(alert).and_then(Self::of_alert)
    }

    fn of_io(kind: io::ErrorKind) -> Option<Self> {
        Some(match kind {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => return None,
        })
    }

    fn of_tls(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert),
            rustls::Error::InvalidMessage(_) => Some(Self::NotTls),
            _ => None,
        }
    }

    fn of_certificate(error: &CertificateError) -> Option<Self> {
        Some(match error {
            // A signature is wrong when another CA of the same name has signed: one that was created anew.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::Expired => Self::Expired { not_after: None },
            CertificateError::ExpiredContext { not_after, .. } => {
                Self::Expired { not_after: Some(system_time(*not_after)) }
            }
            CertificateError::NotValidYet => Self::NotYetValid { not_before: None },
            CertificateError::NotValidYetContext { not_before, .. } => {
                Self::NotYetValid { not_before: Some(system_time(*not_before)) }
            }
            CertificateError::NotValidForName => Self::WrongName { expected: None, presented: Vec::new() },
            CertificateError::NotValidForNameContext { expected, presented } => {
                let presented = presented.iter().map(|name| readable_name(name)).collect();
                Self::WrongName { expected: Some(expected.to_str().into_owned()), presented }
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => Self::WrongPurpose,
            // rustls has no variant for this error of webpki, which it does not export.
            CertificateError::Other(error) if error.to_string() == "CaUsedAsEndEntity" => {
                Self::CaUsedAsServerCertificate
            }
            _ => return None,
        })
    }

    fn of_alert(alert: AlertDescription) -> Option<Self> {
        Some(match alert {
            AlertDescription::CertificateRequired => Self::ClientCertificateRequired,
            AlertDescription::CertificateExpired => Self::ClientCertificateExpired,
            alert if CLIENT_CERTIFICATE_ALERTS.contains(&alert) => Self::ClientCertificateRejected,
            AlertDescription::HandshakeFailure => Self::HandshakeAborted,
            _ => return None,
        })
    }

    /// What to do about it, in one line. `now` is the local time.
    #[must_use]
    pub fn advice(&self, settings: &ConnectSettings<'_>, now: SystemTime) -> String {
        let ConnectSettings { server, address, ca, server_name, client_certificate } = settings;
        let now = rfc3339(now);
        match self {
            Self::Refused => format!(
                "nothing listens on that port: check that {server} is running, and the host and port in {address}"
            ),
            Self::Unreachable => format!(
                "there is no route from this host to {server}: check the address in {address}, and the routes of this \
                 host"
            ),
            Self::TimedOut => format!(
                "{server} does not answer, or its host name does not resolve in time: check the address in {address}, \
                 the DNS configuration of this host, and firewalls between this host and {server}"
            ),
            Self::UnresolvedName => {
                format!("the host name does not resolve: check it in {address}, and the DNS configuration of this host")
            }
            Self::HandshakeAborted => {
                format!("{server} aborted the TLS handshake: check that {address} is its address, not that of a proxy")
            }
            Self::NotTls => format!("that port does not speak TLS: check the scheme and the port in {address}"),
            Self::UnknownIssuer => format!(
                "no CA in {ca} has signed the certificate of {server}: configure the CA certificate that has (the CA \
                 may have been replaced)"
            ),
            Self::CaUsedAsServerCertificate => format!(
                "{server} uses a CA certificate as its server certificate, which is rejected: issue it a certificate \
                 that is signed by that CA and is no CA itself, and configure the CA certificate as {ca}"
            ),
            Self::Expired { not_after } => format!(
                "the certificate of {server} expired{}, and the local time is {now}: renew the certificate, or set \
                 the clock of this host if it is wrong",
                at(*not_after, " at")
            ),
            Self::NotYetValid { not_before } => format!(
                "the certificate of {server} is not valid{}, and the local time is {now}: compare the clocks of this \
                 host and of the host that issued the certificate",
                at(*not_before, " before")
            ),
            Self::WrongName { expected, presented } => {
                let expected = expected.as_deref().unwrap_or("the name that is connected to");
                let presented = match &presented[..] {
                    [] => "no name at all".to_owned(),
                    names => names.join(", "),
                };
                format!(
                    "the certificate of {server} is for {presented}, not for {expected}: use one of its names in \
                     {address} or as {server_name}, or issue a certificate that includes {expected}"
                )
            }
            Self::WrongPurpose => format!(
                "the certificate of {server} is not a server certificate: issue one with extended key usage serverAuth"
            ),
            Self::ClientCertificateRequired => {
                format!("{server} requires a client certificate: configure one as {client_certificate}")
            }
            Self::ClientCertificateExpired => format!(
                "{server} reports that the client certificate ({client_certificate}) has expired, and the local time \
                 is {now}: renew it, or set the clock that is wrong"
            ),
            Self::ClientCertificateRejected => format!(
                "{server} rejects the client certificate ({client_certificate}): use one that is signed by a CA that \
                 {server} trusts"
            ),
        }
    }
}

/// What a server answers to a client certificate that it does not accept.
const CLIENT_CERTIFICATE_ALERTS: [AlertDescription; 8] = [
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateExpired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

fn system_time(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

fn at(time: Option<SystemTime>, preposition: &str) -> String {
    time.map(|time| format!("{preposition} {}", rfc3339(time))).unwrap_or_default()
}

/// UTC, to the second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).and_then(|time| time.round(Unit::Second));
    time.map_or_else(|_| "out of range".to_owned(), |time| time.to_string())
}

/// rustls writes names of a certificate as `DnsName("a.example")` and `IpAddress(10.0.0.1)`.
fn readable_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests;
