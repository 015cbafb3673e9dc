//! Discovers frontends: the ready endpoints of their Service, from the API server. The kubeconfig must name that server
//! by its own address, so that this works on a node that serves no Services yet.

use std::{fmt, path::PathBuf};

use backend::{Discover, FrontendAddress};
use futures::future::BoxFuture;

/// Discovers the frontends behind a port of a Service, to connect over TLS: `kubernetes:NAMESPACE/NAME`, or
/// `kubernetes:NAMESPACE/NAME:PORT` if the Service has several ports.
#[derive(Clone, Debug)]
pub(crate) struct ServiceDiscovery {
    namespace: String,
    name: String,
    /// Name or number.
    port: Option<String>,
    kubeconfig: PathBuf,
}

const SCHEME: &str = "kubernetes:";

impl ServiceDiscovery {
    /// Whether the text of an address has the scheme of a Service.
    pub(crate) fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Parses the address of a Service.
    pub(crate) fn new(text: &str, kubeconfig: PathBuf) -> Result<Self, String> {
        let Some((namespace, rest)) = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')) else {
            return Err(format!("{text:?}: expected {SCHEME}NAMESPACE/SERVICE or {SCHEME}NAMESPACE/SERVICE:PORT"));
        };
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        for part in [Some(namespace), Some(name), port].into_iter().flatten() {
            if !is_name(part) {
                return Err(format!("{text:?}: {part:?} is not a valid name"));
            }
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port: port.map(str::to_owned), kubeconfig })
    }

    async fn find(&self) -> anyhow::Result<Vec<FrontendAddress>> {
        let Self { namespace, name, port, kubeconfig } = self;
        let addresses = frontend::discover_frontends(kubeconfig, namespace, name, port.as_deref()).await?;
        let mut found = Vec::new();
        for address in addresses {
            let server_name = Some(format!("{name}.{namespace}.svc"));
            found.push(FrontendAddress { uri: format!("https://{address}"), server_name });
        }
        Ok(found)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
}

impl fmt::Display for ServiceDiscovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.namespace, self.name)?;
        self.port.iter().try_for_each(|port| write!(f, ":{port}"))
    }
}

impl Discover for ServiceDiscovery {
    fn discover(&self) -> BoxFuture<'_, anyhow::Result<Vec<FrontendAddress>>> {
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
            assert_eq!(ServiceDiscovery::new(text, PathBuf::new()).unwrap().to_string(), text);
        }
        for text in ["fairlead", "/fairlead", "a/", "a/b:", "a b/c", "a/b/c"] {
            assert!(ServiceDiscovery::new(&format!("{SCHEME}{text}"), PathBuf::new()).is_err(), "{text}");
        }
    }
}
