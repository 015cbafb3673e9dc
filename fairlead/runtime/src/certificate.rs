//! When certificates are valid, and what to do if the local clock or a certificate is wrong.

use std::{
    error::Error,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use x509_parser::{certificate::X509Certificate, pem::Pem, x509::X509Version};

use crate::{
    connect_advice::{causes, rfc3339},
    failure::chain,
};

/// What to do about a certificate of X.509 version 1, which TLS does not accept.
pub(crate) const OLD_VERSION: &str = "is of X.509 version 1, which TLS does not accept: issue one of version 3, which \
                                     has extensions such as subjectAltName";

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

/// The validity of all certificates of a PEM file, in order.
///
/// # Errors
/// If the file has no certificate, or one that cannot be parsed.
pub fn validities(pem: &[u8]) -> Result<Vec<Validity>> {
    let mut validities = Vec::new();
    for pem in Pem::iter_from_buffer(pem) {
        let pem = pem.context("invalid PEM")?;
        if pem.label == "CERTIFICATE" {
            let certificate = pem.parse_x509().context("invalid certificate")?;
            validities.push(Validity::of(&certificate));
        }
    }
    ensure!(!validities.is_empty(), "the file contains no PEM certificate");
    Ok(validities)
}

/// Why peers reject the first certificate of a PEM file at this local time, and what to do. `None` if that cannot be
/// told from the certificate alone.
#[must_use]
pub fn flaw(pem: &[u8], now: SystemTime) -> Option<String> {
    let pem = Pem::iter_from_buffer(pem).filter_map(Result::ok).find(|pem| pem.label == "CERTIFICATE")?;
    let certificate = pem.parse_x509().ok()?;
    if certificate.version() != X509Version::V3 {
        return Some(format!("the certificate {OLD_VERSION}"));
    }
    Validity::of(&certificate).invalid_at(now)
}

/// Why TLS cannot use a certificate with a private key, and what to do. `certificate` and `key` name both.
#[must_use]
pub fn unusable_pair(error: &(dyn Error + 'static), certificate: &str, key: &str) -> String {
    let cause = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InconsistentKeys(_)) => {
            format!("{key} is not the private key of {certificate}: use the two files that were issued together")
        }
        Some(rustls::Error::InvalidCertificate(error)) if is_old_version(error) => {
            format!("{certificate} {OLD_VERSION}")
        }
        _ => format!("{certificate} and {key}: {}", chain(error)),
    }
}

/// The verifier names the version only in the text of its error.
pub(crate) fn is_old_version(error: &rustls::CertificateError) -> bool {
    format!("{error:?}").contains("UnsupportedCertVersion")
}

impl Validity {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() }
    }

    /// Why the certificate is not valid at this local time, and what to do; `None` if it is valid.
    #[must_use]
    pub fn invalid_at(&self, now: SystemTime) -> Option<String> {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let local = rfc3339(now);

        if seconds < self.not_before {
            return Some(format!(
                "the certificate is valid from {}, and the local time is {local}, {} earlier: set the clock of this \
                 host, or that of the host that issued the certificate",
                time(self.not_before),
                difference(self.not_before - seconds)
            ));
        }
        if seconds > self.not_after {
            return Some(format!(
                "the certificate expired at {}, and the local time is {local}, {} later: renew the certificate, or set \
                 the clock of this host if it is wrong",
                time(self.not_after),
                difference(seconds - self.not_after)
            ));
        }
        None
    }
}

fn time(seconds: i64) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// A positive difference of times, in the largest unit that fits.
fn difference(seconds: i64) -> String {
    let (count, unit) = match seconds {
        86_400.. => (seconds / 86_400, "day"),
        3_600.. => (seconds / 3_600, "hour"),
        60.. => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_clock_that_is_a_day_off_is_named() {
        let validity = Validity { not_before: 10 * DAY as i64, not_after: 20 * DAY as i64 };
        let at = |seconds| validity.invalid_at(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(10 * DAY), None);
        assert_eq!(at(20 * DAY), None);
        let early = at(9 * DAY).unwrap();
        assert!(
            early.starts_with(
                "the certificate is valid from 1970-01-11T00:00:00Z, and the local time is 1970-01-10T00:00:00Z, 1 day \
                 earlier: set the clock"
            ),
            "{early}"
        );
        let late = at(21 * DAY).unwrap();
        assert!(
            late.starts_with(
                "the certificate expired at 1970-01-21T00:00:00Z, and the local time is 1970-01-22T00:00:00Z, 1 day \
                 later: renew"
            ),
            "{late}"
        );
        assert!(at(10 * DAY - 90).unwrap().contains("1 minute earlier"));
    }

    /// As `openssl x509 -req` makes it without extensions.
    const VERSION_1: &str = include_str!("version-1.crt");

    #[test]
    fn certificate_of_version_1_is_named() {
        let flaw = flaw(VERSION_1.as_bytes(), SystemTime::now()).unwrap();
        assert!(flaw.starts_with("the certificate is of X.509 version 1, which TLS does not accept: issue"), "{flaw}");
    }

    #[test]
    fn files_without_certificates_are_rejected() {
        validities(b"").unwrap_err();
        validities(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap_err();
    }
}
