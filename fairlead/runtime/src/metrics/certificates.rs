//! When the certificates in files begin and cease to be valid. The files are read at each scrape: the process reloads
//! them too when they change.

use std::{fmt, fs, path::PathBuf};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};

use super::{Registry, Writer};
use crate::certificate::{Validity, validities};

/// A PEM file with certificates that this process uses.
#[derive(Clone, Debug)]
pub struct CertificateFile {
    /// The label `certificate`.
    pub name: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Whether one valid certificate of the file is sufficient, as in a bundle of CAs. Otherwise all are needed, as in
    /// a chain.
    pub is_bundle: bool,
}

#[derive(Debug)]
struct Certificates(Vec<CertificateFile>);

/// The validity of the certificates in these files. A file that cannot be read has no sample.
#[must_use]
pub fn certificates(files: Vec<CertificateFile>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Certificates(files)));
    registry
}

impl CertificateFile {
    /// The validity of the certificate that decides: the first to expire of a chain, the last of a bundle.
    fn validity(&self) -> Option<Validity> {
        let all = validities(&fs::read(&self.path).ok()?).ok()?;
        let key = |validity: &Validity| validity.not_after;
        if self.is_bundle { all.into_iter().max_by_key(key) } else { all.into_iter().min_by_key(key) }
    }
}

impl Collector for Certificates {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let read: Vec<_> =
            self.0.iter().filter_map(|file| Some(([("certificate", file.name)], file.validity()?))).collect();
        let text = "Unix time at which a certificate that this process uses expires.";
        let samples = read.iter().map(|(label, validity)| (*label, validity.not_after as f64));
        writer.labelled_gauge("fairlead_certificate_not_after_timestamp", text, Some(Unit::Seconds), samples)?;
        let text = "Unix time from which a certificate that this process uses is valid.";
        let samples = read.iter().map(|(label, validity)| (*label, validity.not_before as f64));
        writer.labelled_gauge("fairlead_certificate_not_before_timestamp", text, Some(Unit::Seconds), samples)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn pem(year: i32) -> String {
        let mut params = CertificateParams::new(vec!["frontend.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(1971, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn the_certificate_that_ends_the_validity_of_its_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificates.pem");
        let file = |name, is_bundle| CertificateFile { name, path: path.clone(), is_bundle };
        let missing = CertificateFile { name: "missing", path: directory.path().join("none"), is_bundle: false };
        let registry = certificates(vec![file("chain", false), file("bundle", true), missing]);
        let scrape = || {
            let mut body = String::new();
            text::encode(&mut body, &registry).unwrap();
            body
        };
        fs::write(&path, pem(1972) + &pem(1973)).unwrap();
        let body = scrape();
        for (name, not_after) in [("chain", 63_072_000.0), ("bundle", 94_694_400.0)] {
            let line =
                format!("fairlead_certificate_not_after_timestamp_seconds{{certificate=\"{name}\"}} {not_after:?}");
            assert!(body.contains(&line), "{line}\n{body}");
        }
        assert!(body.contains("fairlead_certificate_not_before_timestamp_seconds{certificate=\"chain\"} 31536000.0"));
        assert!(!body.contains("missing"), "{body}");
        // The file has been replaced.
        fs::write(&path, pem(1974)).unwrap();
        assert!(scrape().contains("{certificate=\"chain\"} 126230400.0"), "{}", scrape());
    }
}
