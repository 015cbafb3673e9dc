//! The flags of the IPVS backend, named as kube-proxy's.

use std::time::Duration;

use anyhow::{Result, bail};
use backend::dataplane::DataplaneOptions;
use backend_ipvs::{Arp, IpvsTimeouts, Settings};
use clap::Args;
use ipnet::IpNet;
use iptables::VariantSelection;
use proto::model::IpvsScheduler;

use crate::{
    config::{cidr, duration},
    modes::Mode,
};

#[derive(Debug, Default, PartialEq, Args)]
pub(crate) struct IpvsArgs {
    /// For ipvs: schedule connections with rr, wrr, lc, wlc, sh, dh, sed, nq or mh; sh and mh take flags, as in
    /// mh:fallback,port. Default: rr.
    #[arg(long, env = "FAIRLEAD_IPVS_SCHEDULER", value_name = "SCHEDULER")]
    pub(crate) ipvs_scheduler: Option<IpvsScheduler>,

    /// For ipvs: do not answer ARP requests for VIPs (arp_ignore 1, arp_announce 2).
    #[arg(long, env = "FAIRLEAD_IPVS_STRICT_ARP")]
    pub(crate) ipvs_strict_arp: bool,

    /// For ipvs: keep idle TCP connections this long, as in 15m. Default: unchanged.
    #[arg(long, env = "FAIRLEAD_IPVS_TCP_TIMEOUT", value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_tcp_timeout: Option<Duration>,

    /// For ipvs: keep TCP connections that one side has closed this long. Default: unchanged.
    #[arg(long, env = "FAIRLEAD_IPVS_TCPFIN_TIMEOUT", value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_tcpfin_timeout: Option<Duration>,

    /// For ipvs: keep UDP flows this long. Default: unchanged.
    #[arg(long, env = "FAIRLEAD_IPVS_UDP_TIMEOUT", value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_udp_timeout: Option<Duration>,

    /// For ipvs: drain TCP connections of removed endpoints for at most this long; 0 ends them at once. Default: 15m.
    #[arg(long, env = "FAIRLEAD_IPVS_DRAIN_TIMEOUT", value_name = "TIME", value_parser = duration)]
    pub(crate) ipvs_drain_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,
}

#[derive(Clone, Debug, Default, PartialEq, Args)]
pub(crate) struct ExcludeArgs {
    /// For ipvs: ignore virtual servers and addresses in these CIDRs, comma-separated.
    #[arg(
        long,
        env = "FAIRLEAD_IPVS_EXCLUDE_CIDRS",
        value_delimiter = ',',
        value_name = "CIDR",
        value_parser = cidr
    )]
    pub(crate) ipvs_exclude_cidrs: Vec<IpNet>,
}

impl IpvsArgs {
    /// The settings of the IPVS backend.
    pub(crate) fn settings(self, dataplane: DataplaneOptions, variant: VariantSelection) -> Settings {
        let default = Settings::default();
        Settings {
            dataplane,
            scheduler: self.ipvs_scheduler.unwrap_or(default.scheduler),
            timeouts: IpvsTimeouts {
                tcp: seconds(self.ipvs_tcp_timeout),
                tcp_fin: seconds(self.ipvs_tcpfin_timeout),
                udp: seconds(self.ipvs_udp_timeout),
            },
            arp: if self.ipvs_strict_arp { Arp::Strict } else { Arp::AsItIs },
            exclude: self.exclude.ipvs_exclude_cidrs,
            drain: self.ipvs_drain_timeout.unwrap_or(default.drain),
            iptables: variant,
        }
    }

    /// Rejects the flags for other backends.
    pub(crate) fn validate(&self, mode: Mode) -> Result<()> {
        if mode != Mode::Ipvs && *self != Self::default() {
            bail!("the flags --ipvs-... apply to the ipvs backend only");
        }
        Ok(())
    }
}

/// 0: unchanged.
fn seconds(time: Option<Duration>) -> u32 {
    time.map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use iptables::Variant;

    use super::{
        super::testing::{local, parse},
        *,
    };

    fn settings(args: &[&str]) -> Settings {
        let args = local("ipvs", args).any;
        args.ipvs.settings(DataplaneOptions::default(), args.iptables.variant.variant().into())
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
        assert_eq!(given.iptables, Some(Variant::Legacy).into());
        assert!(parse(&["local", "--backend", "ipvs", "--ipvs-scheduler", "best"]).is_err());
    }

    #[test]
    fn flags_apply_to_ipvs_only() {
        for flag in ["--ipvs-strict-arp", "--ipvs-exclude-cidrs=10.0.0.0/8", "--ipvs-tcp-timeout=1m"] {
            let error = parse(&["local", "--backend=iptables", flag]).unwrap_err();
            assert!(error.contains("ipvs backend only"), "{error}");
        }
    }
}
