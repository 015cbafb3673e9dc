//! TLS of the frontend: the files, and the configuration that new handshakes use.
//!
//! ```text
//!   files ──read every few seconds──▶ changed? ──▶ ServerConfig ──▶ current ◀── handshakes
//!                                        └ unusable: the old one stays; an error in the log, a problem in Status
//! ```
//!
//! A configuration is made of all files together (certificate, key, client CAs). Connections keep the one that they
//! started with. TLS sessions are not resumed: the certificate of a client is verified against the current CAs each
//! time.

mod files;

use std::{
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use anyhow::Result;
use runtime::{Shutdown, lock};
use rustls::ServerConfig;
use tokio::time::{sleep, timeout};
use tracing::{error, info};

use self::files::Contents;

/// How often the files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The delay before files that cannot be used are read again: they may be replaced one after the other.
const REREAD_DELAY: Duration = Duration::from_millis(500);
/// How long a read may take before it is reported.
const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(5) } else { Duration::from_secs(10) };

/// The TLS files, all PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the frontend, followed by intermediate ones.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs of client certificates. `None`: clients are not asked for a certificate.
    pub client_authorities: Option<PathBuf>,
}

/// A TLS configuration that follows its files. Clones share the same state.
#[derive(Clone, Debug)]
pub struct ReloadingTls {
    files: Arc<TlsFiles>,
    current: Arc<Mutex<CurrentTls>>,
}

#[derive(Debug)]
struct CurrentTls {
    config: Arc<ServerConfig>,
    /// The contents of the files when they were last read, usable or not.
    seen: Result<Contents, String>,
    /// Why `seen` is not used.
    error: Option<String>,
}

impl ReloadingTls {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file cannot be read or used. The error names the file and its flag.
    pub async fn load(files: TlsFiles) -> Result<Self> {
        let contents = Contents::read(&files).await?;
        let config = contents.config(&files)?;
        info!(certificate = %files.certificate.display(), valid_until = contents.valid_until(), "loaded TLS files");
        contents.warn_if_invalid();
        let current = CurrentTls { config: Arc::new(config), seen: Ok(contents), error: None };
        Ok(Self { files: Arc::new(files), current: Arc::new(Mutex::new(current)) })
    }

    /// Why the files in their current form are not used, or why clients reject the certificate at the local time.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let current = lock(&self.current);
        current.error.clone().or_else(|| current.seen.as_ref().ok()?.invalid_at(SystemTime::now()))
    }

    /// Reloads the files when they change, until the shutdown. Files that cannot be used are ignored.
    pub async fn watch_files(self, mut shutdown: Shutdown) {
        // A read of a disk that hangs does not end.
        shutdown.run_until_started(self.reload_on_changes()).await;
    }

    async fn reload_on_changes(&self) {
        loop {
            sleep(POLL_INTERVAL).await;
            self.reload_if_changed().await;
        }
    }

    async fn reload_if_changed(&self) {
        let mut contents = self.read().await;
        if lock(&self.current).seen == contents {
            return;
        }

        let mut config = self.config_of(&contents);
        if config.is_err() {
            sleep(REREAD_DELAY).await;
            contents = self.read().await;
            config = self.config_of(&contents);
        }

        let mut current = lock(&self.current);
        match config {
            Ok(config) => {
                let valid_until = contents.as_ref().ok().map(Contents::valid_until);
                info!(certificate = %self.files.certificate.display(), valid_until, "reloaded TLS files");
                let _ = contents.as_ref().map(Contents::warn_if_invalid);
                current.config = Arc::new(config);
                current.error = None;
            }
            Err(error) => {
                error!(error, "cannot use changed TLS files, keeping the previous ones in use");
                current.error = Some(error);
            }
        }
        current.seen = contents;
    }

    /// Reads the files. A read that takes too long is reported and waited for, because another read would hang, too.
    async fn read(&self) -> Result<Contents, String> {
        let mut reading = pin!(Contents::read(&self.files));
        let contents = match timeout(READ_TIMEOUT, reading.as_mut()).await {
            Ok(contents) => contents,
            Err(_) => {
                self.report_slow_read();
                reading.await
            }
        };
        contents.map_err(|error| format!("{error:#}"))
    }

    fn report_slow_read(&self) {
        let error = format!("no answer of the disk in {READ_TIMEOUT:?}");
        error!(error, "cannot read TLS files, keeping the previous ones in use");
        let mut current = lock(&self.current);
        current.error = Some(error.clone());
        current.seen = Err(error);
    }

    fn config_of(&self, contents: &Result<Contents, String>) -> Result<ServerConfig, String> {
        let contents = contents.as_ref().map_err(Clone::clone)?;
        contents.config(&self.files).map_err(|error| format!("{error:#}"))
    }

    /// The configuration for a new handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        lock(&self.current).config.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use rcgen::{CertificateParams, KeyPair};
    use tempfile::TempDir;

    use super::*;

    /// Longer than any step takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A certificate and its key, both PEM.
    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    async fn load(directory: &TempDir) -> ReloadingTls {
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
        let pair = pair();
        fs::write(&certificate, pair.0).unwrap();
        fs::write(&key, pair.1).unwrap();
        ReloadingTls::load(TlsFiles { certificate, key, client_authorities: None }).await.unwrap()
    }

    #[tokio::test]
    async fn files_that_are_replaced_one_after_the_other_are_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let tls = load(&directory).await;
        let before = tls.config();
        let (certificate, key) = pair();
        fs::write(&tls.files.certificate, certificate).unwrap();
        let replace_key = async {
            sleep(REREAD_DELAY / 5).await;
            assert_eq!(tls.error(), None);
            fs::write(&tls.files.key, key).unwrap();
        };
        // In this order: after a stall both may be due at the same time.
        tokio::join!(biased; replace_key, tls.reload_if_changed());
        assert_eq!(tls.error(), None);
        assert!(!Arc::ptr_eq(&before, &tls.config()));
    }

    /// Opening a FIFO blocks until there is a peer, like a file on a disk that hangs.
    #[tokio::test]
    async fn disk_that_hangs_is_reported_and_does_not_delay_the_shutdown() {
        let directory = tempfile::tempdir().unwrap();
        let tls = load(&directory).await;
        let (trigger, shutdown) = Shutdown::channel();
        let watching = tokio::spawn(tls.clone().watch_files(shutdown));
        let key = fs::read(&tls.files.key).unwrap();
        fs::remove_file(&tls.files.key).unwrap();
        assert!(Command::new("mkfifo").arg(&tls.files.key).status().unwrap().success());
        let until = async |reported: bool| {
            while tls.error().is_some_and(|error| error.contains("no answer of the disk")) != reported {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, until(true)).await.unwrap();

        // The read ends, and the next one hangs again.
        fs::write(&tls.files.key, &key).unwrap();
        timeout(PATIENCE, until(false)).await.unwrap();
        timeout(PATIENCE, until(true)).await.unwrap();
        trigger.fire();
        timeout(Duration::from_secs(1), watching).await.unwrap().unwrap();
        fs::write(&tls.files.key, "").unwrap();
    }
}
