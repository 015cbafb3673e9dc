//! What an operator decides about IPVS, besides what all backends are told.

use std::{str::FromStr, sync::Arc, time::Duration};

use agent::traffic::Options;
use ipnet::IpNet;
use netlink::ipvs::{SCHED_FALLBACK, SCHED_PORT, Timeouts};

/// How the backend works. The same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How traffic of this node is treated.
    pub traffic: Options,
    /// How virtual servers choose among their destinations: kube-proxy's `--ipvs-scheduler`.
    pub scheduler: Scheduler,
    /// How long IPVS remembers idle connections; 0 leaves a timeout as it is: kube-proxy's `--ipvs-tcp-timeout` and its siblings.
    pub timeouts: Timeouts,
    /// Who is told that the node has the VIPs: kube-proxy's `--ipvs-strict-arp`.
    pub arp: Arp,
    /// What lies in these ranges is left alone: kube-proxy's `--ipvs-exclude-cidrs`.
    pub exclude: Vec<IpNet>,
    /// How long the TCP connections of an endpoint that leaves may go on.
    pub drain: Duration,
    /// Which iptables keeps the rules; `None`: the one in use.
    pub iptables: Option<Iptables>,
}

/// Which neighbours get an answer when they ask for a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arp {
    /// As the node is set up.
    #[default]
    AsItIs,
    /// None: an interface answers for its own addresses only (`arp_ignore` 1, `arp_announce` 2).
    Strict,
}

/// Which of the two iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iptables {
    /// In nf_tables.
    Nft,
    /// In ip_tables, the older way.
    Legacy,
}

/// How a virtual server chooses among its destinations: one of [`SCHEDULERS`], with `:` and flags behind `sh` and `mh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// The kernel's name.
    pub(crate) name: Arc<str>,
    /// `IP_VS_SVC_F_SCHED*`.
    pub(crate) flags: u32,
}

/// The schedulers that can be chosen, as the kernel calls them.
pub const SCHEDULERS: [&str; 9] = ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"];

/// Why a text is no scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadScheduler {
    /// There is none of that name.
    #[error("{0:?}: expected one of rr, wrr, lc, wlc, sh, dh, sed, nq, mh")]
    Unknown(String),
    /// It has no such flag.
    #[error("{0:?}: sh and mh have the flags fallback and port, as in mh:fallback,port; others have none")]
    Flag(String),
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            traffic: Options::default(),
            scheduler: Scheduler::default(),
            timeouts: Timeouts::default(),
            arp: Arp::default(),
            exclude: Vec::new(),
            drain: Duration::from_secs(15 * 60),
            iptables: None,
        }
    }
}

// === impl Scheduler ===

impl Default for Scheduler {
    fn default() -> Self {
        Self { name: "rr".into(), flags: 0 }
    }
}

impl FromStr for Scheduler {
    type Err = BadScheduler;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, words) = text.split_once(':').unwrap_or((text, ""));
        if !SCHEDULERS.contains(&name) {
            return Err(BadScheduler::Unknown(name.to_owned()));
        }
        let mut flags = 0;
        for word in words.split(',').filter(|word| !word.is_empty()) {
            flags |= match word {
                "fallback" if matches!(name, "sh" | "mh") => SCHED_FALLBACK,
                "port" if matches!(name, "sh" | "mh") => SCHED_PORT,
                _ => return Err(BadScheduler::Flag(text.to_owned())),
            };
        }
        Ok(Self { name: name.into(), flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_are_read_with_their_flags() {
        let read = |text: &str| {
            text.parse::<Scheduler>().map(|scheduler| (scheduler.name.to_string(), scheduler.flags))
        };
        assert_eq!(read("rr"), Ok(("rr".to_owned(), 0)));
        assert_eq!(read("mh:fallback,port"), Ok(("mh".to_owned(), SCHED_FALLBACK | SCHED_PORT)));
        assert_eq!(read("sh:port"), Ok(("sh".to_owned(), SCHED_PORT)));
        assert_eq!(read("fo"), Err(BadScheduler::Unknown("fo".to_owned())));
        assert_eq!(read("wlc:port"), Err(BadScheduler::Flag("wlc:port".to_owned())));
        assert_eq!(read("mh:sticky"), Err(BadScheduler::Flag("mh:sticky".to_owned())));
    }
}
