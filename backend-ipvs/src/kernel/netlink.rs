//! The real kernel, over netlink and the iptables programs.

mod commit;
mod prerequisites;
mod retire;

use std::{
    collections::{HashMap, HashSet},
    mem,
    net::IpAddr,
};

use anyhow::{Context, Result};
use backend::{Difference, InstalledObject, driver::WorkerThread};
use iptables::{ChainSpec, Tools};
use netlink::{
    ipset,
    ipvs::{self, Destination, VirtualServerKey},
    rtnl::{self, Link},
};
use proto::model::PerFamily;

use super::{ConnectionCounts, Connections, DEVICE, Kernel, Listing, Ours, Prepared, Rejected, Summary, rules};
use crate::{
    mark::Mark,
    object::{Object, Value, Weight},
    plan::{Objects, Operation},
    set::SetId,
    settings::{Arp, Settings},
};

/// Sets of kube-proxy's IPVS mode: while one exists, the device and the virtual servers at its addresses may be in use
/// by kube-proxy, and `fairlead cleanup --of kube-proxy` removes them.
const KUBE_PROXY_SETS: [&str; 2] = ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"];

/// The kernel objects of the network namespace in which it was opened: a thread with the sockets.
pub(crate) type Netlink = WorkerThread<Worker>;

/// The sockets, and the requests that are executed on them.
#[derive(Debug)]
pub struct Worker {
    /// Opened on first use, because that loads the module.
    ipvs: Option<ipvs::IpvsHandle>,
    ipset: ipset::IpsetHandle,
    iptables: Tools,
    /// See [`Settings::timeouts`].
    timeouts: ipvs::IpvsTimeouts,
    /// See [`Settings::arp`].
    arp: Arp,
    /// The changes of a dry run, which are not written; `None`: this is no dry run.
    dry_run: Option<DryRun>,
}

/// The changes of a dry run: the base objects, and the operations.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    pub(crate) base: Vec<Difference>,
    pub(crate) operations: Vec<Operation>,
}

/// Opens the network namespace of the calling thread.
pub(crate) fn open(settings: &Settings) -> Result<Netlink> {
    let ipset = ipset::IpsetHandle::open().context("open a socket for sets")?;
    let iptables = Tools::new(settings.iptables.clone());
    let Settings { timeouts, arp, .. } = *settings;
    WorkerThread::spawn("ipvs", Worker { ipvs: None, ipset, iptables, timeouts, arp, dry_run: None })
}

impl Kernel for Netlink {
    async fn prepare(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<Prepared> {
        self.run(move |worker| worker.prepare(&rules)).await?
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.run(move |worker| worker.list(&ours)).await?
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<HashMap<usize, Rejected>> {
        self.run(move |worker| worker.commit(&operations)).await?
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.run(move |worker| worker.connections(&servers)).await?
    }

    async fn summary(&mut self) -> Result<Summary> {
        self.run(Worker::summary).await?
    }

    async fn has_rules(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<bool> {
        self.run(move |worker| rules::are_complete(&mut worker.iptables, &rules)).await?
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.run(Worker::is_programmed).await?
    }

    async fn installed_objects(&mut self, ours: Ours) -> Result<Vec<InstalledObject>> {
        self.run(move |worker| worker.installed_objects(&ours)).await?
    }

    async fn cleanup(&mut self, ours: Ours) -> Result<()> {
        self.run(move |worker| worker.cleanup(&ours)).await?
    }
}

// === impl Worker ===

impl Worker {
    /// Writes nothing from now on, and loads no module.
    pub(crate) fn begin_dry_run(&mut self) {
        self.dry_run = Some(DryRun::default());
    }

    /// Takes the changes of the dry run.
    pub(crate) fn take_dry_run(&mut self) -> DryRun {
        self.dry_run.as_mut().map(mem::take).unwrap_or_default()
    }

    /// See [`Kernel::list`]; no objects while IPVS is not loaded.
    pub(super) fn list(&mut self, ours: &Ours) -> Result<Listing> {
        let mut objects = Objects::new();
        let elsewhere = other_addresses()?;
        if !ipvs::is_loaded() {
            return Ok(Listing { objects, elsewhere });
        }

        for set in self.observed_sets()?.into_iter().filter(|set| !set.is_written_by_rules()) {
            for mut entry in self.ipset.entries(set.name())? {
                let value = match entry.mark.take() {
                    Some(mark) => Value::Mark(Mark::from_raw(mark).unwrap_or(Mark::DROP)),
                    None => Value::Plain,
                };
                objects.insert(Object::SetEntry(set, entry), value);
            }
        }
        let addresses = self.addresses()?.into_iter().filter(|address| !ours.excludes(address));
        objects.extend(addresses.map(|address| (Object::Address(address), Value::Plain)));

        let mut schedulings = self.ipvs()?.schedulings()?;
        schedulings.retain(|(server, _)| ours.has(server, &objects));
        for (server, scheduling) in schedulings {
            for destination in self.ipvs()?.destinations(&server)? {
                let value = Value::Weight(weight(&destination));
                objects.insert(Object::Destination(server, destination.address), value);
            }
            objects.insert(Object::Server(server), Value::Scheduling(scheduling));
        }
        Ok(Listing { objects, elsewhere })
    }

    fn connections(&mut self, servers: &[VirtualServerKey]) -> Result<ConnectionCounts> {
        let mut counts = HashMap::new();
        for server in servers {
            for Destination { address, active, inactive, .. } in self.ipvs()?.destinations(server)? {
                counts.insert((*server, address), Connections { active, inactive });
            }
        }
        Ok(counts)
    }

    fn summary(&mut self) -> Result<Summary> {
        let sizes: HashMap<String, u32> = self.ipset.sizes()?.into_iter().map(|(set, size)| (set.name, size)).collect();
        let mut sets = HashMap::new();
        for set in SetId::all() {
            if let Some(size) = sizes.get(set.name()) {
                sets.insert(set, if set.is_written_by_rules() { 0 } else { *size as usize });
            }
        }
        Ok(Summary {
            sets,
            addresses: self.addresses()?.len(),
            elsewhere: other_addresses()?,
            servers: self.ipvs()?.virtual_servers()?.into_iter().collect(),
        })
    }

    fn cleanup(&mut self, ours: &Ours) -> Result<()> {
        if self.dry_run.is_some() {
            return Ok(());
        }

        rules::remove().context("remove our rules")?;
        let is_kube_proxys = self.ipset.sets()?.iter().any(|set| KUBE_PROXY_SETS.contains(&set.name.as_str()));
        for server in self.list(ours)?.objects.keys().filter_map(Object::server) {
            if !(is_kube_proxys && matches!(server, VirtualServerKey::Address(..))) {
                self.ipvs()?.delete_virtual_server(&server)?;
            }
        }

        // An excluded address on the device belongs to another process.
        let is_shared = is_kube_proxys || self.addresses()?.iter().any(|address| ours.excludes(address));
        if !is_shared && self.own_device()?.is_some() {
            rtnl::delete_link(DEVICE)?;
        }
        // Last, because they tell whose the device is.
        for set in SetId::all() {
            self.ipset.destroy(set.name())?;
        }
        Ok(())
    }

    fn installed_objects(&mut self, ours: &Ours) -> Result<Vec<InstalledObject>> {
        let mut objects = Vec::new();
        let mut push = |subsystem: &str, kind: String, count| {
            if count > 0 {
                objects.push(InstalledObject { subsystem: subsystem.to_owned(), kind, count });
            }
        };
        for (program, _, chains) in rules::count()? {
            push(program, "chain".to_owned(), chains);
        }
        let servers = self.list(ours)?.objects.keys().filter_map(Object::server).count();
        push("IPVS", "virtual server".to_owned(), servers);
        push("ipset", "set".to_owned(), self.observed_sets()?.len());
        if let Some(device) = self.own_device()? {
            push("links", format!("device {}", device.name), 1);
        }
        Ok(objects)
    }

    /// All our objects, and the connection counts of the destinations among them. Loads no module.
    pub(crate) fn objects_and_connections(&mut self) -> Result<(Objects, ConnectionCounts)> {
        let objects = self.list(&Ours::default())?.objects;
        let connections = self.connections(&objects.keys().filter_map(Object::server).collect::<Vec<_>>())?;
        Ok((objects, connections))
    }

    /// Whether a set of ours exists.
    pub(crate) fn is_programmed(&mut self) -> Result<bool> {
        Ok(!self.observed_sets()?.is_empty())
    }

    /// The device, if it exists and is ours: without a set of ours it is kube-proxy's.
    fn own_device(&mut self) -> Result<Option<Link>> {
        if self.is_programmed()? { Ok(rtnl::link(DEVICE)?) } else { Ok(None) }
    }

    /// The addresses of our device.
    fn addresses(&mut self) -> Result<HashSet<IpAddr>> {
        let Some(device) = self.own_device()? else { return Ok(HashSet::new()) };
        Ok(rtnl::link_addresses(&device)?.into_iter().collect())
    }

    /// Our sets in the kernel.
    fn observed_sets(&mut self) -> Result<Vec<SetId>> {
        let sets = self.ipset.sets().context("list sets")?;
        let observed: HashSet<String> = sets.into_iter().map(|set| set.name).collect();
        Ok(SetId::all().filter(|set| observed.contains(set.name())).collect())
    }

    fn ipvs(&mut self) -> Result<&mut ipvs::IpvsHandle> {
        if self.ipvs.is_none() {
            self.ipvs = ipvs::IpvsHandle::open()?;
        }
        self.ipvs.as_mut().context("the kernel has no IPVS: load its module with `modprobe ip_vs`")
    }
}

/// The device that has the VIPs.
fn device() -> Result<Link> {
    rtnl::link(DEVICE)?.with_context(|| format!("device {DEVICE} does not exist"))
}

/// The addresses of all other devices, including loopback addresses.
fn other_addresses() -> Result<HashSet<IpAddr>> {
    rtnl::addresses_except(&[DEVICE]).context("list the node's addresses")
}

/// See [`Weight::Draining`].
fn weight(destination: &Destination) -> Weight {
    match (destination.weight, destination.upper_threshold) {
        (0, until) if until > 0 => Weight::Draining(until),
        (weight, _) => Weight::Of(weight),
    }
}
