//! What an operator can do about a connection that cannot be established, where the error is a definite fact.
//!
//! Pure functions over an error and its sources.

use std::{
    error::Error,
    io, iter,
    time::{Duration, SystemTime},
};

use jiff::{Timestamp, Unit};
use rustls::{AlertDescription, CertificateError, pki_types::UnixTime};

use crate::certificate::{OLD_VERSION, is_old_version};

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

/// What a server does with a client certificate that it does not accept, in all advice about that.
pub const REJECTED: &str = "rejects the client certificate";

/// What a server answers to a client certificate that it does not accept.
const REJECTIONS: [AlertDescription; 7] = [
    AlertDescription::CertificateExpired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

/// What to do about an error that kept a client from connecting, in one line. `None` for any other error.
#[must_use]
pub fn connect_advice(error: &(dyn Error + 'static), settings: &ConnectSettings<'_>) -> Option<String> {
    // The innermost cause is the most specific one.
    causes(error).filter_map(|cause| of_cause(cause, settings)).last()
}

/// The error and all its causes, outermost first. This includes the error that an `io::Error` wraps, which
/// [`Error::source`] skips.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped as _),
            None => error.source(),
        }
    })
}

fn of_cause(cause: &(dyn Error + 'static), settings: &ConnectSettings<'_>) -> Option<String> {
    let ConnectSettings { server, address, client_certificate, .. } = settings;
    let text = cause.to_string();
    if let Some(rustls::Error::InvalidCertificate(error)) = cause.downcast_ref() {
        return of_certificate(error, settings);
    }

    // h2 keeps only the text of an alert that arrives after the handshake.
    let is_alert = |alert: &AlertDescription| rustls::Error::AlertReceived(*alert).to_string() == text;
    if is_alert(&AlertDescription::CertificateRequired) {
        return Some(format!("{server} requires a client certificate: configure one as {client_certificate}"));
    }
    if REJECTIONS.iter().any(is_alert) {
        return Some(format!(
            "{server} {REJECTED} ({client_certificate}): use one that is valid, and signed by a CA \
             that {server} trusts"
        ));
    }

    if let Some(rustls::Error::InvalidMessage(_)) = cause.downcast_ref() {
        return Some(format!("that port does not speak TLS: check the scheme and the port in {address}"));
    }
    if text == "dns error" || text.starts_with("failed to lookup address information") {
        return Some(format!(
            "the host name does not resolve: check it in {address}, and the DNS configuration of this host"
        ));
    }
    if cause.downcast_ref().map(io::Error::kind) == Some(io::ErrorKind::ConnectionRefused) {
        return Some(format!(
            "nothing listens on that port: check that {server} is running, and the host and port in {address}"
        ));
    }
    None
}

fn of_certificate(error: &CertificateError, settings: &ConnectSettings<'_>) -> Option<String> {
    let ConnectSettings { server, address, ca, server_name, .. } = settings;
    let utc = |time: &UnixTime| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    Some(match error {
        // A signature is wrong when another CA of the same name has signed: one that was created anew.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "no CA in {ca} has signed the certificate of {server}: configure the CA certificate that has (the CA may \
             have been replaced)"
        ),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the certificate of {server} expired at {}, and the local time is {}: renew the certificate, or set the \
             clock of this host if it is wrong",
            utc(not_after),
            utc(time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the certificate of {server} is not valid before {}, and the local time is {}: compare the clocks of this \
             host and of the host that issued the certificate",
            utc(not_before),
            utc(time)
        ),
        CertificateError::NotValidForNameContext { expected, .. } => format!(
            "the certificate of {server} is not for {0}: use one of its names in {address} or as {server_name}, or \
             issue a certificate that includes {0}",
            expected.to_str()
        ),
        error if is_old_version(error) => format!("the certificate of {server} {OLD_VERSION}"),
        _ => return None,
    })
}

/// UTC, to the second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).and_then(|time| time.round(Unit::Second));
    time.map_or_else(|_| "out of range".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: ConnectSettings<'_> = ConnectSettings {
        server: "the API server",
        address: "clusters[].cluster.server",
        ca: "certificate-authority",
        server_name: "tls-server-name",
        client_certificate: "client-certificate",
    };

    /// An error of another library around it.
    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Outer(#[source] io::Error);

    fn advice(error: impl Into<Box<dyn Error + Send + Sync>>) -> String {
        connect_advice(&Outer(io::Error::other(error)), &SETTINGS).unwrap_or_default()
    }

    /// Real handshakes are tested where connections are made.
    #[test]
    fn each_fact_has_its_advice() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let certificate = |error| advice(rustls::Error::InvalidCertificate(error));
        let replaced = certificate(CertificateError::BadSignature);
        assert!(replaced.contains("no CA in certificate-authority has signed"), "{replaced}");
        let expired = certificate(CertificateError::ExpiredContext { time: at(86_400), not_after: at(60) });
        assert!(expired.contains("expired at 1970-01-01T00:01:00Z, and the local time is 1970-01-02T00:00:00Z"));
        let future = certificate(CertificateError::NotValidYetContext { time: at(0), not_before: at(60) });
        assert!(future.contains("not valid before 1970-01-01T00:01:00Z"), "{future}");
        let expected = "api.example".try_into().unwrap();
        let name = certificate(CertificateError::NotValidForNameContext { expected, presented: Vec::new() });
        assert!(name.contains("is not for api.example") && name.contains("tls-server-name"), "{name}");
        let refused = advice(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert!(refused.contains("nothing listens") && refused.contains("clusters[].cluster.server"), "{refused}");
        assert_eq!(advice("disk full"), "");
    }

    #[test]
    fn alert_about_the_client_certificate_is_recognized_from_its_text() {
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        for error in [advice(alert.to_string()), advice(alert)] {
            assert!(error.contains("rejects the client certificate (client-certificate)"), "{error}");
        }
        let required = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        for error in [advice(required.to_string()), advice(required)] {
            assert!(error.contains("requires a client certificate: configure one as client-certificate"), "{error}");
        }
    }
}
