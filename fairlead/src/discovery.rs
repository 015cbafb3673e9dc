//! Discovers frontends: the ready endpoints of their Service, from the API server. The kubeconfig must name that server
//! by its own address, so that this works on a node that serves no Services yet.

use std::{fmt, path::PathBuf, str::FromStr};

use anyhow::Result;
use backend::{Discover, FrontendAddress};
use futures::future::BoxFuture;

/// Discovers the frontends behind a Service, to connect over TLS.
#[derive(Clone, Debug)]
pub(crate) struct ServiceDiscovery {
    service: FrontendService,
    kubeconfig: PathBuf,
}

/// A Service and one of its ports: `kubernetes:NAMESPACE/NAME`, or `kubernetes:NAMESPACE/NAME:PORT` if it has several.
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
        let is_name =
            |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
        if let Some(part) = [Some(namespace), Some(name), port].into_iter().flatten().find(|part| !is_name(part)) {
            return Err(format!("{text:?}: {part:?} is not a valid name"));
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port: port.map(str::to_owned) })
    }
}

impl FrontendService {
    /// Whether the text of an address has the scheme of a Service.
    pub(crate) fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl fmt::Display for FrontendService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.namespace, self.name)?;
        self.port.iter().try_for_each(|port| write!(f, ":{port}"))
    }
}

// === impl ServiceDiscovery ===

impl ServiceDiscovery {
    pub(crate) fn new(service: FrontendService, kubeconfig: PathBuf) -> Self {
        Self { service, kubeconfig }
    }

    async fn find(&self) -> Result<Vec<FrontendAddress>> {
        let FrontendService { namespace, name, port } = &self.service;
        let addresses = frontend::discover_frontends(&self.kubeconfig, namespace, name, port.as_deref()).await?;
        let frontend_address = |address| FrontendAddress {
            uri: format!("https://{address}"),
            server_name: Some(format!("{name}.{namespace}.svc")),
        };
        Ok(addresses.into_iter().map(frontend_address).collect())
    }
}

impl fmt::Display for ServiceDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)
    }
}

impl Discover for ServiceDiscovery {
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>> {
        Box::pin(self.find())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_parsed_as_printed() {
        let bare = "kubernetes:kube-system/fairlead";
        for text in [bare, "kubernetes:kube-system/fairlead:grpc", "kubernetes:a/b:7600"] {
            assert_eq!(text.parse::<FrontendService>().unwrap().to_string(), text);
        }
        for text in ["fairlead", "/fairlead", "a/", "a/b:", "a b/c", "a/b/c"] {
            assert!(format!("{SCHEME}{text}").parse::<FrontendService>().is_err(), "{text}");
        }
    }
}
