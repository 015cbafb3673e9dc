//! Withholds large losses. A frontend that lost its objects, or serves another cluster, must not remove all Services
//! from all nodes at once: Services that lose their endpoints beyond a limit keep them until a second snapshot confirms
//! the loss. Everything else of the same commits is applied: a VIP or node port of a Service that is not lost is taken
//! from a lost one at once.
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
    fmt,
    net::IpAddr,
    num::NonZeroU16,
    str::FromStr,
    time::Duration,
};

use proto::{
    digest::DigestVector,
    model::{ClusterInfo, Endpoint, ServicePortKey},
};
use tokio::time::Instant;

use self::claims::Claims;
use crate::{Changes, CommitResult, NodeState, ServicePortState, Stage, state::ServiceName};

/// Smaller losses, in Services, are always applied, even if they are a large share of a small cluster.
const MIN_LOST: usize = 10;

/// Losses within this time count together. A frontend that loses its objects loses them within seconds.
const WINDOW: Duration = Duration::from_secs(60);

/// For how long after the start of the process on a restarted node the loss of its former endpoints does not count: the
/// API server learns minutes later that they are gone.
const AFTER_BOOT: Duration = Duration::from_secs(600);

/// The largest share of the Services with endpoints that may lose all of them within a minute, in percent: 1 to 100,
/// and 100 is no limit. The namespace that loses most does not count, so that its owner cannot exceed the limit alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossLimit(u8);

/// A loss that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The Services that lost all their endpoints.
    pub lost: usize,
    /// The Services that had endpoints.
    pub of: usize,
}

/// Decides which losses of a commit are applied.
#[derive(Debug)]
pub(crate) struct LossGuard {
    limit: LossLimit,
    /// The time from a loss beyond the limit to its confirmation.
    confirm_delay: Duration,
    /// When Services lost all their endpoints.
    lost: BTreeMap<ServiceName, Instant>,
    withheld: Option<Withheld>,
    before_boot: Option<BeforeBoot>,
}

/// The endpoints that this node had before it restarted.
#[derive(Debug)]
struct BeforeBoot {
    endpoints: HashSet<(IpAddr, NonZeroU16)>,
    until: Instant,
}

/// The committed content that is not programmed.
#[derive(Debug)]
struct Withheld {
    /// The service ports of lost Services, or with endpoints that this node had before it restarted; `None`: removed.
    service_ports: BTreeMap<ServicePortKey, Option<ServicePortState>>,
    cluster: ClusterInfo,
    digests: DigestVector,
    /// When a loss is due to be confirmed; `None`: any message of a frontend confirms the state.
    confirm_at: Option<Instant>,
}

/// The Services of one namespace that had endpoints within [`WINDOW`], and how many of them lost all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NamespaceLoss {
    lost: usize,
    of: usize,
}

// === impl LossGuard ===

impl LossGuard {
    pub(crate) fn new(limit: LossLimit, confirm_delay: Duration) -> Self {
        Self { limit, confirm_delay, lost: BTreeMap::new(), withheld: None, before_boot: None }
    }

    /// The digests of the committed state. `state` is what is programmed.
    pub(crate) fn digests<'a>(&'a self, state: &'a NodeState) -> &'a DigestVector {
        self.withheld.as_ref().map_or(state.digests(), |withheld| &withheld.digests)
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
        let withheld = self.withheld.as_ref().filter(|withheld| withheld.confirm_at.is_some());
        withheld.map_or(0, |withheld| withheld.service_ports.len())
    }

    /// The number of service ports without the endpoints that this node had before it restarted.
    pub(crate) fn unconfirmed_service_ports(&self) -> usize {
        let withheld = self.withheld.as_ref().filter(|withheld| withheld.confirm_at.is_none());
        withheld.map_or(0, |withheld| withheld.service_ports.len())
    }

    /// The node has restarted since a frontend confirmed `state`. Leaves out the endpoints on the node, except for
    /// those on its host network, whose addresses stay. Returns how many service ports have any.
    pub(crate) fn restarted(&mut self, state: &mut NodeState) -> usize {
        let digests = state.digests().clone();
        let mut endpoints = HashSet::new();
        let mut without = Vec::new();
        let addresses = &state.node().addresses;
        let is_on_host = |endpoint: &Endpoint| addresses.contains(&endpoint.address);
        for (key, service) in state.service_ports() {
            endpoints.extend(service.local.iter().flat_map(|(_, pool)| pool.iter().map(Endpoint::identity)));
            without.extend(service.without_local(is_on_host).map(|service| (key.clone(), service)));
        }
        self.before_boot = Some(BeforeBoot { endpoints, until: Instant::now() + AFTER_BOOT });
        let swap = |(key, service): (ServicePortKey, ServicePortState)| {
            let committed = state.swap_service_port(&key, Some(service));
            (key, committed)
        };
        let service_ports: BTreeMap<_, _> = without.into_iter().map(swap).collect();
        let count = service_ports.len();
        if count > 0 {
            let cluster = state.cluster().clone();
            self.withheld = Some(Withheld { service_ports, cluster, digests, confirm_at: None });
        }
        count
    }

    /// A frontend has confirmed the committed state. Returns what changes in the one to program.
    pub(crate) fn confirmed(&mut self, state: &mut NodeState) -> Changes {
        if self.withheld.as_ref().is_none_or(|withheld| withheld.confirm_at.is_some()) {
            return Changes::default();
        }
        let (_, programmed) = self.release(state);
        Changes { service_ports: programmed.into_keys().collect(), ..Changes::default() }
    }

    /// Commits what is staged. `state` and the changes are then what to program. A confirmed commit is not limited.
    /// Also returns the loss that begins to be withheld.
    pub(crate) fn commit(
        &mut self,
        stage: &mut Stage,
        state: &mut NodeState,
        is_confirmed: bool,
    ) -> (CommitResult, Option<Loss>) {
        let node = state.node().clone();
        let cluster = state.cluster().clone();
        let (confirm_at, mut programmed) = self.release(state);
        let (mut result, emptied) = stage.commit_with_losses(state);
        let exceeded = if is_confirmed {
            self.lost.clear();
            None
        } else {
            self.record(&emptied, &programmed, state);
            self.check(state).err()
        };
        let changes = &mut result.changes;
        if exceeded.is_some() {
            for service in emptied {
                programmed.entry(service.port.key.clone()).or_insert(Some(service));
            }
        }
        let committed = state.cluster().clone();
        let digests = state.digests().clone();
        let (lost, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            programmed.into_iter().partition(|(key, _)| self.lost.contains_key(&ServiceName::of(key)));
        let taken = Claims::taken(&lost, state);
        let mut service_ports = BTreeMap::new();
        for (key, mut before) in lost {
            // A loss, or the end of one, is no sign that an endpoint is gone.
            result.departed.remove(&key);
            let gave_up = before.as_mut().is_some_and(|before| taken.remove_from(&mut before.port));
            let _ =
                if gave_up { changes.service_ports.insert(key.clone()) } else { changes.service_ports.remove(&key) };
            let committed = state.swap_service_port(&key, before);
            service_ports.insert(key, committed);
        }
        for (key, before) in others {
            result.departed.remove(&key);
            if state.service_port(&key) == before.as_ref() {
                changes.service_ports.remove(&key);
            } else {
                changes.service_ports.insert(key);
            }
        }
        if !service_ports.is_empty() {
            // A frontend that lost its objects does not know the facts either. Those of the node are retained anyway.
            if committed == ClusterInfo::default() {
                state.put_cluster(cluster.clone());
            }
            let confirm_at = Some(confirm_at.unwrap_or_else(|| Instant::now() + self.confirm_delay));
            self.withheld = Some(Withheld { service_ports, cluster: committed, digests, confirm_at });
        }
        changes.node = node != *state.node();
        changes.cluster = cluster != *state.cluster();
        (result, exceeded.filter(|_| confirm_at.is_none()))
    }

    /// Makes `state` the committed one. Returns what was programmed instead, and when its confirmation is due.
    fn release(
        &mut self,
        state: &mut NodeState,
    ) -> (Option<Instant>, BTreeMap<ServicePortKey, Option<ServicePortState>>) {
        let Some(Withheld { service_ports, cluster, confirm_at, .. }) = self.withheld.take() else {
            return (None, BTreeMap::new());
        };
        state.put_cluster(cluster);
        let programmed = service_ports.into_iter().map(|(key, committed)| {
            let programmed = state.swap_service_port(&key, committed);
            (key, programmed)
        });
        (confirm_at, programmed.collect())
    }

    /// Records which Services have lost all their endpoints. `state` is the committed one.
    fn record(
        &mut self,
        emptied: &[ServicePortState],
        withheld: &BTreeMap<ServicePortKey, Option<ServicePortState>>,
        state: &NodeState,
    ) {
        let now = Instant::now();
        self.before_boot.take_if(|before_boot| now >= before_boot.until);
        let before_boot = self.before_boot.as_ref();
        let is_lost_at_boot = |service: &ServicePortState| {
            let mut endpoints = service.selectable().flat_map(|(.., pool)| pool.iter().map(Endpoint::identity));
            before_boot.is_some_and(|before| endpoints.all(|endpoint| before.endpoints.contains(&endpoint)))
        };
        for service in emptied.iter().filter(|service| !is_lost_at_boot(service)) {
            self.lost.insert(ServiceName::of(&service.port.key), now);
        }
        if self.lost.is_empty() {
            return;
        }
        let withheld: BTreeSet<_> = withheld.keys().map(ServiceName::of).collect();
        self.lost.retain(|name, lost| {
            let counts = now - *lost < WINDOW || withheld.contains(name);
            counts && !state.ports_of(name).any(ServicePortState::has_endpoints)
        });
    }

    /// Inspects the whole state only if many Services are lost.
    fn check(&self, state: &NodeState) -> Result<(), Loss> {
        if self.limit == LossLimit::NONE || self.lost.len() < MIN_LOST {
            return Ok(());
        }
        let mut namespaces: BTreeMap<&str, NamespaceLoss> = BTreeMap::new();
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
        self.limit.check(namespaces.into_values().collect())
    }
}

// === impl LossLimit ===

impl LossLimit {
    /// No limit.
    pub const NONE: Self = Self(100);

    /// Checks the share of the Services, and the mean of the shares of the namespaces: the limit applies to the smaller
    /// one, so that neither a large namespace nor many small ones exceed it alone.
    fn check(self, mut namespaces: Vec<NamespaceLoss>) -> Result<(), Loss> {
        if namespaces.len() > 1 {
            namespaces.sort_unstable_by_key(|namespace| namespace.lost);
            namespaces.pop();
        }
        let lost: usize = namespaces.iter().map(|namespace| namespace.lost).sum();
        let of: usize = namespaces.iter().map(|namespace| namespace.of).sum();
        let limit = f64::from(self.0) / 100.0;
        let shares: f64 = namespaces.iter().map(|namespace| namespace.lost as f64 / namespace.of as f64).sum();
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
        let number = text.trim().trim_end_matches('%').parse().ok();
        let number = number.filter(|number| (1..=100).contains(number));
        number.map(Self).ok_or_else(|| format!("{text:?} is not a percentage from 1 to 100"))
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

#[cfg(test)]
mod tests;
