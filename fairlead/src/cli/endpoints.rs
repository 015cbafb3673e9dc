//! The flags of `fairlead endpoints`.

use clap::Args;

use super::ViewArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead endpoints default/web --node node-a              each endpoint: is it used from there, and why not
  fairlead endpoints kube-system/kube-dns --port dns-tcp    one port, as seen from this machine
  fairlead endpoints default/web -o json | jq '.ports[].endpoints[] | select(.cluster.in_pool | not)'

The frontend answers, by what it knows at the moment; `fairlead status --node` says whether the node has it already. Over TLS that is for
admins (--admin-identity), as `fairlead status` is.")]
pub(crate) struct EndpointsArgs {
    /// The Service. Without a namespace: of `default`.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = service)]
    pub(crate) service: ServiceName,

    /// One port of it only, by its name or number.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

/// Which Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Reads `NAMESPACE/NAME`.
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
    fn a_service_has_a_namespace() {
        let of = |namespace: &str, name: &str| ServiceName { namespace: namespace.into(), name: name.into() };
        assert_eq!(service("kube-system/kube-dns"), Ok(of("kube-system", "kube-dns")));
        assert_eq!(service("web"), Ok(of("default", "web")));
        for wrong in ["", "/web", "default/", "a/b/c"] {
            assert!(service(wrong).is_err(), "{wrong}");
        }
    }
}
