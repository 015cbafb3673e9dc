//! The flags of the commands that show or test the view of a node: `fairlead watch`, `services`, `endpoints`, `test`;
//! and of `fairlead plan`.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::{Result, bail};
use clap::Args;
use proto::state::ServiceName;

use super::{FrontendAddressArgs, RunningBackendArgs, node};
use crate::{config::duration, print::OutputArgs};

/// A node, and how its view is shown.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Show the view of this node, its Node's metadata.name. Default: this machine's host name.
    #[arg(long, visible_alias = "node-name", env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node: Option<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// List Fairlead's IPVS virtual servers in this node's kernel instead, with endpoints, connections and drain
    /// deadlines. For the other backends use `nft list table ip fairlead1` (`ip6`) and `iptables-save`.
    // No conflict with the flags for a frontend: their variables may be set for the backend of this node.
    #[arg(long)]
    pub(crate) kernel: bool,

    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead endpoints default/web --node node-a             each endpoint, and why it is not used
  fairlead endpoints kube-system/kube-dns --port dns-tcp   one port, for this machine
  fairlead endpoints default/web -o json | jq '.ports[].endpoints[] | select(.local.in_pool)'

The frontend answers from its current view; `fairlead status --node` shows
whether the node has programmed it. Over TLS this requires the identity of the
node, or an admin identity (--admin-identity of the frontend).")]
pub(crate) struct EndpointsArgs {
    /// Explain this Service, of the namespace `default` unless one is given.
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = service)]
    pub(crate) service: ServiceArg,

    /// The namespace of the Service.
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Show only this port, by name or number.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead plan -f service.yaml                   what would change, on which nodes
  kubectl kustomize app/ | fairlead plan -f -     the same, from standard input
  fairlead plan -f service.yaml -o json | jq '.changes[].lost_endpoints'

Exit codes:
  0  all Services and EndpointSlices are planned, no node would lose all
     endpoints of a Service, and there would be no new VIP conflict
  1  a node would lose all endpoints of a Service, there would be a new VIP
     conflict, or an object is not planned: it has no name, no valid apiVersion,
     or is ignored as a whole
  2  the command could not run, or the files have no Service or EndpointSlice
A VIP or node port that a Service claims and another object has is in conflict.
Addresses that limits of the operator refuse are problems, but not conflicts.

The API server is not asked: what it would allocate or keep is added (cluster
IPs, node ports, load-balancer IPs, the creation time), and the EndpointSlices
that exist are used. Over TLS this requires an admin identity (--admin-identity
of the frontend). At most 64 objects and 1 MiB.")]
pub(crate) struct PlanArgs {
    /// Read Services and EndpointSlices from this file (YAML or JSON), or from standard input (`-`). May be given
    /// several times.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead log --since 10m                     what changed in the last ten minutes, newest first
  fairlead log --service default/web -o json   of one Service
  fairlead log --node node-a                   what concerned one node

One frontend answers, with what it has committed since it started: the last
changes of each namespace, 8,192 and 8 MiB in total, at most 1,000 at a time.
Over TLS this requires an admin identity (--admin-identity of the frontend), or
with --node the identity of that node, which is told only times and service
ports.")]
pub(crate) struct ChangesArgs {
    /// List only changes of this Service, of the namespace `default` unless one is given.
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = service)]
    pub(crate) service: Option<ServiceArg>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// List only changes that concern this node.
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// List only changes of the last TIME, as in 10m. Default: all that are known.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The Services that a command is about, selected as kubectl does.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// Select the Services of this namespace.
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Select the Services of all namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// A Service, with or without its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceArg {
    namespace: Option<String>,
    name: String,
}

impl ServiceArg {
    /// The Service, where `namespace` is that of `--namespace`.
    pub(crate) fn in_namespace(self, namespace: Option<&str>) -> Result<ServiceName> {
        let Self { namespace: own, name } = self;
        if let (Some(own), Some(other)) = (&own, namespace)
            && own != other
        {
            bail!("{own}/{name} is not in the namespace of --namespace {other}: leave one of them out");
        }
        let namespace = own.as_deref().or(namespace).unwrap_or("default");
        Ok(ServiceName { namespace: namespace.into(), name: name.into() })
    }
}

/// Parses `NAMESPACE/NAME` or `NAME`.
pub(super) fn service(text: &str) -> std::result::Result<ServiceArg, String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    if namespace == Some("") || name.is_empty() || name.contains('/') {
        return Err("expected NAMESPACE/NAME or NAME".to_owned());
    }
    Ok(ServiceArg { namespace: namespace.map(str::to_owned), name: name.to_owned() })
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead test                                    every Service that this node serves
  fairlead test --service default/web --count 20   one Service, 20 connections to each VIP

Exit codes:
  0  every result was as the frontend's view predicts
  1  a result was different
  2  the command could not run

A node cannot test what only external clients see: source ranges, external
policy Local, and the path through a load balancer. SCTP is not tested.
Connections are real: servers accept them, and each UDP port receives one byte.")]
pub(crate) struct TestArgs {
    /// Test only this Service, of the namespace `default` unless one is given. May be given several times.
    #[arg(long = "service", value_name = "[NAMESPACE/]NAME", value_parser = service)]
    pub(crate) services: Vec<ServiceArg>,

    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// Open this many connections to each VIP.
    #[arg(long, default_value = "6", value_name = "NUMBER")]
    pub(crate) count: NonZeroUsize,

    /// Wait this long for a connection, or for a reply over UDP.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Test at most this many VIPs. The number of those left out is printed.
    #[arg(long, default_value = "1000", value_name = "NUMBER")]
    pub(crate) limit: NonZeroUsize,

    #[command(flatten)]
    pub(crate) running: RunningBackendArgs,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

impl ViewArgs {
    /// `--node`, or this machine's host name.
    pub(crate) fn node_name(&self) -> Result<String> {
        node::node_name(self.node.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::parse, *};

    #[test]
    fn only_services_are_listed_from_the_kernel() {
        assert!(parse(&["services", "--kernel", "-o", "json"]).is_ok());
        assert!(parse(&["services", "--node", "node-a"]).is_ok());
        assert!(parse(&["services", "-n", "shop", "--node", "node-a"]).is_ok());
        assert!(parse(&["services", "-A"]).is_ok());
        assert!(parse(&["watch", "--kernel"]).is_err());
    }

    #[test]
    fn namespace_is_default_unless_given() {
        let of = |namespace: &str, name: &str| ServiceName { namespace: namespace.into(), name: name.into() };
        let named = |text: &str, namespace| service(text).unwrap().in_namespace(namespace);
        assert_eq!(named("kube-system/kube-dns", None).unwrap(), of("kube-system", "kube-dns"));
        assert_eq!(named("web", None).unwrap(), of("default", "web"));
        assert_eq!(named("web", Some("shop")).unwrap(), of("shop", "web"));
        assert_eq!(named("shop/web", Some("shop")).unwrap(), of("shop", "web"));
        let error = named("shop/web", Some("other")).unwrap_err().to_string();
        assert!(error.contains("leave one of them out"), "{error}");
        for line in ["endpoints web -n shop", "log -n shop", "log -A", "test -n shop --service web", "test -A"] {
            assert!(parse(&line.split(' ').collect::<Vec<_>>()).is_ok(), "{line}");
        }
        assert!(parse(&["log", "-A", "-n", "shop"]).is_err());
        for wrong in ["", "/web", "default/", "a/b/c"] {
            assert!(service(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_above_zero() {
        assert!(parse(&["test"]).is_ok());
        assert!(parse(&["test", "--service", "default/web", "--count", "20"]).is_ok());
        for flag in ["--count", "--limit"] {
            assert!(parse(&["test", flag, "0"]).is_err());
        }
    }
}
