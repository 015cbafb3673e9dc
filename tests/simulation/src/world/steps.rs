//! The steps of a simulation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fake_api_server::{ApiServer, Fault, Faults, Resource};
use fastrand::Rng;
use proto::{model::IpFamily, node_set::NodeSet};
use tokio::time::sleep;

use super::{KINDS, World};
use crate::{
    clock,
    disk::DiskFaults,
    drains::{self, DrainedNode},
    kernel::KernelFaults,
    network::Cut,
    objects,
    trace::trace,
};

/// A day, in seconds.
const DAY: i64 = 86_400;

impl World {
    /// A change, a fault, or the end of one.
    pub(super) async fn fault(&mut self, rng: &mut Rng) {
        let node = rng.usize(..self.nodes.len());
        match rng.u8(0..100) {
            0..44 => {
                self.change_object(rng);
            }
            44 | 45 => self.drain_pod(rng).await,
            46 => {
                trace!(self.trace, "delete all slices");
                objects::delete_all_slices(&self.api, self.size);
            }
            47..52 => match self.nodes[node].is_running() {
                true => self.nodes[node].power_off(),
                false => self.nodes[node].start(),
            },
            52..56 if self.is_lossy => {
                trace!(self.trace, "an operation to node {node} will be lost");
                self.network.set_lossy(node);
            }
            52 | 53 => {
                trace!(self.trace, "another program changes the kernel of node {node}");
                self.nodes[node].kernel.tamper();
            }
            54..57 => {
                let rejects = rng.choice([None, Some(1), Some(3)]).flatten();
                trace!(self.trace, "kernel of node {node} rejects {rejects:?}");
                self.nodes[node].kernel.set_rejects(rejects);
            }
            57 => {
                if let Some(backup) = self.backup.take() {
                    trace!(self.trace, "the API server is restored from a backup");
                    let version = self.api.version();
                    self.replicas.iter().for_each(thaw);
                    self.api.restore(backup);
                    // Sometimes it soon reaches the version that watches had reached.
                    while rng.u8(0..16) > 0 && self.api.version() < version {
                        self.change_object(rng);
                    }
                } else {
                    self.backup = Some(self.api.backup());
                }
            }
            58 => {
                let kind = rng.choice([Resource::Service, Resource::EndpointSlice]).unwrap_or(Resource::Service);
                let (replica, api) = self.replica(rng);
                trace!(self.trace, "replica {replica} of the API server sends no events of {kind:?}");
                api.set_faults(kind, |faults| faults.events = false);
            }
            59 | 60 => {
                let (kind, version) = (rng.choice(KINDS).unwrap_or(Resource::Service), self.api.version());
                let (replica, api) = self.replica(rng);
                trace!(self.trace, "replica {replica} of the API server stays at version {version} of {kind:?}");
                api.set_faults(kind, |faults| faults.frozen_at = Some(version));
            }
            61 => {
                let unsupported = rng.choice(IpFamily::ALL);
                trace!(self.trace, "kernel of node {node} lacks {unsupported:?}");
                self.nodes[node].kernel.set_unsupported(unsupported);
            }
            _ => self.disturb(rng).await,
        }
    }

    /// A pod ends, and asks from before that whether it is drained.
    async fn drain_pod(&self, rng: &mut Rng) {
        let Some((address, node)) = objects::any_pod(&self.api, rng) else { return };
        let known = objects::node_names(&self.api);
        let mut cluster = NodeSet::default();
        known.iter().for_each(|node| cluster.insert(node));
        let nodes = self.nodes.iter().filter(|node| known.contains(&objects::node_name(node.number)));
        let nodes = nodes.map(|node| DrainedNode {
            number: node.number,
            kernel: node.kernel.clone(),
            oracle: node.oracle.clone(),
            starts: node.oracle.starts(),
        });
        let version = Arc::new(AtomicU64::new(0));
        let (api, ended_at) = (self.api.clone(), version.clone());
        let is_current = move || api.version() == ended_at.load(Ordering::SeqCst);
        let (trace, network) = (self.trace.clone(), self.network.clone());
        tokio::spawn(drains::drain(trace, network, (address, node), cluster, nodes.collect(), is_current));
        sleep(Duration::from_micros(rng.u64(0..100_000))).await;
        // The answer has to wait for the slowest node.
        if let Some(node) = rng.choice(&self.nodes) {
            node.kernel.stall(Duration::from_millis(rng.u64(0..1_000)));
        }
        objects::end_pods_at(&self.api, address);
        version.store(self.api.version(), Ordering::SeqCst);
        trace!(self.trace, "pod {address} ends, version {}", self.api.version());
    }

    fn change_object(&self, rng: &mut Rng) {
        let change = objects::change(&self.api, rng, self.size);
        trace!(self.trace, "{change}, version {}", self.api.version());
    }

    /// Changes that every node notices, and one of another program.
    pub(super) fn change(&mut self, rng: &mut Rng) {
        let change = objects::replace_endpoints(&self.api, rng, self.size);
        let node = rng.usize(..self.nodes.len());
        trace!(self.trace, "{change}; another program changes the kernel of node {node}");
        self.nodes[node].kernel.tamper();
    }

    /// A fault that changes no object, or the end of one.
    pub(super) async fn disturb(&mut self, rng: &mut Rng) {
        let (node, frontend) = (rng.usize(..self.nodes.len()), rng.usize(..self.frontends.len()));
        match rng.u8(0..44) {
            0..7 => match self.frontends[frontend].is_running() {
                true if rng.bool() => self.frontends[frontend].kill(),
                true => self.frontends[frontend].stop(),
                false => self.frontends[frontend].start(),
            },
            7..14 => match self.nodes[node].is_running() {
                true if rng.bool() => self.nodes[node].kill(),
                true => self.nodes[node].stop().await,
                false => self.nodes[node].start(),
            },
            14..17 => {
                trace!(self.trace, "partition of node {node} and frontend {frontend}");
                self.network.partition((node, frontend));
            }
            17..20 => {
                trace!(self.trace, "the network is healthy");
                self.network.heal();
                self.frontends.iter().for_each(|frontend| frontend.set_link(true));
            }
            20..24 => {
                let cut = rng.choice([Cut::Closed, Cut::NodeUnaware, Cut::FrontendUnaware]).unwrap_or(Cut::Closed);
                let of_all = rng.u8(0..4) == 0;
                trace!(self.trace, "connections of frontend {frontend} and node {node} (all: {of_all}) end: {cut:?}");
                let nodes = if of_all { 0..self.nodes.len() } else { node..node + 1 };
                nodes.for_each(|node| self.network.cut((node, frontend), cut));
            }
            24 => {
                let latency = rng.choice([500, 5_000, 200_000, 3_000_000]).unwrap_or(500);
                trace!(self.trace, "latency up to {latency} us");
                self.network.set_latency(latency);
            }
            25 if rng.bool() => {
                trace!(self.trace, "batches arrive in parts");
                self.network.set_gap(20_000_000);
            }
            25 => {
                let slow = rng.choice([0, 200_000, 20_000_000]).unwrap_or(0);
                trace!(self.trace, "node {node} reads a message each {slow} us");
                self.network.set_slow(node, slow);
            }
            26 | 27 => {
                let jump = rng.i64(-DAY..=DAY);
                trace!(self.trace, "the clock jumps by {jump} s");
                clock::jump(jump);
            }
            28..31 => {
                let faults = DiskFaults {
                    fails: rng.choice([0, 5, 50]).unwrap_or(0),
                    stalls: rng.choice([0, 0, 20]).unwrap_or(0),
                };
                trace!(self.trace, "disk of node {node}: {faults:?}");
                self.nodes[node].disk.set_faults(faults);
            }
            31..34 => {
                let faults = KernelFaults {
                    fails: rng.choice([0, 10, 60]).unwrap_or(0),
                    slow: rng.choice([100, 1_000, 500_000]).unwrap_or(100),
                    rejects: None,
                    unsupported: None,
                };
                trace!(self.trace, "kernel of node {node}: {faults:?}");
                self.nodes[node].kernel.set_faults(faults);
            }
            34 | 35 => {
                trace!(self.trace, "the API server compacts");
                self.api.compact();
            }
            36 => {
                let is_lost = rng.bool();
                trace!(self.trace, "watches are cut; frontend {frontend} loses the API server: {is_lost}");
                self.frontends[frontend].set_link(!is_lost);
                self.replicas.iter().for_each(ApiServer::cut_watches);
            }
            37..41 => self.api_fault(rng),
            _ => {
                let kind = rng.choice(KINDS).unwrap_or(Resource::Service);
                let (replica, api) = self.replica(rng);
                trace!(self.trace, "replica {replica} of the API server, {kind:?}: healthy");
                api.set_faults(kind, |current| *current = Faults::default());
            }
        }
    }

    fn api_fault(&self, rng: &mut Rng) {
        let kind = rng.choice(KINDS).unwrap_or(Resource::Service);
        let fault = |rng: &mut Rng| match rng.u8(0..8) {
            0 => Some(Fault::Refuse(500)),
            1 => Some(Fault::Throttle(rng.u32(1..20))),
            2 => Some(Fault::Delay(Duration::from_millis(rng.u64(1..20_000)))),
            3 => Some(Fault::Hang),
            _ => None,
        };
        let faults = Faults {
            lists: fault(rng),
            watches: fault(rng),
            writes: None,
            bookmarks: rng.bool(),
            streaming: rng.bool(),
            events: rng.u8(0..6) > 0,
            frozen_at: None,
        };
        let (replica, api) = self.replica(rng);
        trace!(self.trace, "replica {replica} of the API server, {kind:?}: {faults:?}");
        api.set_faults(kind, |current| *current = faults);
    }

    /// One of the replicas of the API server.
    fn replica(&self, rng: &mut Rng) -> (usize, &ApiServer) {
        let replica = rng.usize(..self.replicas.len());
        (replica, &self.replicas[replica])
    }
}

/// A replica of the API server has the current objects again.
fn thaw(api: &ApiServer) {
    KINDS.iter().for_each(|kind| api.set_faults(*kind, |faults| faults.frozen_at = None));
}
