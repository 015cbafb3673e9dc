//! The kernel objects that do not depend on service ports: finds the missing and differing ones, and supplies them. A
//! sysctl is written only if its value differs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use backend::{Difference, DifferenceKind};
use iptables::{ChainSpec, block_on};
use netlink::{ipvs, rtnl};
use proto::model::{IpFamily, PerFamily};
use tracing::debug;

use super::{
    super::{Prepared, UnusableFamily, rules},
    DEVICE, Worker,
};
use crate::{set::SetId, settings::Arp};

/// See `Documentation/networking/ipvs-sysctl.rst`.
const IPVS_SYSCTLS: [(&str, &str); 3] = [
    // Connections are tracked, so that they can be masqueraded.
    ("ipv4/vs/conntrack", "1"),
    // Packets of a connection to a deleted destination end the connection, instead of being dropped until it times out.
    ("ipv4/vs/expire_nodest_conn", "1"),
    // A persistent client is not sent to a destination that drains.
    ("ipv4/vs/expire_quiescent_template", "1"),
];

/// The sysctl for clients that reuse the port of a closed connection while its entry exists, for two minutes.
const REUSE_MODE: &str = "ipv4/vs/conn_reuse_mode";

/// From this version of Linux on, IPVS replaces the entry. Earlier versions drop the first packet if conntrack has an
/// entry too, which delays the connection by a second.
const REPLACES_REUSED: (u32, u32) = (5, 9);

/// See `Documentation/networking/ip-sysctl.rst`.
const STRICT_ARP_SYSCTLS: [(&str, &str); 2] = [("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")];

/// The prerequisites that a node lacks, and the families that cannot be prepared.
#[derive(Default)]
struct Prerequisites {
    /// The prerequisites that are missing or differ, in the order in which they are supplied.
    missing: Vec<Missing>,
    unusable: Vec<UnusableFamily>,
}

/// A prerequisite that is missing or differs.
struct Missing {
    /// The line of a preview.
    difference: Difference,
    /// The number of writes that `supply` makes.
    writes: usize,
    /// The family that needs it; `None`: both.
    family: Option<IpFamily>,
    supply: Supply,
}

type Supply = Box<dyn FnOnce(&mut Worker) -> Result<()>>;

// === impl Missing ===

impl Missing {
    /// A prerequisite of both families, which `supply` makes with one write.
    fn new(
        kind: DifferenceKind,
        subsystem: &str,
        object: impl Into<String>,
        supply: impl FnOnce(&mut Worker) -> Result<()> + 'static,
    ) -> Self {
        let difference = Difference::new(kind, subsystem, object);
        Self { difference, writes: 1, family: None, supply: Box::new(supply) }
    }
}

// === impl Worker ===

impl Worker {
    /// See [`super::Kernel::prepare`].
    pub(super) fn prepare(&mut self, rules: &PerFamily<Vec<ChainSpec>>) -> Result<Prepared> {
        if self.dry_run.is_none() {
            // Loads the module.
            self.ipvs()?;
        }
        let Prerequisites { missing, unusable } = self.missing(rules)?;
        if let Some(dry_run) = &mut self.dry_run {
            let writes = missing.len();
            if unusable.is_empty() {
                dry_run.base.extend(missing.into_iter().map(|missing| missing.difference));
            }
            return Ok(Prepared { writes, unusable });
        }

        let mut prepared = Prepared { writes: 0, unusable };
        for Missing { writes, family, supply, .. } in missing {
            match (supply(self), family) {
                (Ok(()), _) => prepared.writes += writes,
                // The variant is to be detected again, because the kernel does not support it.
                (Err(error), Some(_)) if self.iptables.detected().is_none() => return Err(error),
                (Err(error), Some(family)) => {
                    if prepared.unusable.iter().all(|of| of.family != family) {
                        let reason = format!("{error:#}");
                        prepared.unusable.push(UnusableFamily { family, reason, is_permanent: false });
                    }
                }
                (Err(error), None) => return Err(error),
            }
        }
        Ok(prepared)
    }

    /// The prerequisites that [`Self::prepare`] would create or change. Changes nothing and loads no module.
    fn missing(&mut self, rules: &PerFamily<Vec<ChainSpec>>) -> Result<Prerequisites> {
        let mut prerequisites = Prerequisites::default();
        let mut families: Vec<IpFamily> =
            IpFamily::ALL.into_iter().filter(|family| !rules[*family].is_empty()).collect();
        if families.contains(&IpFamily::V6)
            && let Some(reason) = ipv6_is_disabled()
        {
            prerequisites.unusable.push(UnusableFamily { family: IpFamily::V6, reason, is_permanent: true });
            families.retain(|family| *family != IpFamily::V6);
        }

        let Prerequisites { missing, unusable } = &mut prerequisites;
        missing.extend(self.missing_ipvs()?);
        missing.extend(missing_sysctls(self.arp)?);
        missing.extend(self.missing_sets(&families)?);
        missing.extend(missing_device()?);
        for family in families {
            match self.missing_rules(family, &rules[family]) {
                Ok(of_family) => missing.extend(of_family),
                Err(family) => unusable.push(family),
            }
        }
        Ok(prerequisites)
    }

    /// The module, if it is not loaded, or else timeouts that differ.
    fn missing_ipvs(&mut self) -> Result<Option<Missing>> {
        if !ipvs::is_loaded() {
            // `prepare` has loaded it.
            let module = Missing::new(DifferenceKind::Add, "modules", "ip_vs, with its settings", |_| Ok(()));
            return Ok(Some(Missing { writes: 0, ..module }));
        }
        if !self.has_other_timeouts()? {
            return Ok(None);
        }
        let timeouts = self.timeouts;
        let supply = move |worker: &mut Worker| Ok(worker.ipvs()?.set_timeouts(&timeouts)?);
        Ok(Some(Missing::new(DifferenceKind::Change, "IPVS", "timeouts", supply)))
    }

    /// The sets of these families.
    fn missing_sets(&mut self, families: &[IpFamily]) -> Result<Vec<Missing>> {
        let observed = self.observed_sets()?;
        let mut missing = Vec::new();
        for set in SetId::all() {
            if !families.contains(&set.family) || observed.contains(&set) {
                continue;
            }
            let supply = move |worker: &mut Worker| {
                let created = worker.ipset.create(&set.new_set());
                created.with_context(|| format!("create the set {}", set.name()))
            };
            let set_missing = Missing::new(DifferenceKind::Add, "ipset", format!("set {}", set.name()), supply);
            missing.push(Missing { family: Some(set.family), ..set_missing });
        }
        Ok(missing)
    }

    /// The rules of a family. An error: it cannot be prepared.
    fn missing_rules(&mut self, family: IpFamily, rules: &[ChainSpec]) -> Result<Option<Missing>, UnusableFamily> {
        let script = match rules::script(&mut self.iptables, family, rules) {
            Ok(Some(script)) => script,
            Ok(None) => {
                let program = PerFamily { v4: "iptables", v6: "ip6tables" }[family];
                let reason = format!("{program} is not installed");
                return Err(UnusableFamily { family, reason, is_permanent: true });
            }
            Err(error) => return Err(UnusableFamily { family, reason: format!("{error:#}"), is_permanent: false }),
        };
        let lines = script.commands();
        if lines == 0 {
            return Ok(None);
        }

        let object = format!("{lines} lines of the {family} chains FAIRLEAD-IPVS*");
        let supply = move |worker: &mut Worker| {
            let restored = block_on(async { Ok(worker.iptables.restore(family, &script).await?) });
            restored.with_context(|| format!("write the rules of {family}"))
        };
        let missing = Missing::new(DifferenceKind::Change, "iptables", object, supply);
        Ok(Some(Missing { writes: lines, family: Some(family), ..missing }))
    }

    fn has_other_timeouts(&mut self) -> Result<bool> {
        let desired = self.timeouts;
        let observed = self.ipvs()?.timeouts()?;
        let differs = |desired: u32, observed: u32| desired != 0 && desired != observed;
        Ok(differs(desired.tcp, observed.tcp)
            || differs(desired.tcp_fin, observed.tcp_fin)
            || differs(desired.udp, observed.udp))
    }
}

/// The sysctls that differ. While IPVS is not loaded, its own sysctls do not exist and are left out.
fn missing_sysctls(arp: Arp) -> Result<Vec<Missing>> {
    let arp: &[_] = if arp == Arp::Strict { &STRICT_ARP_SYSCTLS } else { &[] };
    let reuse = [(REUSE_MODE, reuse_mode(kernel_version()))];
    let own: &[&[_]] = if ipvs::is_loaded() { &[&IPVS_SYSCTLS, &reuse] } else { &[] };
    let mut missing = Vec::new();
    for (name, value) in own.iter().copied().flatten().chain(arp).copied() {
        let path = path(name);
        let observed = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if observed.trim() != value {
            let setting = format!("net.{}={value}", name.replace('/', "."));
            let supply = move |_: &mut Worker| write_sysctl(name, value);
            missing.push(Missing::new(DifferenceKind::Change, "sysctl", setting, supply));
        }
    }
    Ok(missing)
}

/// The device, if it does not exist or is down.
fn missing_device() -> Result<Option<Missing>> {
    Ok(match rtnl::link(DEVICE)? {
        None => {
            let supply = |_: &mut Worker| Ok(rtnl::add_dummy_link(DEVICE)?);
            Some(Missing::new(DifferenceKind::Add, "links", format!("device {DEVICE}"), supply))
        }
        Some(link) if !link.is_up => {
            let supply = move |_: &mut Worker| Ok(rtnl::set_link_up(&link)?);
            Some(Missing::new(DifferenceKind::Change, "links", format!("device {DEVICE}, which is down"), supply))
        }
        Some(_) => None,
    })
}

/// Why the device can have no IPv6 addresses; `None`: it can.
fn ipv6_is_disabled() -> Option<String> {
    let sysctl = |device: &str| format!("ipv6/conf/{device}/disable_ipv6");
    // A new device gets the default.
    for name in [DEVICE, "default"].map(sysctl) {
        match fs::read_to_string(path(&name)) {
            Ok(value) if value.trim() == "0" => return None,
            Ok(_) => return Some(format!("IPv6 addresses are disabled (net.{}=1)", name.replace('/', "."))),
            Err(_) => {}
        }
    }
    Some("the kernel has no IPv6, or it is disabled at boot (ipv6.disable=1)".to_owned())
}

/// IPVS identifies the connection of a reply by the client and the endpoint only, and takes the newest entry. If it
/// kept the entry of a reused port, replies would get the address of a VIP that the client has reached later from that
/// port.
fn reuse_mode(version: Option<(u32, u32)>) -> &'static str {
    if version.is_some_and(|version| version < REPLACES_REUSED) { "0" } else { "1" }
}

/// The major and minor version of the kernel; `None` if it cannot be read.
fn kernel_version() -> Option<(u32, u32)> {
    parse_version(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// The major and minor version in a release, as `uname -r` prints it: `6.1.0-18-amd64`.
fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn write_sysctl(name: &str, value: &str) -> Result<()> {
    let path = path(name);
    fs::write(&path, value).with_context(|| format!("write {}", path.display()))?;
    debug!(sysctl = name, value, "sysctl written");
    Ok(())
}

/// The file of a sysctl, which is named by its path below `/proc/sys/net`.
fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_reused_ports_are_replaced_since_linux_5_9() {
        for (version, mode) in [((4, 18), "0"), ((5, 8), "0"), ((5, 9), "1"), ((5, 10), "1"), ((6, 1), "1")] {
            assert_eq!(reuse_mode(Some(version)), mode, "{version:?}");
        }
    }

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(parse_version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(parse_version("5.4-rc1\n"), Some((5, 4)));
        assert_eq!(parse_version("linux"), None);
        assert!(kernel_version().is_some());
    }
}
