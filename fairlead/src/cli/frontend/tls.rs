//! The flags of a frontend about TLS, and about whom it knows.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use frontend::{
    ReloadingTls, TlsAuth, TlsFiles,
    identity::{Authenticator, AuthnOptions, ServiceAccount, TokenOptions},
};

/// TLS on the TCP addresses of `--listen`. docs/security.md has the whole story.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS and identity (docs/security.md)")]
pub(crate) struct TlsArgs {
    /// The frontend's certificate (PEM), followed by intermediate ones; with --tls-key, every TCP address speaks TLS. This
    /// and the other files are read again when they change; connections stay.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key (PEM) of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The authorities (PEM) that may have signed clients' certificates. Such a certificate is a node's if its subject is
    /// CN=system:node:NAME, O=system:nodes.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// A client's certificate is a node's also if it has the URI that is this and the node's name, such as
    /// spiffe://example.org/node/ for spiffe://example.org/node/worker-1.
    #[arg(long, value_name = "PREFIX", requires = "tls_client_ca", value_parser = node_uri_prefix)]
    pub(crate) node_uri_prefix: Option<String>,

    /// Take the tokens of this ServiceAccount from agents: each is the node that its pod runs on. The API server is asked
    /// (TokenReview). May be given several times.
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "tls_cert")]
    pub(crate) backend_service_account: Vec<ServiceAccount>,

    /// What tokens must be meant for: `audience` of the projected volume.
    #[arg(long, value_name = "AUDIENCE", default_value = "fairlead")]
    pub(crate) token_audience: String,

    /// Who may look at every node's view and at the status, without being an agent: the CN or a URI of a client's
    /// certificate, or, with --backend-service-account, system:serviceaccount:NAMESPACE:NAME. May be given several times.
    #[arg(long, value_name = "NAME", requires = "tls_cert")]
    pub(crate) admin_identity: Vec<String>,
}

impl TlsArgs {
    /// What TLS listeners need; `None` without `--tls-cert`.
    pub(crate) async fn tls_auth(&self, kubeconfig: Option<PathBuf>) -> Result<Option<(ReloadingTls, TlsAuth)>> {
        let Some((certificate, key)) = self.tls_cert.clone().zip(self.tls_key.clone()) else {
            return Ok(None);
        };
        if self.tls_client_ca.is_none() && self.backend_service_account.is_empty() {
            bail!(
                "with --tls-cert alone no client could say who it is: give --tls-client-ca or --backend-service-account"
            );
        }
        let files = TlsFiles { certificate, key, client_authorities: self.tls_client_ca.clone() };
        let tls = ReloadingTls::load(files).await.context("TLS")?;
        let backend_accounts: BTreeSet<_> = self.backend_service_account.iter().cloned().collect();
        let tokens = (!backend_accounts.is_empty())
            .then(|| TokenOptions { audience: self.token_audience.clone(), backend_accounts });
        let authenticator = Authenticator::new(AuthnOptions {
            node_uri_prefix: self.node_uri_prefix.clone(),
            admins: self.admin_identity.iter().cloned().collect(),
            tokens,
            kubeconfig,
        });
        let auth = TlsAuth::new(tls.clone(), authenticator.await?);
        Ok(Some((tls, auth)))
    }
}

/// Reads `--node-uri-prefix`. Without the slash, `spiffe://a/node` would make `spiffe://a/node-admin` the node `-admin`.
fn node_uri_prefix(text: &str) -> Result<String, String> {
    if !text.contains("://") || !text.ends_with('/') {
        return Err(format!(
            "{text:?} is not the beginning of a URI up to a slash, such as spiffe://example.org/node/"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::parse;

    const CERT: [&str; 4] = ["--tls-cert", "c", "--tls-key", "k"];

    fn frontend(args: &[&str]) -> Result<(), String> {
        parse(&[&["frontend", "--manifests", "m"], args].concat()).map(drop)
    }

    #[test]
    fn flags_that_would_mean_nothing_are_refused() {
        let with_tls = |args: &[&str]| frontend(&[&CERT[..], args].concat());
        assert_eq!(with_tls(&["--tls-client-ca", "a", "--node-uri-prefix", "spiffe://a/node/"]), Ok(()));
        assert_eq!(with_tls(&["--backend-service-account", "kube-system/fairlead", "--admin-identity", "ops"]), Ok(()));
        frontend(&["--tls-cert", "c"]).unwrap_err();
        frontend(&["--tls-key", "k"]).unwrap_err();
        for args in [["--tls-client-ca", "a"], ["--backend-service-account", "a/b"], ["--admin-identity", "ops"]] {
            frontend(&args).unwrap_err();
        }
        with_tls(&["--node-uri-prefix", "spiffe://a/node/"]).unwrap_err();
        with_tls(&["--tls-client-ca", "a", "--node-uri-prefix", "spiffe://a/node"]).unwrap_err();
        with_tls(&["--backend-service-account", "fairlead"]).unwrap_err();
        with_tls(&["--insecure"]).unwrap_err();
    }
}
