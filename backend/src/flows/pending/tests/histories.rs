//! Random histories, with a kernel that is programmed in parts, fails and is found to differ: no flow is deleted that
//! the kernel may still translate so, and none stays that it does not.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use fastrand::Rng;
use netlink::conntrack::{ConntrackZone, Flow, Tuple};
use proto::model::PoolClass;

use super::*;
use crate::{
    flows::{
        half_open::endpoint_at,
        table::{FlowTable, Visit},
        udp::{UdpVips, clean_up},
    },
    testing::History,
};

/// UDP flows and half-open connections.
#[derive(Default)]
struct Table(RefCell<Vec<Flow>>);

/// A cluster, a kernel and its flows.
struct World {
    rng: Rng,
    history: History,
    /// The newest state, which may withhold a loss.
    target: NodeState,
    pending: TestFlows,
    /// The states that the kernel may have of each service port, of which the last one is handed.
    kernel: BTreeMap<ServicePortKey, Vec<Option<ServicePortState>>>,
    /// The service ports that were removed and may exist again, before that is programmed.
    removed: BTreeSet<ServicePortKey>,
    outdated: BTreeSet<ServicePortKey>,
    /// Whether a reconcile is not finished.
    is_reconciling: bool,
    /// UDP service ports as a torn write has left them, and a reconcile has found them: it removes at its end what they
    /// do not need any more.
    torn: Vec<ServicePortState>,
    table: Table,
    /// What the backend does next.
    work: Work,
    /// The number of flows that were added.
    flows: u32,
    /// The number of flows that were deleted.
    deleted: usize,
}

impl FlowTable for Table {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        Ok(HashSet::new())
    }

    fn visit(&self, family: IpFamily, protocol: Protocol, visit: Visit<'_>) -> netlink::Result<()> {
        let is_listed =
            |flow: &Flow| flow.protocol == protocol && IpFamily::of(&flow.original.destination.ip()) == family;
        let listed: Vec<_> = self.0.borrow().iter().copied().filter(is_listed).collect();
        listed.into_iter().try_for_each(visit)
    }

    fn visit_half_open(&self, family: IpFamily, visit: Visit<'_>) -> netlink::Result<()> {
        self.visit(family, Protocol::Tcp, visit)
    }

    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize> {
        self.0.borrow_mut().retain(|flow| !flows.contains(flow));
        Ok(flows.len())
    }

    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize> {
        self.delete(flows)
    }
}

/// The VIPs of a service port that are addresses.
fn vips(service: &ServicePortState) -> Vec<SocketAddr> {
    let address = |(_, vip)| match vip {
        Vip::AddressPort { address, port, .. } => Some(SocketAddr::new(address, port)),
        _ => None,
    };
    all_vips(&service.port).filter_map(address).collect()
}

fn is_translated(flow: &Flow) -> bool {
    flow.reply.source != flow.original.destination
}

/// Whether a service port translates a flow as it was.
fn translates(service: &ServicePortState, flow: &Flow) -> bool {
    service.port.key.protocol == flow.protocol
        && vips(service).contains(&flow.original.destination)
        && endpoint_at(flow.reply.source).is_some_and(|endpoint| service.has_endpoint(&endpoint))
}

fn has_vip_of(service: &ServicePortState, flow: &Flow) -> bool {
    service.port.key.protocol == flow.protocol && vips(service).contains(&flow.original.destination)
}

/// The flows to the VIPs of a service port that may be in these states: to its endpoints, and to the VIP itself as long
/// as that may not exist.
fn possible_flows(
    protocol: Protocol,
    states: &[Option<ServicePortState>],
) -> BTreeSet<(Protocol, SocketAddr, SocketAddr)> {
    let mut flows = BTreeSet::new();
    for service in states.iter().flatten() {
        let pools = service.pools().filter(|(class, ..)| *class != PoolClass::Gone);
        let endpoints = pools.flat_map(|(.., pool)| pool.iter());
        let endpoints = endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get()));
        let endpoints: Vec<_> = endpoints.collect();
        for vip in vips(service) {
            let sources = endpoints.iter().filter(|source| source.is_ipv4() == vip.is_ipv4());
            flows.extend(sources.map(|source| (protocol, vip, *source)));
            let has_vip =
                |state: &Option<ServicePortState>| state.as_ref().is_some_and(|state| vips(state).contains(&vip));
            if !states.iter().all(has_vip) {
                flows.insert((protocol, vip, vip));
            }
        }
    }
    flows
}

impl World {
    fn new(seed: u64) -> Self {
        let history = History::new(seed);
        let target = history.state().clone();
        Self {
            rng: Rng::with_seed(seed),
            pending: TestFlows::new(&target),
            history,
            target,
            kernel: BTreeMap::new(),
            removed: BTreeSet::new(),
            outdated: BTreeSet::new(),
            is_reconciling: false,
            torn: Vec::new(),
            table: Table::default(),
            work: Work::Reconcile,
            flows: 0,
            deleted: 0,
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..10) {
            0..4 => self.commit(),
            4..8 => self.call(),
            8 => {
                let is_confirmed = self.rng.bool();
                self.pending.set_confirmed(is_confirmed);
            }
            _ => self.clean_up(),
        }
    }

    fn commit(&mut self) {
        let before = self.history.state().clone();
        self.history.step();
        let mut target = self.history.state().clone();
        let mut departed: DepartedEndpoints = before.diff(&target).filter_map(|change| change.departed()).collect();

        // Another service port must not have got its VIPs.
        let taken: HashSet<_> = target.service_ports().iter().flat_map(|(_, service)| vips(service)).collect();
        let lost = self.target.service_ports().iter().filter(|(key, _)| target.service_port(key).is_none());
        let withheld = lost.filter(|(_, service)| vips(service).iter().all(|vip| !taken.contains(vip)));
        let withheld: Vec<_> = withheld.map(|(key, service)| (key.clone(), service.clone())).collect();
        if self.rng.bool() {
            for (key, service) in withheld {
                departed.remove(&key);
                target.set_service_port(&key, Some(service));
            }
        }

        let is_same_session = self.rng.u8(0..8) > 0;
        let changes = Changes::between(&self.target, &target);
        self.pending.committed(is_same_session.then_some(departed), &changes, &target);
        self.target = target;
    }

    /// Calls the backend, which fails, or programs some service ports.
    fn call(&mut self) {
        self.hand();
        self.connect();
        self.fail_to_clean_up();
        self.clean_up();

        if self.rng.u8(0..5) == 0 {
            self.work = Work::Reconcile;
            return;
        }

        let mut outdated = self.outdated.clone();
        if self.work == Work::Reconcile {
            let found = self.target.service_ports().keys().filter(|_| self.rng.u8(0..8) == 0);
            outdated.extend(found.cloned());
        }
        let mut outdated: BTreeSet<_> = outdated.into_iter().filter(|_| self.rng.u8(0..3) == 0).collect();
        self.add_waiting(&mut outdated);
        let may_remain = self.work == Work::Reconcile || self.is_reconciling;
        self.is_reconciling = may_remain && self.rng.bool();
        self.report(outdated);
    }

    fn hand(&mut self) {
        for change in self.pending.state.clone().diff(&self.target) {
            let states = self.kernel.entry(change.key.clone()).or_insert_with(|| vec![None]);
            states.push(change.after.cloned());
            self.outdated.insert(change.key.clone());
            if change.after.is_none() {
                self.removed.insert(change.key.clone());
            }
        }
        self.pending.hand(&self.target);
    }

    /// Adds those that get a VIP which another one still has in the kernel.
    fn add_waiting(&self, outdated: &mut BTreeSet<ServicePortKey>) {
        let vips_of = |key: &ServicePortKey| {
            let states = self.kernel.get(key).into_iter().flatten().flatten();
            states.flat_map(vips).map(|vip| (key.protocol, vip)).collect::<Vec<_>>()
        };
        loop {
            let held: HashSet<_> = outdated.iter().flat_map(vips_of).collect();
            let waits =
                |key: &&ServicePortKey| !outdated.contains(key) && vips_of(key).iter().any(|vip| held.contains(vip));
            let Some(waiting) = self.outdated.iter().find(waits).cloned() else { return };
            outdated.insert(waiting);
        }
    }

    /// A call has programmed what is not outdated.
    fn report(&mut self, outdated: BTreeSet<ServicePortKey>) {
        for key in self.outdated.difference(&outdated) {
            let after = self.target.service_port(key);
            let before = self.kernel.insert(key.clone(), vec![after.cloned()]);
            let was_removed = self.removed.remove(key);
            if after.is_some() && key.protocol == Protocol::Udp {
                self.torn.extend(before.iter().flatten().flatten().cloned());
            }
            // Half-open connections to a VIP that was withdrawn are left to their clients.
            let is_left = |flow: &Flow| {
                let had = before.iter().flatten().flatten().any(|service| has_vip_of(service, flow));
                let has = after.is_some_and(|service| has_vip_of(service, flow));
                flow.protocol == Protocol::Tcp && is_translated(flow) && had && (!has || was_removed)
            };
            self.table.0.borrow_mut().retain(|flow| !is_left(flow));
        }
        if !self.is_reconciling {
            self.torn.clear();
        }
        self.outdated = outdated;
        if self.is_reconciling {
            self.pending.report_unfinished(self.work, self.outdated.clone());
        } else {
            let outdated: Vec<_> = self.outdated.iter().cloned().collect();
            self.pending.report_of(self.work, &outdated);
        }
        self.work = Work::Apply;
    }

    /// Some clients send packets to VIPs.
    fn connect(&mut self) {
        let cleaned_up = self.kernel.iter().filter(|(key, _)| key.protocol != Protocol::Sctp);
        let mut possible: BTreeSet<_> =
            cleaned_up.flat_map(|(key, states)| possible_flows(key.protocol, states)).collect();
        let torn = self.torn.iter().flat_map(|service| possible_flows(Protocol::Udp, &[Some(service.clone())]));
        let owned: HashSet<_> = self.kernel.values().flatten().flatten().flat_map(vips).collect();
        possible.extend(torn.filter(|(_, vip, _)| !owned.contains(vip)));
        for (protocol, vip, source) in possible {
            if self.rng.u8(0..4) == 0 {
                self.add_flow(protocol, vip, source);
            }
        }
    }

    fn add_flow(&mut self, protocol: Protocol, vip: SocketAddr, source: SocketAddr) {
        self.flows += 1;
        let client = if vip.is_ipv4() { [10, 9, 9, 9].into() } else { "fd00:9::9".parse().unwrap() };
        let client = SocketAddr::new(client, 4000);
        self.table.0.borrow_mut().push(Flow {
            protocol,
            original: Tuple { source: client, destination: vip },
            reply: Tuple { source, destination: client },
            id: self.flows,
            zone: ConntrackZone::Both(0),
            is_established: false,
            is_half_open: protocol == Protocol::Tcp,
        });
    }

    /// Passes that fail before they delete anything.
    fn fail_to_clean_up(&mut self) {
        if let Some(withdrawn) = self.pending.take_udp() {
            self.pending.put_back_udp(withdrawn);
        }
        if let Some(half_open) = self.pending.take_half_open() {
            self.pending.put_back_half_open(half_open.ports);
        }
    }

    /// A pass of each kind that is due.
    fn clean_up(&mut self) {
        let before = self.table.0.borrow().clone();
        if let Some(withdrawn) = self.pending.take_udp() {
            let UdpState { state, except } = self.pending.udp();
            let mut vips = Some(UdpVips::of(&state, &[], &except, &withdrawn));
            clean_up(&self.table, || vips.take(), || {}).unwrap();
        }
        if let Some(half_open) = self.pending.take_half_open() {
            half_open.clean_up(&self.table, &[], |_| true).unwrap();
        }
        let after: BTreeSet<_> = self.table.0.borrow().iter().map(|flow| flow.id).collect();
        for flow in before.iter().filter(|flow| !after.contains(&flow.id)) {
            let mut states = self.kernel.values().flatten().flatten();
            assert!(self.pending.is_confirmed && !states.any(|service| translates(service, flow)), "deleted {flow:?}");
            self.deleted += 1;
        }

        let later = Instant::now() + Duration::from_secs(60);
        if self.pending.next_reset().is_some() {
            let due = self.pending.due_resets(later);
            for (key, endpoints) in due.ports.iter().map(|port| (&port.key, port.open.keys())) {
                let states: Vec<_> = self.kernel[key].iter().flatten().collect();
                let mut endpoints = endpoints.clone();
                let is_programmed = |endpoint| !states.iter().any(|service| service.has_endpoint(endpoint));
                assert!(self.pending.is_confirmed && endpoints.all(is_programmed), "reset {key}");
            }
            self.pending.departed.passed(&due, later);
        }
    }

    /// All is programmed, confirmed and cleaned up. Only flows are left that the kernel would translate so.
    fn settle(&mut self) {
        self.hand();
        self.is_reconciling = false;
        self.report(BTreeSet::new());
        self.pending.set_confirmed(true);
        self.clean_up();
        assert!(!self.pending.is_udp_due() && !self.pending.is_half_open_due() && self.pending.next_reset().is_none());
        for flow in self.table.0.borrow().iter() {
            let services = || self.target.service_ports().iter().map(|(_, service)| service);
            let is_as_programmed = if is_translated(flow) {
                services().any(|service| translates(service, flow))
            } else {
                !services().any(|service| has_vip_of(service, flow))
            };
            assert!(is_as_programmed, "left {flow:?}");
        }
    }

    /// The process starts with the last state, of which it does not know whether the kernel has it.
    fn restart(&mut self) {
        self.pending = TestFlows::new(&self.target);
        self.pending.set_confirmed(false);
        self.outdated = self.target.service_ports().keys().cloned().collect();
        let outdated: Vec<_> = self.outdated.iter().cloned().collect();
        self.pending.report(&outdated);
        self.work = Work::Reconcile;
    }
}

#[test]
fn flows_follow_the_kernel_in_random_histories() {
    let mut deleted = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..4 {
            (0..30).for_each(|_| world.step());
            world.settle();
            world.restart();
        }
        deleted += world.deleted;
    }
    assert!(deleted > 1000, "{deleted}");
}
