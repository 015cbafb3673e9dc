//! The credentials of an `https` connection. The files are read for each connection, so that they can be replaced at
//! any time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tokio::fs;
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Identity},
};

use super::CONNECT_TIMEOUT;

/// The files that authenticate both ends. Used for `https` only: a token is never sent in the clear.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The CA certificates (PEM) that the frontend's certificate is verified with.
    pub authorities: Option<PathBuf>,
    /// The certificate (PEM) of this node and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A service-account token bound to this node.
    pub token: Option<PathBuf>,
    /// The name that the frontend's certificate must contain. `None`: the DNS name or IP address of the address.
    pub frontend_name: Option<String>,
}

impl Credentials {
    /// `name`: the server name of the address.
    pub(super) async fn tls(&self, name: Option<&str>) -> Result<ClientTlsConfig> {
        let mut config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
        if let Some(path) = &self.authorities {
            config = config.ca_certificate(Certificate::from_pem(read(path, "--tls-ca").await?));
        }
        if let Some((certificate, key)) = &self.identity {
            let certificate = read(certificate, "--tls-cert").await?;
            config = config.identity(Identity::from_pem(certificate, read(key, "--tls-key").await?));
        }
        if let Some(name) = self.frontend_name.as_deref().or(name) {
            config = config.domain_name(name);
        }
        Ok(config)
    }

    /// The value of the `authorization` header.
    pub(super) async fn token(&self) -> Result<Option<MetadataValue<Ascii>>> {
        let Some(path) = &self.token else { return Ok(None) };
        let token = String::from_utf8(read(path, "--token-file").await?)
            .with_context(|| format!("{}: the token is not text", path.display()))?;
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .with_context(|| format!("{}: the token has characters that a header cannot have", path.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

async fn read(path: &Path, flag: &str) -> Result<Vec<u8>> {
    let context = || format!("cannot read {} ({flag}: check the path, the mount and the permissions)", path.display());
    fs::read(path).await.with_context(context)
}
