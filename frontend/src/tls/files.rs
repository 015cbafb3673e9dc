//! Makes a TLS configuration of PEM files.

use std::{path::Path, sync::Arc, time::SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use runtime::certificate::unusable_pair;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use tracing::error;

use super::TlsFiles;
use crate::identity::certificate;

/// The ALPN protocol name of HTTP/2.
const HTTP_2: &[u8] = b"h2";

#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authorities: Option<Vec<u8>>,
}

impl Contents {
    pub(super) async fn read(files: &TlsFiles) -> Result<Self> {
        let TlsFiles { certificate, key, client_authorities } = files;
        Ok(Self {
            certificate: read("--tls-cert", certificate).await?,
            key: read("--tls-key", key).await?,
            client_authorities: match client_authorities {
                Some(path) => Some(read("--tls-client-ca", path).await?),
                None => None,
            },
        })
    }

    /// Makes a configuration. Fails when any of the files cannot be used.
    pub(super) fn config(&self, files: &TlsFiles) -> Result<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        // Clients follow docs/protocol.md, which requires TLS 1.3: older versions send client certificates unencrypted.
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
        let builder = match self.client_authorities.as_ref().zip(files.client_authorities.as_ref()) {
            Some((pem, path)) => {
                let verifier =
                    client_verifier(pem, provider).with_context(|| flag_and_path("--tls-client-ca", path))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };

        let certificate = || flag_and_path("--tls-cert", &files.certificate);
        let key = || flag_and_path("--tls-key", &files.key);
        let chain = certificates(&self.certificate).with_context(certificate)?;
        let private_key = PrivateKeyDer::from_pem_slice(&self.key).map_err(pem_error).with_context(key)?;
        let built = builder.with_single_cert(chain, private_key);
        let mut config = built.map_err(|error| anyhow!(unusable_pair(&error, &certificate(), &key())))?;

        config.alpn_protocols = vec![HTTP_2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Why the certificate is not valid at this local time.
    pub(super) fn invalid_at(&self, now: SystemTime) -> Option<String> {
        let validities = runtime::certificate::validities(&self.certificate).unwrap_or_default();
        validities.iter().find_map(|validity| validity.invalid_at(now))
    }

    /// Logs why clients will reject the certificate.
    pub(super) fn warn_if_invalid(&self) {
        if let Some(reason) = self.invalid_at(SystemTime::now()) {
            error!(reason, "clients reject the certificate of this frontend");
        }
    }

    /// When the certificate expires, to be logged.
    pub(super) fn valid_until(&self) -> String {
        let until = certificates(&self.certificate).and_then(|chain| certificate::not_after(&chain[0]));
        until.unwrap_or_else(|error| format!("unknown: {error:#}"))
    }
}

/// Leaves the contents out: they include the private key.
impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

async fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    tokio::fs::read(path).await.with_context(|| flag_and_path(flag, path))
}

fn flag_and_path(flag: &str, path: &Path) -> String {
    format!("{flag} {}", path.display())
}

/// Verifies client certificates against these CAs. A client without a certificate may have a token.
fn client_verifier(authorities: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        roots.add(certificate).context("invalid CA certificate")?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).allow_unauthenticated();
    Ok(verifier.build()?)
}

/// All certificates of a file. Fails if there is none.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = parsed.map_err(pem_error)?;
    ensure!(!certificates.is_empty(), "the file contains no PEM certificate");
    Ok(certificates)
}

fn pem_error(error: rustls::pki_types::pem::Error) -> anyhow::Error {
    match error {
        rustls::pki_types::pem::Error::NoItemsFound => anyhow!("the file contains no PEM private key"),
        other => anyhow::Error::new(other).context("invalid PEM"),
    }
}
