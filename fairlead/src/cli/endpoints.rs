//! The flags of `fairlead endpoints`.

use clap::Args;

use super::ViewArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead endpoints default/web --node node-a              each endpoint, and why the node does not use it
  fairlead endpoints kube-system/kube-dns --port dns-tcp    one port, for this machine
  fairlead endpoints default/web -o json | jq '.ports[].endpoints[] | select(.cluster.in_pool | not)'

The frontend answers from its current view; `fairlead status --node` shows whether the node has programmed it.
Over TLS this requires an admin identity (--admin-identity of the frontend), as `fairlead status` does.")]
pub(crate) struct EndpointsArgs {
    /// Explain this Service. Default namespace: default.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = service)]
    pub(crate) service: ServiceName,

    /// Show only this port, by name or number.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

/// The namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Parses `NAMESPACE/NAME`.
pub(super) fn service(text: &str) -> Result<ServiceName, String> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err("expected NAMESPACE/NAME".to_owned());
    }
    Ok(ServiceName { namespace: namespace.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_default_unless_given() {
        let of = |namespace: &str, name: &str| ServiceName { namespace: namespace.into(), name: name.into() };
        assert_eq!(service("kube-system/kube-dns"), Ok(of("kube-system", "kube-dns")));
        assert_eq!(service("web"), Ok(of("default", "web")));
        for wrong in ["", "/web", "default/", "a/b/c"] {
            assert!(service(wrong).is_err(), "{wrong}");
        }
    }
}
