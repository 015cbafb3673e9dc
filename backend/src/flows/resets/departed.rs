//! Which endpoints departed, and when their connections are due to be reset. Pure: callers pass the time.
//!
//! ```text
//!   leaves its service port ─▶ remembered ─ the frontend says "gone" ─▶ due RESET_DELAY later
//!                                                                        │ passes, each PASS_DELAYS after the last one
//!     returns, RETENTION is over, or a pass finds no connection ─▶ forgotten
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::conntrack::{Flow, Tuple};
use proto::model::{Endpoint, IpFamily, PerFamily, ServicePortKey};
use runtime::Excess;

use crate::{
    Changes, DepartedEndpoints, NodeState, ServicePortState,
    flows::{
        half_open::endpoint_at,
        vips::{FlowVips, vips_of},
    },
};

/// For how long an endpoint has to be gone, without interruption, before its connections are reset.
pub(super) const RESET_DELAY: Duration = Duration::from_secs(3);

/// For how long an endpoint that departed is remembered if the frontend does not say that it is gone, as a cloud
/// controller deletes the Node later than its pods cease to be ready, or if its connections cannot be reset.
const RETENTION: Duration = Duration::from_secs(300);

/// The delays between the passes over the connections to one endpoint, because a probe or its answer may be lost. After
/// the last pass the endpoint is forgotten.
pub(super) const PASS_DELAYS: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8), Duration::from_secs(16)];

/// The most endpoints that are remembered. Beyond it the namespaces with most of them lose some, whose connections are
/// not reset.
const MAX_REMEMBERED: usize = 8192;

/// The endpoints that departed from service ports.
#[derive(Debug, Default)]
pub(in crate::flows) struct Departed {
    service_ports: BTreeMap<ServicePortKey, BTreeMap<Endpoint, Departure>>,
    /// The namespaces with endpoints whose connections must not be reset any more, until the thread takes them.
    pub(in crate::flows) revoked: BTreeSet<Arc<str>>,
}

/// An endpoint that departed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Departure {
    /// When it departed.
    at: Instant,
    /// When to reset its connections next. `None` while the frontend does not say that the endpoint is gone, because it
    /// may still serve them.
    due: Option<Instant>,
    /// The passes over its connections.
    passes: usize,
}

/// The endpoints whose connections a pass looks for, and the connections that it finds.
#[derive(Debug)]
pub(in crate::flows) struct Due {
    /// The index in `ports` of the service port that has a VIP.
    pub(super) vips: PerFamily<FlowVips<usize>>,
    pub(in crate::flows) ports: Vec<DuePort>,
    state: NodeState,
    /// When the pass began.
    at: Instant,
}

/// A service port, with the number of connections to each of its endpoints that are due.
#[derive(Debug)]
pub(in crate::flows) struct DuePort {
    pub(in crate::flows) key: ServicePortKey,
    pub(in crate::flows) open: BTreeMap<Endpoint, usize>,
}

// === impl Departed ===

impl Departed {
    /// Records a commit, which leads to `state`. `departed` are the endpoints that it takes from service ports; `None`
    /// if it cannot be compared with the commit before, so that earlier departures are void, too.
    pub(in crate::flows) fn committed(
        &mut self,
        departed: Option<DepartedEndpoints>,
        changes: &Changes,
        state: &NodeState,
        now: Instant,
    ) {
        match departed {
            Some(departed) => self.remember(departed, now),
            None => self.forget_all(),
        }
        for key in &changes.service_ports {
            self.update(key, state.service_port(key), now);
        }
    }

    /// No connection is reset any more.
    fn forget_all(&mut self) {
        self.revoked.extend(mem::take(&mut self.service_ports).into_keys().map(|key| key.namespace));
    }

    fn remember(&mut self, departed: DepartedEndpoints, now: Instant) {
        if departed.is_empty() {
            return;
        }

        self.forget_old(now);
        for (key, endpoints) in departed {
            let known = self.service_ports.entry(key).or_default();
            for endpoint in endpoints {
                let departure = Departure { at: now, due: None, passes: 0 };
                known.insert(Endpoint { terminating: false, ..endpoint }, departure);
            }
        }

        let remembered = self.service_ports.iter().map(|(key, endpoints)| (key.namespace.clone(), endpoints.len()));
        let mut excess = Excess::beyond(MAX_REMEMBERED, remembered);
        if excess.owners().next().is_some() {
            self.forget_excess(&mut excess);
        }
    }

    fn forget_excess(&mut self, excess: &mut Excess<Arc<str>>) {
        for (ServicePortKey { namespace, .. }, endpoints) in &mut self.service_ports {
            for (_, forgotten) in endpoints.extract_if(.., |_, _| excess.take(namespace)) {
                // Nothing would remove the rules of the endpoint when it returns.
                if forgotten.due.is_some() {
                    self.revoked.insert(namespace.clone());
                }
            }
        }
        self.service_ports.retain(|_, endpoints| !endpoints.is_empty());
    }

    /// Compares the endpoints that departed from a service port with its state.
    fn update(&mut self, key: &ServicePortKey, service: Option<&ServicePortState>, now: Instant) {
        let Some(endpoints) = self.service_ports.get_mut(key) else { return };
        let Some(service) = service else {
            self.revoked.insert(key.namespace.clone());
            self.service_ports.remove(key);
            return;
        };

        let mut is_revoked = false;
        for (endpoint, departure) in endpoints.iter_mut() {
            if is_gone(service, endpoint) {
                departure.due.get_or_insert(now + RESET_DELAY);
            } else {
                is_revoked |= departure.due.take().is_some();
                departure.passes = 0;
            }
        }
        endpoints.retain(|endpoint, _| !service.has_endpoint(endpoint));

        if endpoints.is_empty() {
            self.service_ports.remove(key);
        }
        if is_revoked {
            self.revoked.insert(key.namespace.clone());
        }
    }

    fn forget_old(&mut self, now: Instant) {
        self.service_ports.retain(|_, endpoints| {
            endpoints.retain(|_, departure| now < departure.due.unwrap_or(departure.at) + RETENTION);
            !endpoints.is_empty()
        });
    }

    /// When the next connections of service ports that are programmed are due to be reset.
    pub(in crate::flows) fn next_due(&self, is_programmed: impl Fn(&ServicePortKey) -> bool) -> Option<Instant> {
        let programmed = self.service_ports.iter().filter(|(key, _)| is_programmed(key));
        programmed.flat_map(|(_, endpoints)| endpoints.values()).filter_map(|departure| departure.due).min()
    }

    /// The endpoints that are due now. `is_programmed` says which service ports the kernel has as in `state`, which may
    /// be older than a departure.
    pub(in crate::flows) fn due(
        &mut self,
        state: &NodeState,
        is_programmed: impl Fn(&ServicePortKey) -> bool,
        now: Instant,
    ) -> Due {
        self.forget_old(now);
        let vips = FlowVips::at(&state.node().addresses);
        let mut due = Due { vips, ports: Vec::new(), state: state.clone(), at: now };
        for (key, endpoints) in self.service_ports.iter().filter(|(key, _)| is_programmed(key)) {
            let Some(service) = state.service_port(key) else { continue };
            let endpoints = endpoints.iter().filter(|(_, departure)| departure.is_due(now));
            let departed = endpoints.filter(|(endpoint, _)| !service.has_endpoint(endpoint));
            let open: BTreeMap<_, _> = departed.map(|(endpoint, _)| (*endpoint, 0)).collect();
            if open.is_empty() {
                continue;
            }

            for family in IpFamily::ALL {
                if open.keys().any(|endpoint| IpFamily::of(&endpoint.address) == family) {
                    due.vips[family].add(vips_of(service, family), &due.ports.len());
                }
            }
            due.ports.push(DuePort { key: key.clone(), open });
        }
        due
    }

    /// Leaves out the endpoints that are not due any more, and the endpoints of namespaces whose rules are about to be
    /// removed.
    pub(in crate::flows) fn retain_due(&self, due: &mut Due) {
        for DuePort { key, open } in &mut due.ports {
            match self.service_ports.get(key) {
                Some(departures) if !self.revoked.contains(&key.namespace) => {
                    open.retain(|endpoint, _| {
                        departures.get(endpoint).is_some_and(|departure| departure.is_due(due.at))
                    });
                }
                _ => open.clear(),
            }
        }
    }

    /// Records a pass. Returns how many connections it has found to endpoints of which it was the first pass.
    pub(in crate::flows) fn passed(&mut self, due: &Due, now: Instant) -> usize {
        let mut found = 0;
        for DuePort { key, open } in &due.ports {
            let Some(endpoints) = self.service_ports.get_mut(key) else { continue };
            for (endpoint, open) in open {
                let Some(departure) = endpoints.get_mut(endpoint) else { continue };
                if !departure.is_due(due.at) {
                    continue;
                }

                if departure.passes == 0 {
                    found += open;
                }
                match PASS_DELAYS.get(departure.passes) {
                    Some(delay) if *open > 0 => {
                        departure.due = Some(now + *delay);
                        departure.passes += 1;
                    }
                    _ => drop(endpoints.remove(endpoint)),
                }
            }
            if endpoints.is_empty() {
                self.service_ports.remove(key);
            }
        }
        found
    }
}

impl Departure {
    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

impl Due {
    /// Adds addresses that serve node ports, except where they are VIPs of a Service.
    pub(super) fn add_addresses(&mut self, family: IpFamily, addresses: &HashSet<IpAddr>) {
        self.vips[family].add_addresses(addresses);
        self.vips[family].prefer_vips(&self.state);
    }

    /// Counts a connection, and returns its service port, if it was translated from one of these VIPs to an endpoint
    /// that is due. A connection that is not translated is older than the VIP, or does not belong to the Service: its
    /// peer may be alive.
    pub(super) fn count(&mut self, flow: &Flow) -> Option<&ServicePortKey> {
        let (index, endpoint) = self.find(flow)?;
        let DuePort { key, open } = &mut self.ports[index];
        *open.get_mut(&endpoint)? += 1;
        Some(key)
    }

    /// The namespace of a connection as [`Self::count`] counts it.
    pub(super) fn namespace(&self, flow: &Flow) -> Option<Arc<str>> {
        let (index, _) = self.find(flow)?;
        Some(self.ports[index].key.namespace.clone())
    }

    /// The index of the service port, and the endpoint.
    fn find(&self, flow: &Flow) -> Option<(usize, Endpoint)> {
        let Tuple { source, destination: client } = flow.reply;
        let index = *self.vips[IpFamily::of(&client.ip())].get(flow)?;
        let endpoint = endpoint_at(source)?;

        let is_translated = flow.is_established && source != flow.original.destination;
        let is_due = self.ports.get(index)?.open.contains_key(&endpoint);
        if is_translated && is_due { Some((index, endpoint)) } else { None }
    }
}

/// Whether an endpoint that departed is gone: the frontend says so, and others can serve.
fn is_gone(service: &ServicePortState, endpoint: &Endpoint) -> bool {
    let family = IpFamily::of(&endpoint.address);
    let gone = &service.gone[family];
    let is_said =
        gone.contains(endpoint) || gone.contains(&Endpoint::any_other(family)) && !is_known(service, endpoint.address);
    service.port.any_endpoints[family] && is_said
}

/// Whether the service port has an endpoint at this address, in any pool but the one of endpoints that are gone.
fn is_known(service: &ServicePortState, address: IpAddr) -> bool {
    let family = IpFamily::of(&address);
    [&service.cluster, &service.local, &service.established].iter().any(|pools| pools[family].has_address(address))
}
