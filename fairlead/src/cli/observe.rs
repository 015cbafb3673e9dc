//! The flags for the HTTP endpoints of a backend.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use clap::Args;
use runtime::{Profiling, http::OnBindError};

use super::Effective;

#[derive(Clone, Debug, Args)]
pub(crate) struct ObserveArgs {
    /// Serve /healthz (for load balancers), /livez and /readyz (for the kubelet) over HTTP, without authentication, at
    /// ADDRESS:PORT, or nowhere (`none`). 0.0.0.0 and [::] listen in both IP families.
    #[arg(long, default_value = "0.0.0.0:10256", value_name = "ADDRESS", value_parser = healthz)]
    pub(crate) healthz: HttpAddress,

    /// Serve /metrics, /proxyMode, /statusz, /configz and /healthz over HTTP, without authentication, at ADDRESS:PORT,
    /// or nowhere (`none`). /statusz contains names of rejected Services.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS", value_parser = metrics)]
    pub(crate) metrics: HttpAddress,

    /// Exit if the address of --healthz or --metrics cannot be bound. Default: retry every five seconds.
    #[arg(long)]
    pub(crate) bind_address_hard_fail: bool,

    #[command(flatten)]
    pub(crate) profiling: ProfilingArgs,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ProfilingArgs {
    /// Serve CPU profiles for `go tool pprof` at --metrics: /debug/pprof/profile?seconds=N.
    #[arg(long)]
    profiling: bool,
}

impl ProfilingArgs {
    /// `--profiling`.
    pub(crate) fn profiling(self) -> Profiling {
        if self.profiling { Profiling::On } else { Profiling::Off }
    }
}

/// An address for an HTTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpAddress {
    Nowhere,
    At(SocketAddr),
}

impl HttpAddress {
    /// The address, if there is one.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Nowhere => None,
            Self::At(address) => Some(address),
        }
    }
}

impl ObserveArgs {
    /// Listens only at addresses that are set: a shadow leaves the default ports to the proxy that programs the node.
    pub(crate) fn disable_defaults(&mut self, config: &Effective) {
        for (flag, address) in [("healthz", &mut self.healthz), ("metrics", &mut self.metrics)] {
            if config.is_default(flag) {
                *address = HttpAddress::Nowhere;
            }
        }
    }

    /// `--bind-address-hard-fail`.
    pub(crate) fn on_bind_error(&self) -> OnBindError {
        if self.bind_address_hard_fail { OnBindError::Fail } else { OnBindError::Retry }
    }
}

/// kube-proxy's `ports.ProxyHealthzPort`, for an address without a port.
const HEALTHZ_PORT: u16 = 10256;
/// kube-proxy's `ports.ProxyStatusPort`.
const METRICS_PORT: u16 = 10249;

fn healthz(text: &str) -> Result<HttpAddress, String> {
    text.parse().map_or_else(|_| text.parse(), |ip: IpAddr| Ok(HttpAddress::At((ip, HEALTHZ_PORT).into())))
}

fn metrics(text: &str) -> Result<HttpAddress, String> {
    text.parse().map_or_else(|_| text.parse(), |ip: IpAddr| Ok(HttpAddress::At((ip, METRICS_PORT).into())))
}

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::Nowhere);
        }
        text.parse().map(Self::At).map_err(|_| {
            format!("{text:?}: expected an address with a port, such as 127.0.0.1:7601 or [::]:7601, or `none`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{local, parse};
    use super::*;

    #[test]
    fn default_addresses_and_ports_are_those_of_kube_proxy() {
        let ObserveArgs { healthz, metrics, .. } = local("nftables", &[]).any.common.observe;
        assert_eq!(healthz, HttpAddress::At(([0, 0, 0, 0], 10256).into()));
        assert_eq!(metrics, HttpAddress::At(([127, 0, 0, 1], 10249).into()));
        assert_eq!(local("nftables", &["--healthz", "none"]).any.common.observe.healthz, HttpAddress::Nowhere);
        let metrics = local("nftables", &["--metrics", "::"]).any.common.observe.metrics;
        assert_eq!(metrics, HttpAddress::At("[::]:10249".parse().unwrap()));
        let error = parse(&["backend", "nftables", "--metrics", "10249"]).unwrap_err();
        assert!(error.contains("expected an address with a port"), "{error}");
    }

    #[test]
    fn bind_errors_are_retried_by_default() {
        assert_eq!(local("nftables", &[]).any.common.observe.on_bind_error(), OnBindError::Retry);
        assert_eq!(
            local("nftables", &["--bind-address-hard-fail"]).any.common.observe.on_bind_error(),
            OnBindError::Fail
        );
    }
}
