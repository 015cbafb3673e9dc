//! Endpoints, and pools: sorted sets of endpoints.

use std::{
    array, fmt, iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    ops,
};

use serde::Serialize;

use super::ServicePortKey;

/// The flag of a terminating endpoint in a local pool.
pub(crate) const FLAG_TERMINATING: u8 = 1;

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// One `T` for each address family, indexed by [`IpFamily`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct PerFamily<T> {
    /// For IPv4.
    pub v4: T,
    /// For IPv6.
    pub v6: T,
}

/// An address and port that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Endpoint {
    /// EndpointSlice `endpoints[].addresses[0]`.
    pub address: IpAddr,
    /// EndpointSlice `ports[].port`.
    pub port: NonZeroU16,
    /// Whether the endpoint is terminating but still serving. Set in local pools only.
    pub terminating: bool,
}

/// Which traffic a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum PoolClass {
    /// Traffic policy Cluster: the endpoints left after readiness, terminating fallback and topology hints.
    Cluster = 1,
    /// The endpoints on this node: the ready ones or, if there are none, those that are serving and terminating. For
    /// traffic policy Local, hairpin masquerade and health-check node ports; sent regardless of the policies.
    Local = 2,
    /// UDP: endpoints that established flows may keep, besides those of the other pools. They still serve, but
    /// terminate while others are ready, or are left to other nodes by topology hints. New flows never use them.
    ///
    /// TCP, if the gone pool has [`Endpoint::any_other`]: all other endpoints of the EndpointSlices, whatever their
    /// conditions.
    Established = 3,
    /// TCP only: endpoints that are gone. Connections to them through the service port are reset; they would hang
    /// otherwise. [`Endpoint::any_other`] stands for all addresses that are in no other pool.
    Gone = 4,
}

/// Identifies a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PoolId {
    /// The service port that the pool belongs to.
    pub key: ServicePortKey,
    /// Which traffic it is for.
    pub class: PoolClass,
    /// The family of its addresses.
    pub family: IpFamily,
}

/// A set of endpoints of one family, sorted by address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Pool(Vec<Endpoint>);

impl PoolClass {
    /// All classes, in the order of their wire values.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Local, Self::Established, Self::Gone];

    /// Whether new connections may use the endpoints.
    #[must_use]
    pub const fn is_selectable(self) -> bool {
        matches!(self, Self::Cluster | Self::Local)
    }
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub const fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The name that Kubernetes uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The address that stands for all.
    #[must_use]
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// The length of an address in bytes.
    #[must_use]
    pub const fn address_len(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<T> PerFamily<T> {
    /// Calls `make` for each family.
    pub fn from_fn(mut make: impl FnMut(IpFamily) -> T) -> Self {
        Self { v4: make(IpFamily::V4), v6: make(IpFamily::V6) }
    }

    /// The values with their families, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (IpFamily, &T)> {
        [(IpFamily::V4, &self.v4), (IpFamily::V6, &self.v6)].into_iter()
    }

    /// Converts each value.
    pub fn map<U>(self, mut convert: impl FnMut(IpFamily, T) -> U) -> PerFamily<U> {
        PerFamily { v4: convert(IpFamily::V4, self.v4), v6: convert(IpFamily::V6, self.v6) }
    }
}

impl<T> IntoIterator for PerFamily<T> {
    type Item = (IpFamily, T);
    type IntoIter = array::IntoIter<(IpFamily, T), 2>;

    /// The values with their families, IPv4 first.
    fn into_iter(self) -> Self::IntoIter {
        [(IpFamily::V4, self.v4), (IpFamily::V6, self.v6)].into_iter()
    }
}

impl<T> ops::Index<IpFamily> for PerFamily<T> {
    type Output = T;

    fn index(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }
}

impl<T> ops::IndexMut<IpFamily> for PerFamily<T> {
    fn index_mut(&mut self, family: IpFamily) -> &mut T {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }
}

impl Endpoint {
    /// An endpoint that is not terminating.
    #[must_use]
    pub const fn new(address: IpAddr, port: NonZeroU16) -> Self {
        Self { address, port, terminating: false }
    }

    /// In a gone pool: all addresses of the family that are in no other pool of the service port. It has the
    /// unspecified address, and port 1.
    #[must_use]
    pub const fn any_other(family: IpFamily) -> Self {
        Self::new(family.unspecified(), NonZeroU16::MIN)
    }

    /// Address and port, which identify the endpoint in a pool.
    #[must_use]
    pub const fn identity(&self) -> (IpAddr, NonZeroU16) {
        (self.address, self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port.get()).fmt(f)
    }
}

impl Pool {
    /// The entry with the address and port of `endpoint`.
    #[must_use]
    pub fn get(&self, endpoint: &Endpoint) -> Option<&Endpoint> {
        self.position(endpoint).ok().map(|at| &self.0[at])
    }

    /// Whether the pool has an entry with this address, at any port.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let first = self.0.partition_point(|endpoint| endpoint.address < address);
        self.0.get(first).is_some_and(|endpoint| endpoint.address == address)
    }

    /// Whether the pool has an entry with the address and port of `endpoint`.
    #[must_use]
    pub fn contains(&self, endpoint: &Endpoint) -> bool {
        self.position(endpoint).is_ok()
    }

    /// Adds an endpoint, or replaces the flags of an existing entry. Returns whether the pool changed.
    pub fn insert(&mut self, endpoint: Endpoint) -> bool {
        match self.position(&endpoint) {
            Ok(at) => std::mem::replace(&mut self.0[at], endpoint) != endpoint,
            Err(at) => {
                self.0.insert(at, endpoint);
                true
            }
        }
    }

    /// Removes the entry with the address and port of `endpoint`, and returns it.
    pub fn remove(&mut self, endpoint: &Endpoint) -> Option<Endpoint> {
        self.position(endpoint).ok().map(|at| self.0.remove(at))
    }

    /// The difference from `self` to `target`: endpoints to add (or whose flags change), and endpoints to remove.
    #[must_use]
    pub fn diff(&self, target: &Self) -> (Vec<Endpoint>, Vec<Endpoint>) {
        // Equal ends are skipped, because most differences are small, and pools may be large.
        let first = equal_count(self.0.iter(), target.0.iter());
        let last = equal_count(self.0[first..].iter().rev(), target.0[first..].iter().rev());
        let before = &self.0[first..self.0.len() - last];
        let after = &target.0[first..target.0.len() - last];

        let add = after.iter().filter(|endpoint| self.get(endpoint) != Some(endpoint));
        let remove = before.iter().filter(|endpoint| !target.contains(endpoint));
        (add.copied().collect(), remove.copied().collect())
    }

    fn position(&self, endpoint: &Endpoint) -> Result<usize, usize> {
        self.0.binary_search_by_key(&endpoint.identity(), Endpoint::identity)
    }
}

/// How many endpoints are equal at the start of two sequences.
fn equal_count<'a>(one: impl Iterator<Item = &'a Endpoint>, other: impl Iterator<Item = &'a Endpoint>) -> usize {
    iter::zip(one, other).take_while(|(one, other)| one == other).count()
}

impl ops::Deref for Pool {
    type Target = [Endpoint];

    fn deref(&self) -> &[Endpoint] {
        &self.0
    }
}

impl FromIterator<Endpoint> for Pool {
    /// Sorts the endpoints. Of duplicates, keeps one that is not terminating.
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        let mut endpoints: Vec<_> = endpoints.into_iter().collect();
        endpoints.sort_unstable();
        endpoints.dedup_by_key(|endpoint| endpoint.identity());
        // There may be hundreds of thousands of pools, most with a single endpoint.
        endpoints.shrink_to_fit();
        Self(endpoints)
    }
}

impl fmt::Display for PoolClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Local => "local",
            Self::Established => "established",
            Self::Gone => "gone",
        })
    }
}

/// Appends the wire form of an endpoint: address, port, and in a local pool the flags.
pub(crate) fn pack_endpoint(class: PoolClass, endpoint: &Endpoint, bytes: &mut Vec<u8>) {
    match endpoint.address {
        IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
    }
    bytes.extend_from_slice(&endpoint.port.get().to_be_bytes());
    if class == PoolClass::Local {
        bytes.push(if endpoint.terminating { FLAG_TERMINATING } else { 0 });
    }
}
