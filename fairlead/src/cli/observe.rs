//! The flags that say where a node's agent tells of itself.

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use runtime::{Profiling, http::OnBindError};

use super::Effective;

#[derive(Clone, Debug, Args)]
pub(crate) struct ObserveArgs {
    /// Where to answer /healthz (for load balancers), /livez and /readyz (for the kubelet) over HTTP, for everybody who can connect:
    /// ADDRESS:PORT, or `none` for nowhere. 0.0.0.0 and [::] are both families.
    #[arg(long, default_value = "0.0.0.0:10256", value_name = "ADDRESS", value_parser = healthz)]
    pub(crate) healthz: HttpAddress,

    /// Where to answer /metrics, /proxyMode, /statusz, /configz and /healthz over HTTP, for everybody who can connect: ADDRESS:PORT, or
    /// `none` for nowhere. /statusz names Services that could not be programmed.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS", value_parser = metrics)]
    pub(crate) metrics: HttpAddress,

    /// End when --healthz or --metrics cannot be listened at. Otherwise that is tried again every five seconds.
    #[arg(long)]
    pub(crate) bind_address_hard_fail: bool,

    #[command(flatten)]
    pub(crate) profiling: ProfilingArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ProfilingArgs {
    /// Answer /debug/pprof/profile?seconds=N at --metrics too: where this process spends its time, for `go tool pprof`.
    #[arg(long)]
    profiling: bool,
}

impl ProfilingArgs {
    /// Whether profiles are made.
    pub(crate) fn profiling(self) -> Profiling {
        if self.profiling { Profiling::On } else { Profiling::Off }
    }
}

/// Where something is served over HTTP.
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
    /// Listens nowhere but where somebody has said so.
    pub(crate) fn leave_to_others(&mut self, config: &Effective) {
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

/// kube-proxy's `ports.ProxyHealthzPort`, which an address without a port gets.
const HEALTHZ_PORT: u16 = 10256;
/// kube-proxy's `ports.ProxyStatusPort`.
const METRICS_PORT: u16 = 10249;

fn healthz(text: &str) -> Result<HttpAddress, String> {
    text.parse().map_or_else(|_| address(text), |ip: IpAddr| Ok(HttpAddress::At((ip, HEALTHZ_PORT).into())))
}

fn metrics(text: &str) -> Result<HttpAddress, String> {
    text.parse().map_or_else(|_| address(text), |ip: IpAddr| Ok(HttpAddress::At((ip, METRICS_PORT).into())))
}

/// Reads such an address with its port.
pub(super) fn address(text: &str) -> Result<HttpAddress, String> {
    if text == "none" {
        return Ok(HttpAddress::Nowhere);
    }
    let address = text.parse().map_err(|_| {
        format!("{text:?} is no address with a port, such as 127.0.0.1:7601 or [::]:7601, and not `none`")
    })?;
    Ok(HttpAddress::At(address))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{local, parse};
    use super::*;

    #[test]
    fn addresses_and_ports_are_kube_proxys() {
        let ObserveArgs { healthz, metrics, .. } = local(&[]).any.observe;
        assert_eq!(healthz, HttpAddress::At(([0, 0, 0, 0], 10256).into()));
        assert_eq!(metrics, HttpAddress::At(([127, 0, 0, 1], 10249).into()));
        assert_eq!(local(&["--healthz", "none"]).any.observe.healthz, HttpAddress::Nowhere);
        let metrics = local(&["--metrics", "::"]).any.observe.metrics;
        assert_eq!(metrics, HttpAddress::At("[::]:10249".parse().unwrap()));
        let error = parse(&["backend", "nft", "--metrics", "10249"]).unwrap_err();
        assert!(error.contains("no address with a port"), "{error}");
    }

    #[test]
    fn a_taken_address_is_tried_again_unless_told_otherwise() {
        assert_eq!(local(&[]).any.observe.on_bind_error(), OnBindError::Retry);
        assert_eq!(local(&["--bind-address-hard-fail"]).any.observe.on_bind_error(), OnBindError::Fail);
    }
}
