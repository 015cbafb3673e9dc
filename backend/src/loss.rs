//! Withholds large losses. A frontend that lost its objects, or serves another cluster, must not remove all Services
//! from all nodes at once: Services that lose their endpoints beyond a limit keep them until a second snapshot confirms
//! the loss. Everything else of the same commits is applied: a VIP, cluster IP or node port of a Service that is not
//! lost is taken from a lost one at once.
//!
//! ```text
//!   commit ──▶ NodeState as committed ──▶ Services that lost all endpoints within WINDOW ──▶ LossLimit
//!                      │                                                                        │ exceeded
//!                      ▼                                                                        ▼
//!              digests, acks                              NodeState to program: with the endpoints they had before
//! ```
//!
//! After a restart of the node, pods on it have other addresses than in the stored state. Until a frontend has
//! confirmed that state, the addresses that they had are left out. Their loss does not count: all Services of a cluster
//! with one node lose their endpoints then.

mod claims;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt, mem,
    net::IpAddr,
    num::NonZeroU16,
    str::FromStr,
    time::Duration,
};

use proto::{
    model::{ClusterInfo, Endpoint, ServicePortKey},
    state::ServicePortChange,
};
use tokio::time::Instant;

use crate::{DepartedEndpoints, NodeState, ServiceName, ServicePortState};

/// The most Services that are remembered because a frontend has confirmed their loss. Beyond it all are forgotten, and
/// count as new if they return.
const MAX_CONFIRMED_LOST: usize = 65_536;

/// The smallest loss that is limited, in Services of all namespaces together. Smaller losses are applied even if they
/// are a large share of a small cluster. Unlike for the share, the namespace that loses most counts: it may have most
/// Services of the cluster.
const MIN_LOST: usize = 10;

/// Losses within this time count together. A frontend that loses its objects loses them within seconds.
const WINDOW: Duration = Duration::from_secs(60);

/// The delay before a snapshot is requested that confirms a loss beyond the limit.
pub(crate) const CONFIRM_DELAY: Duration = Duration::from_secs(10);

/// How long after the restart of the node the loss of its former endpoints does not count, from the start of the
/// process on: the API server learns minutes later that they are gone.
const BOOT_GRACE_PERIOD: Duration = Duration::from_secs(600);

/// The largest share of the Services with endpoints that may lose all of them within a minute, in percent: 1 to 100,
/// and 100 is no limit. The namespace that loses most does not count, so that its owner cannot exceed the limit alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossLimit(u8);

/// The loss of a namespace, or of several, within [`WINDOW`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The Services that lost all their endpoints.
    pub(crate) lost: usize,
    /// The Services that had endpoints.
    pub(crate) of: usize,
}

/// Decides which losses of a commit are applied.
#[derive(Debug)]
pub(crate) struct LossGuard {
    limit: LossLimit,
    /// The Services that lost all their endpoints, and when.
    lost: BTreeMap<ServiceName, Instant>,
    /// The Services that were in `lost` when a snapshot confirmed the loss. They are not new if they return, however
    /// late.
    confirmed_lost: BTreeSet<ServiceName>,
    /// The Services that had no endpoints at the start of [`WINDOW`], and when they got some. Their loss does not
    /// count.
    new: BTreeMap<ServiceName, Instant>,
    withheld: Option<Withheld>,
    /// An earlier process withheld a loss, which no frontend has taken back or confirmed to this one: see
    /// [`continue_withholding`](Self::continue_withholding).
    continues: bool,
    before_boot: Option<BeforeBoot>,
}

/// The endpoints that this node had before it restarted.
#[derive(Debug)]
struct BeforeBoot {
    endpoints: HashSet<(IpAddr, NonZeroU16)>,
    until: Instant,
}

/// Service ports that the kernel does not get as they are committed.
#[derive(Debug, Default)]
struct Withheld {
    /// The service ports of lost Services, or with endpoints that this node had before it restarted.
    service_ports: BTreeSet<ServicePortKey>,
    /// When a loss is due to be confirmed; `None`: any message of a frontend confirms the state.
    confirm_at: Option<Instant>,
}

/// A commit: the committed states before and after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit<'a> {
    pub(crate) before: &'a NodeState,
    pub(crate) after: &'a NodeState,
    /// Whether its losses are not limited.
    pub(crate) is_confirmed: bool,
}

/// The part of a commit that is programmed.
#[derive(Debug)]
pub(crate) struct Decision {
    /// The state to program.
    pub(crate) state: NodeState,
    /// The endpoints that departed, without those of withheld Services: the frontend may have lost its objects.
    pub(crate) departed: DepartedEndpoints,
    /// The loss that begins to be withheld.
    pub(crate) loss: Option<Loss>,
}

/// The endpoints that a commit takes from service ports, and the Services that it gives endpoints.
#[derive(Debug, Default)]
struct Differences<'a> {
    departed: DepartedEndpoints,
    /// The service ports that lose all their endpoints, as they were.
    emptied: Vec<&'a ServicePortState>,
    /// The Services of the service ports that had no endpoints.
    filled: BTreeSet<ServiceName>,
}

// === impl LossGuard ===

impl LossGuard {
    pub(crate) fn new(limit: LossLimit) -> Self {
        Self {
            limit,
            lost: BTreeMap::new(),
            confirmed_lost: BTreeSet::new(),
            new: BTreeMap::new(),
            withheld: None,
            continues: false,
            before_boot: None,
        }
    }

    /// An earlier process withheld a loss, and the committed state is the one before that loss. The losses of the next
    /// commits are withheld, too, whatever their size, until they are confirmed: the losses that had led to the limit
    /// are applied already, and are not remembered.
    pub(crate) fn continue_withholding(&mut self) {
        self.continues = true;
    }

    /// Whether an earlier process withheld a loss, which no frontend has taken back or confirmed to this one.
    pub(crate) fn continues(&self) -> bool {
        self.continues
    }

    /// When a snapshot is due that confirms the withheld loss; `None` if nothing is withheld.
    pub(crate) fn confirm_at(&self) -> Option<Instant> {
        self.withheld.as_ref()?.confirm_at
    }

    /// Whether the programmed state differs from the committed one.
    pub(crate) fn is_withholding(&self) -> bool {
        self.withheld.is_some()
    }

    /// The number of service ports whose loss is withheld.
    pub(crate) fn withheld_service_ports(&self) -> usize {
        match &self.withheld {
            Some(Withheld { service_ports, confirm_at: Some(_) }) => service_ports.len(),
            _ => 0,
        }
    }

    /// The number of service ports without the endpoints that this node had before it restarted.
    pub(crate) fn unconfirmed_service_ports(&self) -> usize {
        match &self.withheld {
            Some(Withheld { service_ports, confirm_at: None }) => service_ports.len(),
            _ => 0,
        }
    }

    /// The node has restarted since a frontend confirmed this state. Returns the state to program: without the
    /// endpoints on the node, except for those on its host network, whose addresses stay.
    pub(crate) fn restarted(&mut self, committed: &NodeState) -> NodeState {
        let addresses = &committed.node().addresses;
        let mut endpoints = HashSet::new();
        let mut service_ports = BTreeSet::new();
        let mut state = committed.clone();
        for (key, service) in committed.service_ports().iter() {
            endpoints.extend(service.local.iter().flat_map(|(_, pool)| pool.iter().map(Endpoint::identity)));
            if let Some(without) = service.without_local(|endpoint| addresses.contains(&endpoint.address)) {
                state.set_service_port(key, Some(without));
                service_ports.insert(key.clone());
            }
        }

        self.before_boot = Some(BeforeBoot { endpoints, until: Instant::now() + BOOT_GRACE_PERIOD });
        if !service_ports.is_empty() {
            self.withheld = Some(Withheld { service_ports, confirm_at: None });
        }
        state
    }

    /// A frontend has confirmed the committed state. Returns whether that is to be programmed now.
    pub(crate) fn confirmed(&mut self) -> bool {
        self.continues &= self.confirm_at().is_some();
        self.withheld.take_if(|withheld| withheld.confirm_at.is_none()).is_some()
    }

    /// Decides which part of a commit is programmed. `programmed` is the state that was programmed before.
    pub(crate) fn commit(&mut self, commit: &Commit<'_>, programmed: &NodeState) -> Decision {
        let Commit { before, after, is_confirmed } = *commit;
        let Withheld { mut service_ports, confirm_at } = self.withheld.take().unwrap_or_default();
        let continues = mem::take(&mut self.continues);
        let Differences { mut departed, emptied, filled } = Differences::between(before, after);

        let exceeded = if is_confirmed {
            self.confirm_losses(after);
            None
        } else {
            self.record_new(filled, before);
            self.record(&emptied, &service_ports, after);
            self.check(after, continues).err()
        };

        if exceeded.is_some() {
            service_ports.extend(emptied.iter().map(|service| service.port.key.clone()));
        }
        // Also of Services that are withheld no longer: the kernel had other endpoints than the commit before.
        departed.retain(|key, _| !service_ports.contains(key));
        service_ports.retain(|key| self.lost.contains_key(&ServiceName::of(key)));

        let loss = if confirm_at.is_none() { exceeded } else { None };
        if service_ports.is_empty() {
            return Decision { state: after.clone(), departed, loss };
        }

        let state = with_losses(after, &service_ports, programmed);
        let confirm_at = Some(confirm_at.unwrap_or_else(|| Instant::now() + CONFIRM_DELAY));
        self.withheld = Some(Withheld { service_ports, confirm_at });
        self.continues = continues;
        Decision { state, departed, loss }
    }

    /// A snapshot has confirmed all losses. The Services that are still lost are remembered: they are not new if they
    /// return.
    fn confirm_losses(&mut self, state: &NodeState) {
        self.confirmed_lost.extend(mem::take(&mut self.lost).into_keys());
        self.confirmed_lost.retain(|name| !has_endpoints(name, state));
        if self.confirmed_lost.len() > MAX_CONFIRMED_LOST {
            self.confirmed_lost.clear();
        }
    }

    /// Records which of the Services that have got endpoints had none for a while. `before` is the state before that.
    fn record_new(&mut self, filled: BTreeSet<ServiceName>, before: &NodeState) {
        let now = Instant::now();
        self.new.retain(|_, since| now - *since < WINDOW);
        for name in filled {
            let has_returned = self.confirmed_lost.remove(&name) || self.lost.contains_key(&name);
            if !has_returned && !has_endpoints(&name, before) {
                self.new.entry(name).or_insert(now);
            }
        }
    }

    /// Records which Services have lost all their endpoints. `state` is the committed one.
    fn record(&mut self, emptied: &[&ServicePortState], withheld: &BTreeSet<ServicePortKey>, state: &NodeState) {
        let now = Instant::now();
        self.before_boot.take_if(|before_boot| now >= before_boot.until);
        for service in emptied {
            if self.before_boot.as_ref().is_some_and(|before_boot| before_boot.had_all_of(service)) {
                continue;
            }
            let name = ServiceName::of(&service.port.key);
            if !self.new.contains_key(&name) {
                self.lost.insert(name, now);
            }
        }
        if self.lost.is_empty() {
            return;
        }

        let withheld: BTreeSet<_> = withheld.iter().map(ServiceName::of).collect();
        self.lost.retain(|name, lost| {
            let counts = now - *lost < WINDOW || withheld.contains(name);
            counts && !has_endpoints(name, state)
        });
    }

    /// Whether the limit admits the losses; any loss exceeds it if a withheld loss `continues`. Inspects the whole
    /// state only if many Services are lost.
    fn check(&self, state: &NodeState, continues: bool) -> Result<(), Loss> {
        let min_lost = if continues { 1 } else { MIN_LOST };
        if self.limit == LossLimit::NONE || self.lost.len() < min_lost {
            return Ok(());
        }

        let namespaces = self.loss_of_namespaces(state);
        if continues { Err(Loss::total(&namespaces)) } else { self.limit.check(namespaces) }
    }

    /// The loss of each namespace that has Services with endpoints, or has lost some.
    fn loss_of_namespaces(&self, state: &NodeState) -> Vec<Loss> {
        let mut namespaces: BTreeMap<&str, Loss> = BTreeMap::new();
        for name in self.lost.keys() {
            let namespace = namespaces.entry(&name.namespace).or_default();
            namespace.lost += 1;
            namespace.of += 1;
        }

        let serving = state.service_ports().iter().filter(|(_, service)| service.has_endpoints());
        let mut names: Vec<_> = serving.map(|(key, _)| (&*key.namespace, &*key.name)).collect();
        names.dedup();
        for (namespace, _) in names {
            namespaces.entry(namespace).or_default().of += 1;
        }
        namespaces.into_values().collect()
    }
}

impl BeforeBoot {
    /// Whether all endpoints of a service port were on this node before it restarted.
    fn had_all_of(&self, service: &ServicePortState) -> bool {
        let mut endpoints = service.selectable().flat_map(|(.., pool)| pool.iter().map(Endpoint::identity));
        endpoints.all(|endpoint| self.endpoints.contains(&endpoint))
    }
}

impl<'a> Differences<'a> {
    fn between(before: &'a NodeState, after: &'a NodeState) -> Self {
        let mut differences = Self::default();
        for change in before.diff(after) {
            differences.departed.extend(change.departed());
            differences.emptied.extend(emptied_by(&change));
            differences.filled.extend(filled_by(&change));
        }
        differences
    }
}

impl Loss {
    fn total(namespaces: &[Self]) -> Self {
        namespaces.iter().fold(Self::default(), |total, namespace| Self {
            lost: total.lost + namespace.lost,
            of: total.of + namespace.of,
        })
    }
}

// === impl LossLimit ===

impl LossLimit {
    /// No limit.
    pub const NONE: Self = Self(100);

    /// Checks the share of the Services, and the mean of the shares of the namespaces. The limit applies to the smaller
    /// of both, so that neither a large namespace nor many small ones exceed it alone.
    fn check(self, mut namespaces: Vec<Loss>) -> Result<(), Loss> {
        if namespaces.len() > 1 {
            namespaces.sort_unstable_by_key(|namespace| namespace.lost);
            namespaces.pop();
        }

        let Loss { lost, of } = Loss::total(&namespaces);
        let shares: f64 = namespaces.iter().map(|namespace| namespace.lost as f64 / namespace.of as f64).sum();
        let limit = f64::from(self.0) / 100.0;
        let exceeds = lost as f64 > limit * of as f64 && shares > limit * namespaces.len() as f64;
        if exceeds { Err(Loss { lost, of }) } else { Ok(()) }
    }
}

impl Default for LossLimit {
    /// 50%.
    fn default() -> Self {
        Self(50)
    }
}

impl FromStr for LossLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().trim_end_matches('%').parse() {
            Ok(number @ 1..=100) => Ok(Self(number)),
            _ => Err(format!("{text:?} is not a percentage from 1 to 100")),
        }
    }
}

impl fmt::Display for LossLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} Services with endpoints lost them all", self.lost, self.of)
    }
}

/// The state to program: the committed one, in which lost service ports are as they were programmed, without the VIPs
/// that others have now.
fn with_losses(committed: &NodeState, lost: &BTreeSet<ServicePortKey>, programmed: &NodeState) -> NodeState {
    let lost = lost.iter().map(|key| (key.clone(), programmed.service_port(key).cloned()));
    let mut lost: BTreeMap<_, _> = lost.collect();
    let taken = claims::taken(&lost, committed);
    for service in lost.values_mut().flatten() {
        claims::remove(&taken, &mut service.port);
    }

    let mut state = committed.clone();
    for (key, service) in lost {
        state.set_service_port(&key, service);
    }
    // A frontend that lost its objects does not know the facts of the cluster. Those of the node are retained anyway.
    if *committed.cluster() == ClusterInfo::default() {
        state.put_cluster(programmed.cluster().clone());
    }
    state
}

/// Whether a Service has endpoints in a state.
fn has_endpoints(name: &ServiceName, state: &NodeState) -> bool {
    state.ports_of(name).any(|(_, service)| service.has_endpoints())
}

/// The service port as it was, if it loses all its endpoints.
pub(crate) fn emptied_by<'a>(change: &ServicePortChange<'a>) -> Option<&'a ServicePortState> {
    let is_empty = !change.after.is_some_and(ServicePortState::has_endpoints);
    if is_empty { change.before.filter(|before| before.has_endpoints()) } else { None }
}

/// The Service of the service port, if that had no endpoints and gets some.
fn filled_by(change: &ServicePortChange<'_>) -> Option<ServiceName> {
    let was_empty = !change.before.is_some_and(ServicePortState::has_endpoints);
    let is_filled = was_empty && change.after.is_some_and(ServicePortState::has_endpoints);
    if is_filled { Some(ServiceName::of(change.key)) } else { None }
}

#[cfg(test)]
mod tests;
