//! The flags for the HTTP endpoints of a backend.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    str::FromStr,
};

use backend::dataplane::DrainedPorts;
use clap::Args;
use runtime::http::OnBindError;

use super::Effective;

#[derive(Clone, Debug, Args)]
pub(crate) struct ObserveArgs {
    /// Serve /healthz (for load balancers), /livez and /readyz (for the kubelet) over HTTP at ADDRESS:PORT, or nowhere
    /// (`none`). 0.0.0.0 and [::] listen in both IP families.
    #[arg(long, env = "FAIRLEAD_HEALTHZ", default_value = DEFAULT_HEALTHZ, value_name = "ADDRESS")]
    pub(crate) healthz: HttpAddress<HEALTHZ_PORT>,

    /// Serve /metrics, /proxyMode, /statusz, /configz and /healthz over HTTP, without authentication, at ADDRESS:PORT,
    /// or nowhere (`none`). /statusz has names of rejected Services.
    #[arg(long, default_value = DEFAULT_METRICS, value_name = "ADDRESS")]
    pub(crate) metrics: HttpAddress<METRICS_PORT>,

    /// Count the open connections of Services on this node, and the source ports of masquerading, for /metrics. Reads
    /// the conntrack table with at most 1 % of a CPU core.
    #[arg(long, env = "FAIRLEAD_CONNECTION_METRICS")]
    pub(crate) connection_metrics: bool,

    /// Exit if an address for HTTP cannot be bound. Default: retry five times a second.
    #[arg(long)]
    pub(crate) bind_address_hard_fail: bool,
}

/// Where a backend answers `GET /drained`. `local` does not: it knows no other node.
#[derive(Clone, Debug, Args)]
pub(crate) struct DrainedPortArgs {
    /// Answer GET /drained (for preStop of pods) over HTTP, without authentication, at this port of all addresses of
    /// the node, and to its kubelet at this port of its pods. 0: nowhere.
    #[arg(long, env = "FAIRLEAD_DRAINED_PORT", default_value_t = DRAINED_PORT, value_name = "PORT")]
    pub(crate) drained_port: u16,

    /// Answer it at the port of --healthz, too, if that listens at all addresses: for older preStop hooks, which are
    /// logged. A later version will not have this flag.
    #[arg(long, env = "FAIRLEAD_DRAINED_AT_HEALTHZ")]
    pub(crate) drained_at_healthz: bool,
}

impl DrainedPortArgs {
    /// The ports, of a backend with this --healthz.
    pub(crate) fn ports(&self, healthz: HttpAddress<HEALTHZ_PORT>) -> DrainedPorts {
        let health = if self.drained_at_healthz { healthz.loopback_port() } else { None };
        DrainedPorts { own: NonZeroU16::new(self.drained_port), health }
    }
}

/// The address of an HTTP server; `None`: it is disabled. `PORT` is the port of an address without a port; with 0, an
/// address needs a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpAddress<const PORT: u16 = 0>(pub(crate) Option<SocketAddr>);

impl<const PORT: u16> HttpAddress<PORT> {
    /// The port, if the server listens at loopback addresses of both IP families.
    pub(crate) fn loopback_port(self) -> Option<NonZeroU16> {
        let address = self.0.filter(|address| address.ip().is_unspecified())?;
        NonZeroU16::new(address.port())
    }
}

impl ObserveArgs {
    /// Listens only at addresses that are set: a shadow leaves the default ports to the proxy that programs the node.
    pub(crate) fn disable_defaults(&mut self, config: &Effective) {
        for (flag, address) in [("healthz", &mut self.healthz.0), ("metrics", &mut self.metrics.0)] {
            if config.is_default(flag) {
                *address = None;
            }
        }
    }

    /// `--bind-address-hard-fail`.
    pub(crate) fn on_bind_error(&self) -> OnBindError {
        if self.bind_address_hard_fail { OnBindError::Fail } else { OnBindError::Retry }
    }
}

/// Where hooks ask by default. No component of Kubernetes or of a network plugin uses it, and it is below the ports of
/// Services (30000) and of outgoing connections (32768).
pub(super) const DRAINED_PORT: u16 = 24256;
/// kube-proxy's `ports.ProxyHealthzPort`, for an address without a port.
pub(super) const HEALTHZ_PORT: u16 = 10256;
/// The address of --healthz where none is given.
pub(super) const DEFAULT_HEALTHZ: &str = "0.0.0.0:10256";
/// kube-proxy's `ports.ProxyStatusPort`.
pub(super) const METRICS_PORT: u16 = 10249;
/// The address of --metrics where none is given.
pub(crate) const DEFAULT_METRICS: &str = "127.0.0.1:10249";

impl<const PORT: u16> FromStr for HttpAddress<PORT> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(Some(address)));
        }
        if PORT != 0
            && let Ok(ip) = text.parse::<IpAddr>()
        {
            return Ok(Self(Some(SocketAddr::new(ip, PORT))));
        }
        Err(format!("{text:?}: expected an address with a port, such as 127.0.0.1:7601 or [::]:7601, or `none`"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Command,
        testing::{local, parse},
    };
    use super::*;

    #[test]
    fn default_addresses_and_ports_are_those_of_kube_proxy() {
        let ObserveArgs { healthz, metrics, .. } = local("nftables", &[]).any.common.observe;
        assert_eq!(healthz, HttpAddress(Some(([0, 0, 0, 0], 10256).into())));
        assert_eq!(metrics, HttpAddress(Some(([127, 0, 0, 1], 10249).into())));
        assert_eq!(local("nftables", &["--healthz", "none"]).any.common.observe.healthz, HttpAddress(None));
        let metrics = local("nftables", &["--metrics", "::"]).any.common.observe.metrics;
        assert_eq!(metrics, HttpAddress(Some("[::]:10249".parse().unwrap())));
        let error = parse(&["backend", "nftables", "--metrics", "10249"]).unwrap_err();
        assert!(error.contains("expected an address with a port"), "{error}");
    }

    #[test]
    fn only_a_backend_answers_drained_and_at_the_old_port_on_request() {
        let ports = |args: &[&str]| {
            let args = [&["backend", "nftables"], args].concat();
            let Command::Backend(command) = parse(&args).unwrap().command else { panic!("another command") };
            let (stream, any) = command.into_parts();
            let DrainedPorts { own, health } = stream.drained.ports(any.common.observe.healthz);
            [own, health].map(|port| port.map_or(0, NonZeroU16::get))
        };

        assert_eq!(ports(&[]), [24256, 0]);
        assert_eq!(ports(&["--drained-port=0"]), [0, 0]);
        assert_eq!(ports(&["--drained-port=1", "--drained-at-healthz"]), [1, 10256]);
        assert_eq!(ports(&["--drained-at-healthz", "--healthz=192.0.2.1:10256"]), [24256, 0]);
        let error = parse(&["local", "--backend=nftables", "--manifests=m", "--drained-port=1"]).unwrap_err();
        assert!(error.contains("--drained-port"), "{error}");
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
