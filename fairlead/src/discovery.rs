//! Frontends found through the API server: the ready endpoints of their Service. That server is reached by its own address, which a
//! kubeconfig tells, so that it works on a node where no Service does yet.

use std::{fmt, path::PathBuf, str::FromStr};

use anyhow::Result;
use backend::{Discover, FrontendAddress};
use futures::future::BoxFuture;

/// Those of one Service, over TLS.
#[derive(Clone, Debug)]
pub(crate) struct EndpointsOf {
    service: FrontendService,
    kubeconfig: PathBuf,
}

/// A Service, and which of its ports: `kubernetes:NAMESPACE/NAME`, with `:PORT` behind it where it has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendService {
    namespace: String,
    name: String,
    /// Name or number.
    port: Option<String>,
}

const SCHEME: &str = "kubernetes:";

// === impl FrontendService ===

impl FromStr for FrontendService {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        let (namespace, rest) = parts
            .ok_or_else(|| format!("{text:?}: expected {SCHEME}NAMESPACE/SERVICE or {SCHEME}NAMESPACE/SERVICE:PORT"))?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let is_word =
            |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
        for word in [Some(namespace), Some(name), port].into_iter().flatten() {
            if !is_word(word) {
                return Err(format!("{text:?}: {word:?} is no name"));
            }
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port: port.map(str::to_owned) })
    }
}

impl FrontendService {
    /// Whether an address is meant to be read as one.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl fmt::Display for FrontendService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.namespace, self.name)?;
        self.port.iter().try_for_each(|port| write!(f, ":{port}"))
    }
}

// === impl EndpointsOf ===

impl EndpointsOf {
    pub(crate) fn new(service: FrontendService, kubeconfig: PathBuf) -> Self {
        Self { service, kubeconfig }
    }

    async fn find(&self) -> Result<Vec<FrontendAddress>> {
        let FrontendService { namespace, name, port } = &self.service;
        let found = frontend::discover_frontends(&self.kubeconfig, namespace, name, port.as_deref()).await?;
        let candidate = |address| FrontendAddress {
            uri: format!("https://{address}"),
            server_name: Some(format!("{name}.{namespace}.svc")),
        };
        Ok(found.into_iter().map(candidate).collect())
    }
}

impl fmt::Display for EndpointsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)
    }
}

impl Discover for EndpointsOf {
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>> {
        Box::pin(self.find())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_as_they_are_shown() {
        let bare = "kubernetes:kube-system/fairlead";
        for text in [bare, "kubernetes:kube-system/fairlead:grpc", "kubernetes:a/b:7600"] {
            assert_eq!(text.parse::<FrontendService>().unwrap().to_string(), text);
        }
        for text in ["fairlead", "/fairlead", "a/", "a/b:", "a b/c", "a/b/c"] {
            assert!(format!("{SCHEME}{text}").parse::<FrontendService>().is_err(), "{text}");
        }
    }
}
