//! TLS of the frontend: the files behind it, and the configuration that new handshakes use.
//!
//! ```text
//!   files ──read, every few seconds──▶ changed? ──▶ ServerConfig ──▶ current ◀── handshakes
//!                                         └ cannot be used: the old one stays; an error in the log, a problem in Status
//! ```
//!
//! Each configuration is whole (certificate, key, client authorities) and connections keep the one that they began with.
//! Sessions are never resumed: a client's certificate is checked against what holds now, each time.

mod files;
mod incoming;

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Result;
use runtime::Shutdown;
use rustls::ServerConfig;
use tracing::{error, info};

use self::files::Contents;
pub(super) use self::incoming::accept;

/// How often the files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What TLS is made of, all PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the frontend, and the intermediate ones after it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities that clients' certificates are checked against. `None`: clients are not asked for any.
    pub client_authorities: Option<PathBuf>,
}

/// The present TLS configuration of a frontend. Clones are the same one.
#[derive(Clone, Debug)]
pub struct ReloadingTls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: TlsFiles,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// What the files held when they were read last, whether it was good or not.
    seen: Result<Contents, String>,
    /// Why that is not in use.
    trouble: Option<String>,
}

impl ReloadingTls {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file cannot be read or used; says which one, with the flag that named it.
    pub async fn load(files: TlsFiles) -> Result<Self> {
        let contents = Contents::read(&files).await?;
        let config = contents.config(&files)?;
        info!(certificate = %files.certificate.display(), valid_until = contents.valid_until(), "TLS");
        let current = Current { config: Arc::new(config), seen: Ok(contents), trouble: None };
        Ok(Self(Arc::new(Inner { files, current: RwLock::new(current) })))
    }

    /// Why the files as they are now are not in use. `None`: they are.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.with(|current| current.trouble.clone())
    }

    /// Follows the files until the shutdown.
    ///
    /// # Errors
    /// Never: what cannot be used changes nothing.
    pub async fn follow(self, mut shutdown: Shutdown) -> Result<()> {
        loop {
            tokio::select! {
                () = shutdown.recv() => return Ok(()),
                () = tokio::time::sleep(POLL_INTERVAL) => self.look().await,
            }
        }
    }

    /// Takes in what the files hold, if that has changed.
    async fn look(&self) {
        let files = &self.0.files;
        let found = Contents::read(files).await.map_err(|error| format!("{error:#}"));
        if self.with(|current| current.seen == found) {
            return;
        }
        let config = match &found {
            Ok(contents) => contents.config(files).map_err(|error| format!("{error:#}")),
            Err(error) => Err(error.clone()),
        };
        let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
        match config {
            Ok(config) => {
                let valid_until = found.as_ref().ok().map(Contents::valid_until);
                info!(certificate = %files.certificate.display(), valid_until, "TLS files have changed: new connections use them");
                current.config = Arc::new(config);
                current.trouble = None;
            }
            Err(error) => {
                error!(error, "TLS files have changed and cannot be used: what was read before stays in use");
                current.trouble = Some(error);
            }
        }
        current.seen = found;
    }

    /// What a new handshake uses.
    fn config(&self) -> Arc<ServerConfig> {
        self.with(|current| current.config.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&Current) -> T) -> T {
        look(&self.0.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}
