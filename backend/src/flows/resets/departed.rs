//! Which endpoints departed, and when their connections are due to be reset. Decides by the instants that it is given.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::conntrack::Flow;
use proto::model::{Endpoint, IpFamily, PerFamily, ServicePortKey};

use crate::{
    Changes, DepartedEndpoints, NodeState, ServicePortState,
    dataplane::{Vip, vips},
    flows::udp::FlowVips,
};

/// For how long an endpoint has to be gone, without interruption, before its connections are reset.
pub(super) const ABSENCE: Duration = Duration::from_secs(3);

/// For how long an endpoint that departed is remembered if the frontend does not say that it is gone, as a cloud
/// controller deletes the Node later than its pods cease to be ready, or if its connections cannot be reset.
const MEMORY: Duration = Duration::from_secs(300);

/// The time after each pass over the connections until the next one: a probe or its answer may be lost. After the last
/// one the endpoint is forgotten.
pub(super) const PAUSES: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8), Duration::from_secs(16)];

/// The most endpoints that are remembered of a namespace, and in all. Connections to others are not reset.
const MAX_OF_NAMESPACE: usize = 1024;
const MAX: usize = 8192;

/// The endpoints that departed from service ports. The follower of the stream records, the worker reads.
#[derive(Debug, Default)]
pub(super) struct Departed {
    service_ports: BTreeMap<ServicePortKey, DepartedOfPort>,
    node_addresses: Vec<IpAddr>,
    /// Whether the connections of an endpoint must not be reset any more.
    is_revoked: bool,
}

#[derive(Debug, Default)]
struct DepartedOfPort {
    vips: PerFamily<Vec<Vip>>,
    endpoints: BTreeMap<Endpoint, Departure>,
}

/// An endpoint that departed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Departure {
    /// When it departed.
    at: Instant,
    /// When its connections are due to be reset (again); `None` while it need not be gone.
    due: Option<Instant>,
    /// The passes over its connections.
    passes: usize,
    /// The connections that the last pass found.
    open: usize,
}

/// The endpoints of a service port whose connections are due to be reset.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DuePort {
    key: ServicePortKey,
    /// Sorted.
    endpoints: Vec<Endpoint>,
}

/// The endpoints that are due, by VIP.
pub(super) type DueVips = FlowVips<Arc<DuePort>>;

/// What a pass looks for.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) vips: PerFamily<DueVips>,
    ports: Vec<Arc<DuePort>>,
    at: Instant,
}

/// The number of connections to each endpoint that is gone.
pub(super) type OpenConnections = BTreeMap<(ServicePortKey, Endpoint), usize>;

// === impl Departed ===

impl Departed {
    /// Records a commit. `state` is the committed one. `departed`: the endpoints that departed; `None`: what
    /// departed before is void.
    pub(super) fn committed(
        &mut self,
        departed: Option<DepartedEndpoints>,
        changes: &Changes,
        state: &NodeState,
        now: Instant,
    ) {
        if departed.is_none() {
            self.is_revoked |= !self.service_ports.is_empty();
            self.service_ports.clear();
        }
        if changes.node || departed.is_none() {
            self.node_addresses.clone_from(&state.node().addresses);
        }
        self.remember(departed.unwrap_or_default(), now);
        let known = changes.service_ports.iter().filter(|key| self.service_ports.contains_key(*key));
        for key in known.cloned().collect::<Vec<_>>() {
            self.update(&key, state.service_port(&key), now);
        }
    }

    fn remember(&mut self, departed: DepartedEndpoints, now: Instant) {
        if departed.is_empty() {
            return;
        }
        self.forget_old(now);
        let mut counts = BTreeMap::<_, usize>::new();
        for (key, of_port) in &self.service_ports {
            *counts.entry(key.namespace.clone()).or_default() += of_port.endpoints.len();
        }
        let mut room = MAX.saturating_sub(counts.values().sum());
        for (key, endpoints) in departed {
            let count = counts.entry(key.namespace.clone()).or_default();
            let known = &mut self.service_ports.entry(key).or_default().endpoints;
            for endpoint in endpoints.into_iter().take(room.min(MAX_OF_NAMESPACE.saturating_sub(*count))) {
                let departure = Departure { at: now, due: None, passes: 0, open: 0 };
                if known.insert(Endpoint { terminating: false, ..endpoint }, departure).is_none() {
                    *count += 1;
                    room -= 1;
                }
            }
        }
    }

    /// Compares what departed from a service port with its state.
    fn update(&mut self, key: &ServicePortKey, service: Option<&ServicePortState>, now: Instant) {
        let Some(DepartedOfPort { vips: of_port, endpoints }) = self.service_ports.get_mut(key) else { return };
        let Some(service) = service else {
            self.is_revoked = true;
            self.service_ports.remove(key);
            return;
        };
        *of_port = PerFamily::from_fn(|family| vips(&service.port, family).into_iter().map(|(vip, _)| vip).collect());
        endpoints.retain(|endpoint, departure| {
            let is_gone = is_gone(service, endpoint);
            self.is_revoked |= !is_gone && departure.due.is_some();
            departure.due = is_gone.then(|| departure.due.unwrap_or(now + ABSENCE));
            !service.has_endpoint(endpoint)
        });
        if endpoints.is_empty() {
            self.service_ports.remove(key);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        self.service_ports.retain(|_, DepartedOfPort { endpoints, .. }| {
            endpoints.retain(|_, departure| now < departure.due.unwrap_or(departure.at) + MEMORY);
            !endpoints.is_empty()
        });
    }

    /// When the next connections are due to be reset.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let departures = self.service_ports.values().flat_map(|of_port| of_port.endpoints.values());
        departures.filter_map(|departure| departure.due).min()
    }

    /// What is due now.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        self.forget_old(now);
        let of_port = |(key, DepartedOfPort { vips, endpoints }): (&ServicePortKey, &DepartedOfPort)| {
            let due = endpoints.iter().filter(|(_, departure)| departure.due.is_some_and(|due| due <= now));
            let endpoints: Vec<_> = due.map(|(endpoint, _)| *endpoint).collect();
            let port = Arc::new(DuePort { key: key.clone(), endpoints });
            (!port.endpoints.is_empty()).then(|| {
                let of_family = |family| {
                    let is_of_family = |endpoint: &Endpoint| IpFamily::of(&endpoint.address) == family;
                    let has_family = port.endpoints.iter().any(is_of_family);
                    (if has_family { vips[family].clone() } else { Vec::new() }, port.clone())
                };
                (PerFamily::from_fn(of_family), port.clone())
            })
        };
        let (vips, ports): (Vec<_>, Vec<_>) = self.service_ports.iter().filter_map(of_port).unzip();
        Due { vips: DueVips::of_service_ports(vips.iter(), &self.node_addresses), ports, at: now }
    }

    /// Records a pass that found this number of connections to each endpoint. Returns how many were reset since the
    /// pass before.
    pub(super) fn passed(&mut self, due: &Due, open: &OpenConnections, now: Instant) -> usize {
        let mut reset = 0;
        for port in &due.ports {
            let Some(DepartedOfPort { endpoints, .. }) = self.service_ports.get_mut(&port.key) else { continue };
            for endpoint in &port.endpoints {
                let Some(departure) = endpoints.get_mut(endpoint) else { continue };
                if departure.due.is_none_or(|at| at > due.at) {
                    continue;
                }
                let open = open.get(&(port.key.clone(), *endpoint)).copied().unwrap_or_default();
                reset += departure.open.saturating_sub(open);
                match PAUSES.get(departure.passes).filter(|_| open > 0) {
                    Some(pause) => {
                        let passes = departure.passes + 1;
                        *departure = Departure { due: Some(now + *pause), passes, open, ..*departure };
                    }
                    None => drop(endpoints.remove(endpoint)),
                }
            }
            if endpoints.is_empty() {
                self.service_ports.remove(&port.key);
            }
        }
        reset
    }

    /// Whether connections of an endpoint must not be reset any more, for which this has not returned true before.
    pub(super) fn take_revoked(&mut self) -> bool {
        std::mem::take(&mut self.is_revoked)
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.is_revoked
    }
}

impl DueVips {
    /// The service port and the endpoint, if this connection was translated from one of these VIPs to an endpoint that
    /// is due. One that is not translated is older than the VIP, or is none of the Service: its peer may be alive.
    pub(super) fn of_gone(&self, flow: &Flow) -> Option<(ServicePortKey, Endpoint)> {
        let source = flow.reply.source;
        let port = self.get(flow).filter(|_| flow.is_established && source != flow.original.destination)?;
        let endpoint = Endpoint::new(source.ip(), NonZeroU16::new(source.port())?);
        port.endpoints.binary_search(&endpoint).ok().map(|_| (port.key.clone(), endpoint))
    }
}

/// Whether an endpoint that departed is gone: the frontend says so, and others can serve.
fn is_gone(service: &ServicePortState, endpoint: &Endpoint) -> bool {
    let family = IpFamily::of(&endpoint.address);
    let gone = &service.gone[family];
    let is_known = || {
        let known = [&service.cluster, &service.local, &service.established];
        known.iter().any(|pools| pools[family].has_address(endpoint.address))
    };
    let is_said = gone.contains(endpoint) || (gone.contains(&Endpoint::any_other(family)) && !is_known());
    service.port.any_endpoints[family] && is_said
}
