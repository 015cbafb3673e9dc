//! The flags of the IPVS backend, kube-proxy's where it has them.

use std::time::Duration;

use anyhow::{Result, bail};
use backend::dataplane::DataplaneOptions;
use backend_ipvs::{Arp, IpvsTimeouts, Settings};
use clap::Args;
use ipnet::IpNet;
use proto::model::IpvsScheduler;

use super::{BackendName, VariantArgs};

#[derive(Debug, Args)]
pub(crate) struct IpvsArgs {
    /// For ipvs: how virtual servers choose among their endpoints: rr, wrr, lc, wlc, sh, dh, sed, nq or mh; sh and mh with flags, as in
    /// mh:fallback,port. Without it, rr. The annotation fairlead.io/ipvs-scheduler of a Service goes before.
    #[arg(long, value_name = "SCHEDULER")]
    pub(crate) ipvs_scheduler: Option<IpvsScheduler>,

    /// For ipvs: neighbours that ask for a VIP get no answer (arp_ignore 1, arp_announce 2).
    #[arg(long)]
    pub(crate) ipvs_strict_arp: bool,

    /// For ipvs: how long an idle TCP connection is remembered, as in 15m; the default leaves it as it is.
    #[arg(long, value_name = "DURATION", value_parser = super::conntrack::duration)]
    pub(crate) ipvs_tcp_timeout: Option<Duration>,

    /// For ipvs: the same of one that has been closed from one side.
    #[arg(long, value_name = "DURATION", value_parser = super::conntrack::duration)]
    pub(crate) ipvs_tcpfin_timeout: Option<Duration>,

    /// For ipvs: the same of a UDP flow.
    #[arg(long, value_name = "DURATION", value_parser = super::conntrack::duration)]
    pub(crate) ipvs_udp_timeout: Option<Duration>,

    /// For ipvs: how long the TCP connections of an endpoint that leaves may go on; 0 ends them at once. Without it, 15m.
    #[arg(long, value_name = "DURATION", value_parser = super::conntrack::duration)]
    pub(crate) ipvs_drain_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExcludeArgs {
    /// For ipvs: virtual servers and addresses in these ranges are left alone, comma-separated.
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    pub(crate) ipvs_exclude_cidrs: Vec<IpNet>,
}

impl IpvsArgs {
    /// What the flags say together.
    pub(crate) fn settings(self, dataplane: DataplaneOptions, iptables: &VariantArgs) -> Settings {
        let Self {
            ipvs_scheduler,
            ipvs_strict_arp,
            ipvs_tcp_timeout,
            ipvs_tcpfin_timeout,
            ipvs_udp_timeout,
            ipvs_drain_timeout,
            exclude,
        } = self;
        let seconds =
            |duration: Option<Duration>| duration.map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        let default = Settings::default();
        Settings {
            dataplane,
            scheduler: ipvs_scheduler.unwrap_or(default.scheduler),
            timeouts: IpvsTimeouts {
                tcp: seconds(ipvs_tcp_timeout),
                tcp_fin: seconds(ipvs_tcpfin_timeout),
                udp: seconds(ipvs_udp_timeout),
            },
            arp: if ipvs_strict_arp { Arp::Strict } else { Arp::AsItIs },
            exclude: exclude.ipvs_exclude_cidrs,
            drain: ipvs_drain_timeout.unwrap_or(default.drain),
            iptables: iptables.variant(),
        }
    }

    /// The flags are of use for one backend only.
    pub(crate) fn check(&self, backend: BackendName) -> Result<()> {
        let Self {
            ipvs_scheduler,
            ipvs_strict_arp,
            ipvs_tcp_timeout,
            ipvs_tcpfin_timeout,
            ipvs_udp_timeout,
            ipvs_drain_timeout,
            exclude,
        } = self;
        exclude.check(Some(backend))?;
        let durations = [ipvs_tcp_timeout, ipvs_tcpfin_timeout, ipvs_udp_timeout, ipvs_drain_timeout];
        let is_given =
            ipvs_scheduler.is_some() || *ipvs_strict_arp || durations.iter().any(|duration| duration.is_some());
        if is_given && backend != BackendName::Ipvs {
            bail!("the flags --ipvs-... are of no use without the ipvs backend");
        }
        Ok(())
    }
}

impl ExcludeArgs {
    /// See [`IpvsArgs::check`].
    pub(crate) fn check(&self, backend: Option<BackendName>) -> Result<()> {
        if !self.ipvs_exclude_cidrs.is_empty() && backend != Some(BackendName::Ipvs) {
            bail!("--ipvs-exclude-cidrs is of no use without the ipvs backend");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use iptables::Variant;

    use super::{
        super::testing::{local, parse},
        *,
    };

    fn settings(args: &[&str]) -> Settings {
        let args = local(args).any;
        args.ipvs.settings(DataplaneOptions::default(), &args.iptables.variant)
    }

    #[test]
    fn flags_become_settings() {
        assert_eq!(settings(&[]), Settings::default());
        let given = settings(&[
            "--ipvs-scheduler=mh:port",
            "--ipvs-strict-arp",
            "--ipvs-tcp-timeout=15m",
            "--ipvs-udp-timeout=30s",
            "--ipvs-drain-timeout=0s",
            "--ipvs-exclude-cidrs=192.0.2.0/24,2001:db8::/64",
            "--iptables-variant=legacy",
        ]);
        assert_eq!(given.scheduler, "mh:port".parse().unwrap());
        assert_eq!(given.timeouts, IpvsTimeouts { tcp: 900, tcp_fin: 0, udp: 30 });
        assert_eq!((given.arp, given.drain, given.exclude.len()), (Arp::Strict, Duration::ZERO, 2));
        assert_eq!(given.iptables, Some(Variant::Legacy));
        assert!(parse(&["local", "--backend", "ipvs", "--ipvs-scheduler", "best"]).is_err());
    }

    #[test]
    fn flags_belong_to_ipvs() {
        assert!(local(&["--ipvs-strict-arp"]).any.ipvs.check(BackendName::Nft).is_err());
        assert!(local(&["--ipvs-exclude-cidrs=10.0.0.0/8"]).any.ipvs.check(BackendName::Iptables).is_err());
        assert!(local(&["--ipvs-strict-arp"]).any.ipvs.check(BackendName::Ipvs).is_ok());
        assert!(local(&[]).any.ipvs.check(BackendName::Nft).is_ok());
    }
}
