//! The worker on the thread: its sockets, and the requests that it executes.

mod commit;
mod settings;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use anyhow::{Context, Result};
use backend::{Difference, DifferenceKind, InstalledObject};
use iptables::Variant;
use netlink::{
    ipset,
    ipvs::{self, Destination, VirtualServerKey},
    rtnl::{self, Link, LinkState},
};
use proto::model::{IpFamily, PerFamily};

use super::super::{
    Base, ConnectionCounts, Connections, DEVICE, Listing, Ours, RulesFound, Summary, VipEntries, rules,
};
use crate::{
    desired::Rules,
    mark::Mark,
    object::{Object, Value, Weight},
    plan::Objects,
    set::{SetContent, SetId},
};

/// kube-proxy's device. Its addresses do not count as addresses of other devices, because it is deleted with
/// kube-proxy.
const KUBE_PROXYS: &str = "kube-ipvs0";

#[derive(Debug)]
pub(super) struct Worker {
    /// Opened on first use, because that loads the module.
    ipvs: Option<ipvs::IpvsHandle>,
    ipset: ipset::IpsetHandle,
    iptables: rules::Iptables,
}

/// A prerequisite that is missing or differs.
#[derive(Debug)]
pub(super) enum Missing {
    /// The module `ip_vs`.
    Module,
    Timeouts,
    Setting(settings::Setting),
    Set(SetId),
    Link,
    /// The device exists and is down.
    LinkDown(Link),
    /// This number of lines differs.
    Rules(IpFamily, usize),
}

// === impl Worker ===

impl Worker {
    pub(super) fn open(iptables: Option<Variant>) -> Result<Self> {
        Ok(Self {
            ipvs: None,
            ipset: ipset::IpsetHandle::open().context("open a socket for sets")?,
            iptables: rules::Iptables::new(iptables),
        })
    }

    /// See [`super::Kernel::prepare`].
    pub(super) fn prepare(&mut self, base: &Base) -> Result<usize> {
        self.ipvs()?;
        let mut writes = 0;
        for missing in self.missing(base)? {
            writes += missing.writes();
            self.supply(missing, base)?;
        }
        Ok(writes)
    }

    /// The prerequisites that [`Self::prepare`] would create or change, in this order. Changes nothing and loads no
    /// module.
    pub(super) fn missing(&mut self, base: &Base) -> Result<Vec<Missing>> {
        let mut missing = Vec::new();
        if !ipvs::is_loaded() {
            missing.push(Missing::Module);
        } else if self.has_other_timeouts(&base.timeouts)? {
            missing.push(Missing::Timeouts);
        }
        missing.extend(settings::wrong(base.arp)?.into_iter().map(Missing::Setting));
        let observed: HashSet<String> =
            self.ipset.sets().context("list sets")?.into_iter().map(|set| set.name).collect();
        missing.extend(SetId::all().filter(|set| !observed.contains(set.name())).map(Missing::Set));
        match rtnl::link(DEVICE)? {
            None => missing.push(Missing::Link),
            Some(link) if link.state == LinkState::Down => missing.push(Missing::LinkDown(link)),
            Some(_) => {}
        }
        for family in IpFamily::ALL {
            let lines = self.iptables.missing(family, &base.rules[family])?;
            if lines > 0 {
                missing.push(Missing::Rules(family, lines));
            }
        }
        Ok(missing)
    }

    fn supply(&mut self, missing: Missing, base: &Base) -> Result<()> {
        match missing {
            // `prepare` has loaded it.
            Missing::Module => {}
            Missing::Timeouts => self.ipvs()?.set_timeouts(&base.timeouts)?,
            Missing::Setting(setting) => settings::write(setting)?,
            Missing::Set(set) => self.ipset.create(&set.new_set())?,
            Missing::Link => rtnl::add_dummy_link(DEVICE)?,
            Missing::LinkDown(link) => rtnl::set_link_up(&link)?,
            Missing::Rules(family, _) => {
                let rules = &base.rules[family];
                self.iptables.apply(family, rules).with_context(|| format!("write the rules of {family}"))?;
            }
        }
        Ok(())
    }

    /// See [`super::Kernel::list`]; no objects while IPVS is not loaded.
    pub(super) fn list_loaded(&mut self, ours: &Ours) -> Result<Listing> {
        if ipvs::is_loaded() {
            return self.list(ours);
        }
        Ok(Listing { elsewhere: other_addresses()?, ..Listing::default() })
    }

    /// See [`super::Kernel::list`].
    pub(super) fn list(&mut self, ours: &Ours) -> Result<Listing> {
        let mut objects = Objects::new();
        let observed: HashSet<String> = self.ipset.sets()?.into_iter().map(|set| set.name).collect();
        for set in SetId::all().filter(|set| observed.contains(set.name())) {
            for mut entry in self.ipset.entries(set.name())? {
                let value = match entry.mark.take() {
                    Some(mark) => Value::Mark(Mark::from_raw(mark).unwrap_or(Mark::DROP)),
                    None => Value::Plain,
                };
                objects.insert(Object::SetEntry(set, entry), value);
            }
        }
        let mut addresses: HashSet<IpAddr> = objects.keys().filter_map(own_address).collect();
        for address in self.addresses()?.into_iter().filter(|address| !ours.excludes(address)) {
            addresses.insert(address);
            objects.insert(Object::Address(address), Value::Plain);
        }
        let fronts = VipEntries::of(&objects);
        for (server, scheduling) in self.ipvs()?.schedulings()? {
            if !ours.has(&server, &addresses, &fronts) {
                continue;
            }
            for destination in self.ipvs()?.destinations(&server)? {
                let value = Value::Weight(weight(&destination));
                objects.insert(Object::Destination(server, destination.address), value);
            }
            objects.insert(Object::Server(server), Value::Scheduling(scheduling));
        }
        Ok(Listing { objects, elsewhere: other_addresses()? })
    }

    /// See [`super::Kernel::connections`].
    pub(super) fn connections(&mut self, servers: &[VirtualServerKey]) -> Result<ConnectionCounts> {
        let mut counts = HashMap::new();
        for server in servers {
            for destination in self.ipvs()?.destinations(server)? {
                let Destination { active, inactive, .. } = destination;
                counts.insert((*server, destination.address), Connections { active, inactive });
            }
        }
        Ok(counts)
    }

    /// See [`super::Kernel::summary`].
    pub(super) fn summary(&mut self) -> Result<Summary> {
        let mut summary = Summary { elsewhere: other_addresses()?, ..Summary::default() };
        let sizes: HashMap<String, u32> = self.ipset.sizes()?.into_iter().map(|(set, size)| (set.name, size)).collect();
        let size = |set: SetId| Some((set, *sizes.get(set.name())? as usize));
        summary.sets = SetId::all().filter_map(size).collect();
        summary.addresses = self.addresses()?.len();
        summary.servers = self.ipvs()?.virtual_servers()?.into_iter().collect();
        Ok(summary)
    }

    /// See [`super::Kernel::check`].
    pub(super) fn check(&mut self, rules: &PerFamily<Rules>) -> Result<RulesFound> {
        for (family, rules) in rules.iter() {
            if self.iptables.check(family, rules)? == RulesFound::Wrong {
                return Ok(RulesFound::Wrong);
            }
        }
        Ok(RulesFound::Right)
    }

    /// See [`super::Kernel::cleanup`].
    pub(super) fn cleanup(&mut self, ours: &Ours) -> Result<()> {
        rules::remove().context("remove our rules")?;
        if ipvs::is_loaded() {
            for object in self.list(ours)?.objects.into_keys() {
                if let Object::Server(server) = object {
                    self.ipvs()?.delete_virtual_server(&server)?;
                }
            }
        }
        for set in SetId::all() {
            self.ipset.destroy(set.name())?;
        }
        // An excluded address on the device belongs to another process.
        let is_shared = self.addresses()?.iter().any(|address| ours.excludes(address));
        if !is_shared {
            rtnl::delete_link(DEVICE)?;
        }
        Ok(())
    }

    /// The families with rules of this backend.
    pub(super) fn families(&self) -> Result<Vec<IpFamily>> {
        rules::families()
    }

    /// What [`Self::cleanup`] would remove: where, what, how many.
    pub(super) fn installed_objects(&mut self, ours: Ours) -> Result<Vec<InstalledObject>> {
        let mut items = Vec::new();
        let mut item = |place: &str, what: String, count| {
            items.push(InstalledObject { subsystem: place.to_owned(), kind: what, count })
        };
        for (program, _, chains) in rules::count()? {
            item(program, "chain".to_owned(), chains);
        }
        if ipvs::is_loaded() {
            let listing = self.list(&ours)?;
            let servers = listing.objects.keys().filter(|object| matches!(object, Object::Server(_))).count();
            item("IPVS", "virtual server".to_owned(), servers);
        }
        let observed: HashSet<String> = self.ipset.sets()?.into_iter().map(|set| set.name).collect();
        let sets = SetId::all().filter(|set| observed.contains(set.name())).count();
        item("ipset", "set".to_owned(), sets);
        let devices = usize::from(rtnl::link(DEVICE)?.is_some());
        item("links", format!("device {DEVICE}"), devices);
        items.retain(|item| item.count > 0);
        Ok(items)
    }

    /// See [`super::Netlink::look`].
    pub(super) fn look(&mut self) -> Result<(Objects, ConnectionCounts)> {
        if !ipvs::is_loaded() {
            return Ok((Objects::new(), ConnectionCounts::new()));
        }
        let objects = self.list(&Ours::default())?.objects;
        let servers = objects.keys().filter_map(|object| match object {
            Object::Server(server) => Some(*server),
            _ => None,
        });
        let connections = self.connections(&servers.collect::<Vec<_>>())?;
        Ok((objects, connections))
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>> {
        match rtnl::link(DEVICE)? {
            Some(link) => Ok(rtnl::link_addresses(&link)?),
            None => Ok(Vec::new()),
        }
    }

    fn ipvs(&mut self) -> Result<&mut ipvs::IpvsHandle> {
        if self.ipvs.is_none() {
            self.ipvs = ipvs::IpvsHandle::open()?;
        }
        self.ipvs.as_mut().context("the kernel has no IPVS: the module ip_vs is missing")
    }

    fn has_other_timeouts(&mut self, wanted: &ipvs::IpvsTimeouts) -> Result<bool> {
        let observed = self.ipvs()?.timeouts()?;
        let differs = |wanted: u32, observed: u32| wanted != 0 && wanted != observed;
        Ok(differs(wanted.tcp, observed.tcp)
            || differs(wanted.tcp_fin, observed.tcp_fin)
            || differs(wanted.udp, observed.udp))
    }
}

impl Missing {
    /// The number of writes to create or change it.
    fn writes(&self) -> usize {
        match self {
            Self::Module => 0,
            Self::Rules(_, lines) => *lines,
            _ => 1,
        }
    }

    /// As a difference.
    pub(super) fn difference(&self) -> Difference {
        let say = |verb, place: &str, what: String| Difference::new(verb, place, what);
        match self {
            Self::Module => say(DifferenceKind::Add, "modules", "ip_vs, with its settings".to_owned()),
            Self::Timeouts => say(DifferenceKind::Change, "IPVS", "timeouts".to_owned()),
            Self::Setting(settings::Setting { name, value }) => {
                say(DifferenceKind::Change, "sysctl", format!("net.{}={value}", name.replace('/', ".")))
            }
            Self::Set(set) => say(DifferenceKind::Add, "ipset", format!("set {}", set.name())),
            Self::Link => say(DifferenceKind::Add, "links", format!("device {DEVICE}")),
            Self::LinkDown(_) => say(DifferenceKind::Change, "links", format!("device {DEVICE}, which is down")),
            Self::Rules(family, lines) => {
                say(DifferenceKind::Change, "iptables", format!("{lines} lines of the {family} chains FAIRLEAD-IPVS*"))
            }
        }
    }
}

/// The address in an entry of the set of our addresses.
fn own_address(object: &Object) -> Option<IpAddr> {
    match object {
        Object::SetEntry(SetId { content: SetContent::Addresses, .. }, entry) => entry.ip,
        _ => None,
    }
}

/// The addresses of all other devices, including loopback addresses.
fn other_addresses() -> Result<HashSet<IpAddr>> {
    let interfaces = rtnl::addresses_by_link().context("list the node's addresses")?;
    let others = interfaces.into_iter().filter(|(name, _)| name != DEVICE && name != KUBE_PROXYS);
    Ok(others.flat_map(|(_, addresses)| addresses).collect())
}

/// See [`Weight::Draining`].
fn weight(destination: &Destination) -> Weight {
    match (destination.weight, destination.upper_threshold) {
        (0, until) if until > 0 => Weight::Draining(until),
        (weight, _) => Weight::Of(weight),
    }
}
