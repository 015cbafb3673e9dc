//! When the certificates in files begin and cease to be valid. A thread that a scrape starts reads the files, for the
//! scrapes after it: a scrape does not wait for a disk.

use std::{
    fmt, fs,
    path::PathBuf,
    sync::{
        Mutex,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};

use super::{Registry, Writer};
use crate::{
    certificate::{Validity, validities},
    lock,
};

/// How long the first scrape waits for its read. Later ones have the samples of the last read that has ended.
const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(100) };

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
struct Certificates {
    files: Vec<CertificateFile>,
    reads: Mutex<Reads>,
}

/// The file's label, and what it contains.
type FileValidity = (&'static str, Validity);

#[derive(Debug, Default)]
struct Reads {
    /// The result of the last read that has ended.
    last: Option<Vec<FileValidity>>,
    /// The read whose result nothing has received yet.
    running: Option<Receiver<Vec<FileValidity>>>,
}

/// The validity of the certificates in these files. A file that cannot be read has no sample.
#[must_use]
pub fn certificates(files: Vec<CertificateFile>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Certificates { files, reads: Mutex::default() }));
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

impl Certificates {
    /// The validity of all files that can be read. There is one thread at most: while it reads, no other is started.
    fn read(&self) -> Vec<FileValidity> {
        let mut reads = lock(&self.reads);
        let is_first = reads.last.is_none() && reads.running.is_none();
        let timeout = if is_first { READ_TIMEOUT } else { Duration::ZERO };

        let running = reads.running.take().or_else(|| self.start_read());
        match running.as_ref().map(|running| running.recv_timeout(timeout)) {
            Some(Ok(read)) => reads.last = Some(read),
            Some(Err(RecvTimeoutError::Timeout)) => reads.running = running,
            Some(Err(RecvTimeoutError::Disconnected)) | None => {}
        }
        reads.last.clone().unwrap_or_default()
    }

    /// `None` when there can be no more threads.
    fn start_read(&self) -> Option<Receiver<Vec<FileValidity>>> {
        let (sender, receiver) = mpsc::channel();
        let files = self.files.clone();
        let read = move || {
            let read = files.iter().filter_map(|file| Some((file.name, file.validity()?))).collect();
            // Fails when the registry has been dropped.
            let _ = sender.send(read);
        };
        thread::Builder::new().name("certificates".to_owned()).spawn(read).ok()?;
        Some(receiver)
    }
}

impl Collector for Certificates {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let read = self.read();

        let text = "Unix time at which a certificate that this process uses expires.";
        let samples = read.iter().map(|(name, validity)| ([("certificate", *name)], validity.not_after as f64));
        writer.labelled_gauge("fairlead_certificate_not_after_timestamp", text, Some(Unit::Seconds), samples)?;

        let text = "Unix time from which a certificate that this process uses is valid.";
        let samples = read.iter().map(|(name, validity)| ([("certificate", *name)], validity.not_before as f64));
        writer.labelled_gauge("fairlead_certificate_not_before_timestamp", text, Some(Unit::Seconds), samples)
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Instant};

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
        eventually(|| scrape().contains("{certificate=\"chain\"} 126230400.0"));
    }

    fn eventually(mut is_shown: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_shown() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Opening a FIFO blocks until there is a peer, like a file on a disk that hangs.
    #[test]
    fn scrapes_do_not_wait_for_a_disk_that_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificate.pem");
        let registry = certificates(vec![CertificateFile { name: "node", path: path.clone(), is_bundle: false }]);
        let is_shown = |not_after: &str| {
            let mut body = String::new();
            text::encode(&mut body, &registry).unwrap();
            body.contains(&format!("{{certificate=\"node\"}} {not_after}"))
        };
        fs::write(&path, pem(1972)).unwrap();
        assert!(is_shown("63072000.0"));

        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let begun = Instant::now();
        assert!((0..100).all(|_| is_shown("63072000.0")), "the last result");
        assert!(begun.elapsed() < READ_TIMEOUT, "only the first scrape of all waits");

        // The read ends.
        fs::write(&path, pem(1973)).unwrap();
        eventually(|| is_shown("94694400.0"));
    }
}
