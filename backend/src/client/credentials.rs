//! How the two ends of an `https` connection know each other. The files are read for each connection, so that they may be
//! replaced at any time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tokio::fs;
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Identity},
};

/// Files that say who the frontend must be, and who this is. Used for `https` only: a token is never sent in the clear.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Certificates (PEM) of the authorities that may have signed the frontend's.
    pub authorities: Option<PathBuf>,
    /// The certificate (PEM) of this node, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A service-account token that is bound to this node.
    pub token: Option<PathBuf>,
    /// The name that the frontend's certificate must be for. `None`: the name that led to it, or the IP address that was given.
    pub frontend_name: Option<String>,
}

impl Credentials {
    /// `name`: what led to the frontend, where that is not in its address.
    pub(super) async fn tls(&self, name: Option<&str>) -> Result<ClientTlsConfig> {
        let mut config = ClientTlsConfig::new();
        if let Some(path) = &self.authorities {
            config = config.ca_certificate(Certificate::from_pem(read(path).await?));
        }
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
        }
        if let Some(name) = self.frontend_name.as_deref().or(name) {
            config = config.domain_name(name);
        }
        Ok(config)
    }

    /// The value of the `authorization` header.
    pub(super) async fn token(&self) -> Result<Option<MetadataValue<Ascii>>> {
        let Some(path) = &self.token else { return Ok(None) };
        let token = String::from_utf8(read(path).await?).context("the token is no text")?;
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {}", token.trim()).parse().context("the token is no header value")?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

async fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).await.with_context(|| format!("read {}", path.display()))
}
