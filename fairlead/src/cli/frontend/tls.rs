//! The flags of `fairlead frontend` for TLS and client identities.

use std::{collections::BTreeSet, path::PathBuf};

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
        let [cert, key, client_ca] = [&self.tls_cert, &self.tls_key, &self.tls_client_ca].map(Option::is_some);
        let has_accounts = !self.backend_service_account.is_empty();
        for (flag, is_set, needed, is_given) in [
            ("--tls-cert", cert, "--tls-key", key),
            ("--tls-key", key, "--tls-cert", cert),
            ("--tls-client-ca", client_ca, "--tls-cert", cert),
            ("--backend-service-account", has_accounts, "--tls-cert", cert),
            ("--token-issuer", !self.token_issuer.is_empty(), "--backend-service-account", has_accounts),
            ("--admin-identity", !self.admin_identity.is_empty(), "--tls-cert", cert),
        ] {
            if is_set && !is_given {
                bail!("{flag} needs {needed}");
            }
        }
        Ok(())
    }

    /// The certificates that this process uses.
    pub(crate) fn certificate_files(&self) -> Vec<CertificateFile> {
        let file = |name, path: &Option<PathBuf>, is_bundle| {
            path.clone().map(|path| CertificateFile { name, path, is_bundle })
        };
        let files = [file("tls-cert", &self.tls_cert, false), file("tls-client-ca", &self.tls_client_ca, true)];
        files.into_iter().flatten().collect()
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
        let backend_accounts: BTreeSet<_> = self.backend_service_account.iter().cloned().collect();
        let tokens = (!backend_accounts.is_empty()).then(|| TokenOptions {
            audience: self.token_audience.clone(),
            backend_accounts,
            issuers: self.token_issuer.iter().cloned().collect(),
        });
        let authenticator = Authenticator::new(AuthnOptions {
            admins: self.admin_identity.iter().cloned().collect(),
            tokens,
            kubeconfig,
        });
        let auth = TlsAuth::new(tls.clone(), authenticator.await?);
        Ok(Some((tls, auth)))
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
