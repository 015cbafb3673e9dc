//! Certificates and tokens in files: can they be read, for whom are they, and for how long.

use std::{fs, path::Path, time::SystemTime};

use anyhow::{Context as _, Result, bail};
use x509_parser::pem::Pem;

use super::Finding;

/// A certificate that ends sooner is to be renewed.
const SOON_DAYS: i64 = 14;
const DAY_SECONDS: i64 = 86_400;

/// The certificates of a file.
pub(super) fn certificate(flag: &'static str, path: &Path) -> Finding {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match read(path, i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
        Ok(Validity::For { names, days }) if days >= SOON_DAYS => {
            Finding::ok("certificate", format!("{flag} {}: {names}, valid for {days} days", path.display()))
        }
        Ok(Validity::For { names, days }) => Finding::warn(
            "certificate",
            format!("{flag} {}: {names}, valid for {days} days", path.display()),
            "after that the frontend and this node do not believe each other, and changes stop",
            "renew it: the file is read for each connection, nothing has to be restarted",
        ),
        Ok(Validity::NotNow { names, from, to }) => Finding::fail(
            "certificate",
            format!("{flag} {}: {names}, valid only from {from} to {to}", path.display()),
            "TLS peers reject it now",
            "renew it, or set the clock right",
        ),
        Err(error) => Finding::fail(
            "certificate",
            format!("{flag} {}: {error:#}", path.display()),
            "no connection over https is possible with it",
            "put a certificate in PEM there that this user may read",
        ),
    }
}

/// Something that must be readable: a key or a token. Never shown.
pub(super) fn secret(flag: &'static str, path: &Path) -> Finding {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Finding::fail(
            "certificate",
            format!("{flag} {} is empty", path.display()),
            "the frontend does not know who this is",
            "put it there again",
        ),
        Ok(_) => Finding::ok("certificate", format!("{flag} {} can be read", path.display())),
        Err(error) => Finding::fail(
            "certificate",
            format!("{flag} {}: {error}", path.display()),
            "the frontend does not know who this is",
            "put it there, or let this user read it",
        ),
    }
}

/// Of the certificate in a file that ends first.
#[derive(Debug)]
enum Validity {
    For { names: String, days: i64 },
    NotNow { names: String, from: String, to: String },
}

/// `now`: in seconds since 1970.
fn read(path: &Path, now: i64) -> Result<Validity> {
    let bytes = fs::read(path).context("it cannot be read")?;
    let mut found = None::<(i64, Validity)>;
    for pem in Pem::iter_from_buffer(&bytes) {
        let pem = pem.context("it is no PEM")?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let certificate = pem.parse_x509().context("there is no certificate in it")?;
        let (from, to) = (certificate.validity().not_before, certificate.validity().not_after);
        let names = certificate.subject().to_string();
        let names = if names.is_empty() { "no name".to_owned() } else { names };
        let validity = if (from.timestamp()..=to.timestamp()).contains(&now) {
            Validity::For { names, days: (to.timestamp() - now) / DAY_SECONDS }
        } else {
            Validity::NotNow { names, from: from.to_string(), to: to.to_string() }
        };
        if found.as_ref().is_none_or(|(end, _)| to.timestamp() < *end) {
            found = Some((to.timestamp(), validity));
        }
    }
    match found {
        Some((_, validity)) => Ok(validity),
        None => bail!("there is no certificate in it"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::commands::check::Level;

    #[test]
    fn what_ends_first_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificates.pem");
        let pem = |year| {
            let mut params = CertificateParams::new(vec!["frontend.example".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        fs::write(&path, pem(2900)).unwrap();
        assert_eq!(certificate("--tls-ca", &path).level, Level::Ok);
        fs::write(&path, pem(2900) + &pem(2021)).unwrap();
        let ended = certificate("--tls-ca", &path);
        assert_eq!(ended.level, Level::Fail);
        assert!(ended.what.contains("2021"), "{}", ended.what);
        let end = 1_609_459_200; // 2021-01-01
        assert!(matches!(read(&path, end - 3 * DAY_SECONDS), Ok(Validity::For { days: 3, .. })));
    }

    #[test]
    fn what_is_no_certificate_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(certificate("--tls-ca", &path).level, Level::Fail);
        assert_eq!(secret("--tls-key", &path).level, Level::Fail);
        fs::write(&path, "words").unwrap();
        assert_eq!(certificate("--tls-ca", &path).level, Level::Fail);
        let key = secret("--tls-key", &path);
        assert_eq!(key.level, Level::Ok);
        assert!(!key.what.contains("words"));
    }
}
