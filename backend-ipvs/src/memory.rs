//! The kernel in memory under a real data plane, for simulations.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
};

use anyhow::Result;
use backend::{
    InstalledObject,
    dataplane::Vip,
    driver::Driver,
    testing::{ErrorDetail, Gate, MemoryKernel},
};
use iptables::ChainSpec;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily};

use crate::{
    data_plane::IpvsDataPlane,
    kernel::{ConnectionCounts, Kernel, Listing, Ours, Prepared, Rejected, Summary, fake::Fake},
    object::{Object, Value, Weight},
    plan::Operation,
    settings::Settings,
};

/// Virtual servers, sets, addresses and rules in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Memory(Fake);

/// The fake kernel behind a gate, at which a simulation delays or fails each call.
#[derive(Debug)]
pub struct Gated {
    kernel: Fake,
    gate: Gate,
}

impl MemoryKernel for Memory {
    type Backend = Driver<IpvsDataPlane<Gated>>;

    fn backend(&self, gate: Gate) -> Self::Backend {
        Driver::new(IpvsDataPlane::new(Gated { kernel: self.0.clone(), gate }, Settings::default()))
    }

    fn content(&self) -> Vec<String> {
        let objects = self.0.objects();
        // The number of a mark depends on the marks that were free: the set entries with the mark stand for it.
        let mut entries = BTreeMap::<u32, BTreeSet<String>>::new();
        for (object, value) in &objects {
            if let Value::Mark(mark) = value {
                entries.entry(mark.raw()).or_default().insert(format!("{object:?}"));
            }
        }

        let mut content = Vec::new();
        for (object, value) in &objects {
            content.push(match (object, value) {
                // Destinations that drain or keep established flows depend on the times of earlier changes.
                (_, Value::Weight(Weight::Draining(_) | Weight::Of(0))) => continue,
                (Object::Server(VirtualServerKey::FwMark(family, mark)), value) => {
                    format!("Server({family:?} {:?}) {value:?}", entries.get(mark))
                }
                (Object::Destination(VirtualServerKey::FwMark(family, mark), address), value) => {
                    format!("Destination({family:?} {:?}, {address}) {value:?}", entries.get(mark))
                }
                (object, Value::Mark(_)) => format!("{object:?} with a mark"),
                (object, value) => format!("{object:?} {value:?}"),
            });
        }
        content.sort_unstable();
        content
    }

    fn reboot(&self) {
        self.0.clear();
    }

    fn set_unsupported(&self, family: Option<IpFamily>) {
        self.0.set_unusable(family);
    }

    /// A rejected virtual server has no name but its address, so that errors always name it.
    fn reject(&self, vips: &BTreeSet<Vip>, _: ErrorDetail) {
        let mut servers = Vec::new();
        for vip in vips {
            if let Vip::AddressPort { address, port, protocol } = *vip {
                let server = VirtualServerKey::Address(protocol, SocketAddr::new(address, port));
                servers.push(Object::Server(server));
            }
        }
        self.0.reject(servers);
    }

    fn remove_any(&self, number: usize) -> bool {
        self.0.remove_any(number)
    }
}

impl Kernel for Gated {
    async fn prepare(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<Prepared> {
        self.gate.pass().await?;
        self.kernel.prepare(rules).await
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.gate.pass().await?;
        self.kernel.list(ours).await
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<HashMap<usize, Rejected>> {
        let Self { kernel, gate } = self;
        let commit = async {
            let rejected = kernel.commit(operations).await;
            kernel.log();
            rejected
        };
        gate.write(commit).await?
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.gate.pass().await?;
        self.kernel.connections(servers).await
    }

    async fn summary(&mut self) -> Result<Summary> {
        self.kernel.summary().await
    }

    async fn has_rules(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<bool> {
        self.kernel.has_rules(rules).await
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.kernel.is_programmed().await
    }

    async fn installed_objects(&mut self, ours: Ours) -> Result<Vec<InstalledObject>> {
        self.kernel.installed_objects(ours).await
    }

    async fn cleanup(&mut self, ours: Ours) -> Result<()> {
        self.kernel.cleanup(ours).await
    }
}
