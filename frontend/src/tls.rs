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
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use anyhow::Result;
use runtime::{Shutdown, lock};
use rustls::ServerConfig;
use tokio::time::sleep;
use tracing::{error, info};

use self::files::Contents;

/// How often the files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

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
        while shutdown.run_until_started(sleep(POLL_INTERVAL)).await.is_some() {
            self.reload_if_changed().await;
        }
    }

    async fn reload_if_changed(&self) {
        let files = &self.files;
        let contents = Contents::read(files).await.map_err(|error| format!("{error:#}"));
        if lock(&self.current).seen == contents {
            return;
        }
        let config = match &contents {
            Ok(contents) => contents.config(files).map_err(|error| format!("{error:#}")),
            Err(error) => Err(error.clone()),
        };
        let mut current = lock(&self.current);
        match config {
            Ok(config) => {
                let valid_until = contents.as_ref().ok().map(Contents::valid_until);
                info!(certificate = %files.certificate.display(), valid_until, "reloaded TLS files");
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

    /// The configuration for a new handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        lock(&self.current).config.clone()
    }
}
