//! Maps credentials to identities, as configured by the operator.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};

use super::{
    Identity,
    certificate::Names,
    tokens::{TokenOptions, TokenSource, Tokens},
};
use crate::source::KubernetesApi;

/// The user name of a node in Kubernetes is this and its name.
const NODE_USER: &str = "system:node:";
/// The group of all nodes in Kubernetes.
const NODE_GROUP: &str = "system:nodes";

/// How clients are identified.
#[derive(Clone, Debug, Default)]
pub struct AuthnOptions {
    /// Administrators: common names of certificates, or user names of ServiceAccounts.
    pub admins: BTreeSet<String>,
    /// Which tokens are accepted. `None`: none.
    pub tokens: Option<TokenOptions>,
    /// The kubeconfig of the API server that reviews tokens. `None`: the in-cluster configuration.
    pub kubeconfig: Option<PathBuf>,
}

/// Identifies clients.
#[derive(Debug)]
pub struct Authenticator {
    admins: Arc<BTreeSet<String>>,
    tokens: Option<Tokens>,
}

/// Why a client could not be identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthnError {
    /// The client has no credential.
    #[error("no credential: present a client certificate{}", if *.tokens { ", or a bearer token" } else { "" })]
    NoCredential {
        /// Whether tokens are accepted.
        tokens: bool,
    },
    /// The certificate is valid, but names neither a node nor an administrator.
    #[error("certificate identity not recognized: {0}")]
    UnknownNames(String),
    /// The token is not valid, or not accepted here.
    #[error("token rejected: {0}")]
    Token(String),
    /// The API server did not review the token.
    #[error("cannot review tokens at the moment, try again later: {0}")]
    Unavailable(String),
    /// Too many tokens of the client, or of all unknown clients, have been reviewed.
    #[error("too many token reviews for this client or its source address, try again in {0} s")]
    TooManyReviews(u64),
}

impl Authenticator {
    /// Applies the options. The API server is contacted only for the first token.
    ///
    /// # Errors
    /// When tokens are accepted and the API server is not configured.
    pub async fn new(options: AuthnOptions) -> Result<Self> {
        if options.tokens.is_none() {
            return Ok(Self::with_client(options, None));
        }
        let api = KubernetesApi::new(options.kubeconfig.as_deref()).await;
        let client = api.context("configure the API server that reviews tokens")?.client();
        Ok(Self::with_client(options, Some(client)))
    }

    /// Applies the options. Without a client of the API server no token is accepted.
    pub(crate) fn with_client(options: AuthnOptions, client: Option<kube::Client>) -> Self {
        let admins = Arc::new(options.admins);
        let tokens = client.zip(options.tokens).map(|(client, tokens)| Tokens::new(client, tokens, admins.clone()));
        Self { admins, tokens }
    }

    /// Identifies the client with these credentials. A recognized certificate takes precedence over a token.
    pub(crate) async fn identify(
        &self,
        names: Option<&Names>,
        token: Option<&str>,
        source: TokenSource,
    ) -> Result<Identity, AuthnError> {
        let unknown = match names.map(|names| self.by_certificate(names)) {
            Some(Ok(identity)) => return Ok(identity),
            Some(Err(unknown)) => unknown,
            None => AuthnError::NoCredential { tokens: self.tokens.is_some() },
        };

        match (&self.tokens, token) {
            (Some(tokens), Some(token)) => tokens.identify(token, source).await,
            (None, Some(_)) if names.is_none() => Err(AuthnError::Token(
                "this frontend accepts no tokens: set --backend-service-account, or use a client certificate"
                    .to_owned(),
            )),
            _ => Err(unknown),
        }
    }

    /// Why forged tokens are not told from genuine ones before a review.
    pub(crate) fn keys_error(&self) -> Option<String> {
        self.tokens.as_ref()?.keys_error()
    }

    /// Identifies the client with these names in its certificate.
    pub(crate) fn by_certificate(&self, names: &Names) -> Result<Identity, AuthnError> {
        let Names { common_name, organizations } = names;
        if let Some(admin) = common_name.as_ref().filter(|name| self.admins.contains(*name)) {
            return Ok(Identity::Admin(admin.as_str().into()));
        }

        let is_in_group = organizations.iter().any(|group| group == NODE_GROUP);
        if let Some(node) = common_name.as_ref().and_then(|name| name.strip_prefix(NODE_USER))
            && is_in_group
            && is_node_name(node)
        {
            return Ok(Identity::Node(node.into()));
        }

        let common_name = common_name.as_deref().unwrap_or_default();
        let organizations = organizations.join(", ");
        Err(AuthnError::UnknownNames(format!(
            "its subject has CN {common_name:?} and O {organizations:?}, but that of a node is CN={NODE_USER}NAME, \
             O={NODE_GROUP}, and any other CN must be an --admin-identity of the frontend"
        )))
    }
}

/// Whether Kubernetes would let a Node have this name (a DNS subdomain).
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= 253 && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(common_name: &str, organization: &str) -> Names {
        Names {
            common_name: Some(common_name.to_owned()).filter(|name| !name.is_empty()),
            organizations: vec![organization.to_owned()],
        }
    }

    fn access() -> Authenticator {
        Authenticator { admins: Arc::new(["ops"].map(str::to_owned).into()), tokens: None }
    }

    #[test]
    fn certificates_identify_nodes_and_admins() {
        let node = |name: &str| Ok(Identity::Node(name.into()));
        let access = access();
        let cases = [
            (names("system:node:a", "system:nodes"), node("a")),
            (names("system:node:a.b-1", "system:nodes"), node("a.b-1")),
            (names("ops", ""), Ok(Identity::Admin("ops".into()))),
        ];
        for (names, expected) in cases {
            assert_eq!(access.by_certificate(&names), expected);
        }
    }

    #[test]
    fn other_certificates_are_not_recognized() {
        let access = access();
        let others = [
            names("system:node:a", "system:masters"),
            names("system:node:", "system:nodes"),
            names("system:node:A", "system:nodes"),
            names("a", "system:nodes"),
            names("", "ops"),
            Names::default(),
        ];
        for names in others {
            let error = access.by_certificate(&names).unwrap_err();
            assert!(matches!(error, AuthnError::UnknownNames(_)), "{names:?}: {error}");
        }
    }
}
