//! The flags of `fairlead frontend` for TLS and client identities.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use frontend::{
    ReloadingTls, TlsAuth, TlsFiles,
    identity::{Authenticator, AuthnOptions, ServiceAccount, TokenOptions},
};
use runtime::metrics::CertificateFile;

/// TLS on the TCP addresses of `--listen`: docs/credentials.md.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS and identity (docs/credentials.md)")]
pub(crate) struct TlsArgs {
    /// Serve TLS on all TCP addresses with this certificate (PEM), followed by intermediate certificates. Needs
    /// --tls-key. All TLS files are reloaded when they change; connections stay.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Use this private key (PEM) for --tls-cert.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Accept client certificates that these CAs (PEM) have signed. A certificate identifies a node by the subject
    /// CN=system:node:NAME, O=system:nodes.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Accept tokens of this ServiceAccount from backends. A token identifies the node of its pod. Needs `get` on
    /// /openid/v1/jwks and `create` on tokenreviews. May be given several times.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) backend_service_account: Vec<ServiceAccount>,

    /// Require this audience in tokens: `audience` of the projected volume.
    #[arg(long, value_name = "AUDIENCE", default_value = "fairlead")]
    pub(crate) token_audience: String,

    /// Accept only tokens of this issuer: `--service-account-issuer` of the API server. May be given several times.
    /// Default: every issuer that the API server accepts.
    #[arg(long, value_name = "ISSUER")]
    pub(crate) token_issuer: Vec<String>,

    /// Allow this identity to read the status and the view of every node: the CN of a client certificate, or, with
    /// --backend-service-account, system:serviceaccount:NAMESPACE:NAME. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_identity: Vec<String>,
}

impl TlsArgs {
    /// Checks settings that depend on each other.
    pub(super) fn validate(&self) -> Result<()> {
        let has_cert = self.tls_cert.is_some();
        let has_key = self.tls_key.is_some();
        let has_accounts = !self.backend_service_account.is_empty();
        for (flag, is_set, needed, is_given) in [
            ("--tls-cert", has_cert, "--tls-key", has_key),
            ("--tls-key", has_key, "--tls-cert", has_cert),
            ("--tls-client-ca", self.tls_client_ca.is_some(), "--tls-cert", has_cert),
            ("--backend-service-account", has_accounts, "--tls-cert", has_cert),
            ("--token-issuer", !self.token_issuer.is_empty(), "--backend-service-account", has_accounts),
            ("--admin-identity", !self.admin_identity.is_empty(), "--tls-cert", has_cert),
        ] {
            if is_set && !is_given {
                bail!("{flag} needs {needed}");
            }
        }
        Ok(())
    }

    /// The certificates that this process uses.
    pub(crate) fn certificate_files(&self) -> Vec<CertificateFile> {
        let mut files = Vec::new();
        if let Some(path) = self.tls_cert.clone() {
            files.push(CertificateFile { name: "tls-cert", path, is_bundle: false });
        }
        if let Some(path) = self.tls_client_ca.clone() {
            files.push(CertificateFile { name: "tls-client-ca", path, is_bundle: true });
        }
        files
    }

    /// Certificates and authentication for TLS listeners; `None` without `--tls-cert`.
    pub(crate) async fn tls_auth(&self, kubeconfig: Option<PathBuf>) -> Result<Option<(ReloadingTls, TlsAuth)>> {
        let Some((certificate, key)) = self.tls_cert.clone().zip(self.tls_key.clone()) else {
            return Ok(None);
        };
        if self.tls_client_ca.is_none() && self.backend_service_account.is_empty() {
            bail!("--tls-cert alone does not authenticate clients: set --tls-client-ca or --backend-service-account");
        }

        let files = TlsFiles { certificate, key, client_authorities: self.tls_client_ca.clone() };
        let tls = ReloadingTls::load(files).await.context("cannot load TLS files")?;

        let admins = self.admin_identity.iter().cloned().collect();
        let options = AuthnOptions { admins, tokens: self.token_options(), kubeconfig };
        let auth = TlsAuth::new(tls.clone(), Authenticator::new(options).await?);
        Ok(Some((tls, auth)))
    }

    /// `None`: no tokens are accepted.
    fn token_options(&self) -> Option<TokenOptions> {
        if self.backend_service_account.is_empty() {
            return None;
        }
        Some(TokenOptions {
            audience: self.token_audience.clone(),
            backend_accounts: self.backend_service_account.iter().cloned().collect(),
            issuers: self.token_issuer.iter().cloned().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::testing::parse, *};

    const CERT: [&str; 4] = ["--tls-cert", "c", "--tls-key", "k"];

    fn frontend(args: &[&str]) -> Result<(), String> {
        parse(&[&["frontend", "--manifests", "m"], args].concat()).map(drop)
    }

    #[test]
    fn incomplete_tls_flags_are_rejected() {
        let with_tls = |args: &[&str]| frontend(&[&CERT[..], args].concat());
        assert_eq!(with_tls(&["--tls-client-ca", "a"]), Ok(()));
        assert_eq!(with_tls(&["--backend-service-account", "kube-system/fairlead", "--admin-identity", "ops"]), Ok(()));
        frontend(&["--tls-cert", "c"]).unwrap_err();
        frontend(&["--tls-key", "k"]).unwrap_err();
        for args in [["--tls-client-ca", "a"], ["--backend-service-account", "a/b"], ["--admin-identity", "ops"]] {
            frontend(&args).unwrap_err();
        }
        with_tls(&["--backend-service-account", "fairlead"]).unwrap_err();
        with_tls(&["--insecure"]).unwrap_err();
    }
}
