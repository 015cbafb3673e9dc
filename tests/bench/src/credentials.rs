//! Certificates of frontends and nodes, which one authority has signed.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use e2e::Authority;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::scale::cluster::node_name;

/// The name in the certificate of the frontends.
pub(crate) const NAME: &str = "fairlead.example";
/// The files of the frontends' certificate.
const FRONTEND: &str = "frontend";

/// An authority, and the directory with its files: `ca.crt`, `frontend.crt` and `.key`, and those of nodes.
#[derive(Debug)]
pub(crate) struct Credentials {
    authority: Authority,
    directory: PathBuf,
}

impl Credentials {
    /// A new authority, and a certificate of frontends.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let credentials = Self { authority: Authority::new("authority", &[]), directory: directory.to_owned() };
        fs::write(credentials.authority_file(), credentials.authority.pem()).context("write the authority")?;
        credentials.sign(FRONTEND, FRONTEND, "", &[NAME])?;
        Ok(credentials)
    }

    /// The flags of a frontend that serves nodes with certificates.
    pub(crate) fn frontend_flags(&self) -> Vec<OsString> {
        let mut flags = self.certificate_flags(FRONTEND);
        flags.extend(["--tls-client-ca".into(), self.authority_file().into()]);
        flags
    }

    /// Signs a certificate of a node. Returns the flags of its backend.
    pub(crate) fn backend_flags(&self, node: &str) -> Result<Vec<OsString>> {
        self.sign(node, &format!("system:node:{node}"), "system:nodes", &[])?;
        let mut flags = self.certificate_flags(node);
        flags.extend(["--frontend-name".into(), NAME.into(), "--tls-ca".into(), self.authority_file().into()]);
        Ok(flags)
    }

    /// A client without a certificate, which trusts the frontends.
    pub(crate) fn stranger(&self) -> Arc<ClientConfig> {
        Arc::new(self.roots().with_no_client_auth())
    }

    /// Clients with the certificates of so many synthetic nodes.
    pub(crate) fn nodes(&self, count: u32) -> Result<Vec<Arc<ClientConfig>>> {
        let node = |number: u32| {
            let name = format!("system:node:{}", node_name(number));
            let (certificate, key) = self.authority.sign(&name, "system:nodes", &[]);
            let mut config = self.client_of(&certificate, &key)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(Arc::new(config))
        };
        (0..count).map(node).collect()
    }

    /// A client with the certificate that [`Self::sign`] has written to this file.
    pub(crate) fn client(&self, file: &str) -> Result<Arc<ClientConfig>> {
        let [certificate, key] = ["crt", "key"].map(|extension| self.directory.join(format!("{file}.{extension}")));
        let certificate = fs::read_to_string(certificate).context("read a certificate")?;
        let key = fs::read_to_string(key).context("read a key")?;
        Ok(Arc::new(self.client_of(&certificate, &key)?))
    }

    fn client_of(&self, certificate: &str, key: &str) -> Result<ClientConfig> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        Ok(self.roots().with_client_auth_cert(vec![certificate], key)?)
    }

    fn roots(&self) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore::empty();
        if let Ok(authority) = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()) {
            // The frontends would not have started with a certificate that is not valid.
            let _ = roots.add(authority);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap_or_else(|error| panic!("TLS versions: {error}"))
            .with_root_certificates(roots)
    }

    fn authority_file(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// Writes `<file>.crt` and `<file>.key`.
    pub(crate) fn sign(&self, file: &str, name: &str, organization: &str, hosts: &[&str]) -> Result<()> {
        let (certificate, key) = self.authority.sign(name, organization, hosts);
        fs::write(self.directory.join(format!("{file}.crt")), certificate).context("write a certificate")?;
        fs::write(self.directory.join(format!("{file}.key")), key).context("write a key")
    }

    fn certificate_flags(&self, certificate: &str) -> Vec<OsString> {
        let file = |extension: &str| self.directory.join(format!("{certificate}.{extension}")).into_os_string();
        vec!["--tls-cert".into(), file("crt"), "--tls-key".into(), file("key")]
    }
}
