//! Certificates, keys and tokens in files: whether they can be read, and how long certificates are valid.

use std::{fs, path::Path, time::SystemTime};

use anyhow::{Context as _, Result, bail};
use x509_parser::pem::Pem;

use super::Finding;

/// A certificate that expires sooner should be renewed.
const RENEWAL_DAYS: i64 = 14;
const DAY_SECONDS: i64 = 86_400;

/// Checks the certificates of a file.
pub(super) fn certificate(flag: &'static str, path: &Path) -> Finding {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let file = format!("{flag} {}", path.display());
    match read(path, i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
        Ok(Validity::Valid { names, days }) if days >= RENEWAL_DAYS => {
            Finding::ok("certificate", format!("{file}: {names}, valid for {days} days"))
        }
        Ok(Validity::Valid { names, days }) => Finding::warn(
            "certificate",
            format!("{file}: {names}, valid for {days} days"),
            "when it has expired, frontend and backend reject each other, and this node receives no changes",
            "renew it; the file is read for each connection, so no restart is needed",
        ),
        Ok(Validity::Invalid { names, from, to }) => Finding::fail(
            "certificate",
            format!("{file}: {names}, valid only from {from} to {to}"),
            "TLS peers reject it",
            "renew the certificate, or correct the clock of this machine",
        ),
        Err(error) => Finding::fail(
            "certificate",
            format!("{file}: {error:#}"),
            "without it no https connection is possible",
            "write a PEM certificate that this user can read to that file",
        ),
    }
}

/// Checks that a key or a token can be read. Its content is never printed.
pub(super) fn secret(flag: &'static str, path: &Path) -> Finding {
    let file = format!("{flag} {}", path.display());
    let (what, fix) = match fs::read(path) {
        Ok(bytes) if !bytes.is_empty() => return Finding::ok("certificate", format!("{file}: readable")),
        Ok(_) => (format!("{file} is empty"), "write the key or token to that file"),
        Err(error) => {
            (format!("{file}: {error}"), "write the key or token to that file, and allow this user to read it")
        }
    };
    Finding::fail("certificate", what, "without it the frontend cannot authenticate this node", fix)
}

/// Of the certificate in a file that expires first.
#[derive(Debug)]
enum Validity {
    Valid { names: String, days: i64 },
    Invalid { names: String, from: String, to: String },
}

/// `now`: in seconds since 1970.
fn read(path: &Path, now: i64) -> Result<Validity> {
    let bytes = fs::read(path).context("cannot read the file")?;
    let mut first = None::<(i64, Validity)>;
    for pem in Pem::iter_from_buffer(&bytes) {
        let pem = pem.context("not a PEM file")?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let certificate = pem.parse_x509().context("no certificate in the file")?;
        let (from, to) = (certificate.validity().not_before, certificate.validity().not_after);
        let names = certificate.subject().to_string();
        let names = if names.is_empty() { "no name".to_owned() } else { names };
        let validity = if (from.timestamp()..=to.timestamp()).contains(&now) {
            Validity::Valid { names, days: (to.timestamp() - now) / DAY_SECONDS }
        } else {
            Validity::Invalid { names, from: from.to_string(), to: to.to_string() }
        };
        if first.as_ref().is_none_or(|(end, _)| to.timestamp() < *end) {
            first = Some((to.timestamp(), validity));
        }
    }
    match first {
        Some((_, validity)) => Ok(validity),
        None => bail!("no certificate in the file"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::commands::check::Level;

    #[test]
    fn certificate_that_expires_first_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificates.pem");
        let pem = |year| {
            let mut params = CertificateParams::new(vec!["frontend.example".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        fs::write(&path, pem(2900)).unwrap();
        assert_eq!(certificate("--tls-ca", &path).level, Level::Ok);
        fs::write(&path, pem(2900) + &pem(2021)).unwrap();
        let expired = certificate("--tls-ca", &path);
        assert_eq!(expired.level, Level::Fail);
        assert!(expired.what.contains("2021"), "{}", expired.what);
        let end = 1_609_459_200; // 2021-01-01
        assert!(matches!(read(&path, end - 3 * DAY_SECONDS), Ok(Validity::Valid { days: 3, .. })));
    }

    #[test]
    fn unreadable_files_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(certificate("--tls-ca", &path).level, Level::Fail);
        assert_eq!(secret("--tls-key", &path).level, Level::Fail);
        fs::write(&path, "content").unwrap();
        assert_eq!(certificate("--tls-ca", &path).level, Level::Fail);
        let key = secret("--tls-key", &path);
        assert_eq!(key.level, Level::Ok);
        assert!(!key.what.contains("content"));
    }
}
