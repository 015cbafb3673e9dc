//! The maps and sets of a table, and their elements as values: small, without pointers, in the order in which they are
//! compared. Their bytes exist only in messages.

mod vip;

use std::net::IpAddr;

use backend::dataplane::Vip;
use netlink::nft::{self, DataType, FieldReader, Fields, Set, SetFlags};
use proto::model::IpFamily;

use crate::desired::PoolChain;
pub(crate) use vip::VipShape;
use vip::{address, put};

/// A map or set. Within each kind of [`Vip`], those that verdicts lead to come before those with the verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Map {
    /// Of pools of at most 16; see [`Map::endpoints`].
    Endpoints,
    Endpoints64,
    Endpoints256,
    EndpointsMany,
    LocalEndpoints,
    AffineEndpoints,
    LocalAffineEndpoints,
    Affinity,
    Live,
    LocalLive,
    Vips,
    PolicyLocalVips,
    ClusterVips,
    LocalVips,
    Restricted,
    SourceRanges,
    NodePortEndpoints,
    NodePortLocalEndpoints,
    NodePortAffineEndpoints,
    NodePortLocalAffineEndpoints,
    NodePortAffinity,
    NodePortLive,
    NodePortLocalLive,
    NodePorts,
    PolicyLocalNodePorts,
    ClusterNodePorts,
    LocalNodePorts,
    Hairpin,
    ClusterIps,
}

/// What a map holds under its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Verdict,
    /// Its keys end with an index.
    Endpoint,
    /// The same, with a word of zeros before the endpoint, for the rules of session affinity.
    PaddedEndpoint,
    /// Its keys begin with an endpoint.
    Member,
    /// Its keys end with a client's address; rules write them.
    Clients,
    /// Its keys end with an address: from the first one to the last one.
    Range,
}

/// One element. Sorted by VIP first: all that belongs to one VIP is together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Element {
    pub(crate) vip: Vip,
    pub(crate) map: Map,
    /// The endpoint's place in its pool; 0 in maps without places.
    pub(crate) index: u32,
    pub(crate) data: Data,
}

/// What an element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Data {
    None,
    Endpoint(IpAddr, u16),
    Verdict(Verdict),
    /// Part of the key: an endpoint.
    Member(IpAddr, u16),
    /// Part of the key: whom it is about.
    Range(Range),
}

/// Addresses that follow each other, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Range {
    pub(crate) first: IpAddr,
    /// Not below the first.
    pub(crate) last: IpAddr,
}

/// Where a VIP leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Verdict {
    /// Nowhere, in silence: there are endpoints, but none for this packet.
    Drop,
    /// Nowhere, and the sender is told: there is no endpoint in the whole cluster.
    Reject,
    /// To one of so many endpoints.
    Pool(PoolChain),
}

/// The name of the chain behind [`Verdict::Reject`].
pub(crate) const REJECT: &str = "reject";

/// How many clients [`Map::Affinity`] and [`Map::NodePortAffinity`] can store, each: one entry of about 155 bytes for
/// each client address and VIP, so 30 MB when full. The kernel sets aside 2 MB for its buckets at once (8 bytes for
/// each of four thirds, rounded up to a power of two, which this number just meets). Beyond that, new clients are
/// served but not remembered.
const MAX_CLIENTS: u32 = 196_608;

// === impl Map ===

impl Map {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 29] = [
        Self::Endpoints,
        Self::Endpoints64,
        Self::Endpoints256,
        Self::EndpointsMany,
        Self::LocalEndpoints,
        Self::AffineEndpoints,
        Self::LocalAffineEndpoints,
        Self::Affinity,
        Self::Live,
        Self::LocalLive,
        Self::Vips,
        Self::PolicyLocalVips,
        Self::ClusterVips,
        Self::LocalVips,
        Self::Restricted,
        Self::SourceRanges,
        Self::NodePortEndpoints,
        Self::NodePortLocalEndpoints,
        Self::NodePortAffineEndpoints,
        Self::NodePortLocalAffineEndpoints,
        Self::NodePortAffinity,
        Self::NodePortLive,
        Self::NodePortLocalLive,
        Self::NodePorts,
        Self::PolicyLocalNodePorts,
        Self::ClusterNodePorts,
        Self::LocalNodePorts,
        Self::Hairpin,
        Self::ClusterIps,
    ];

    /// The map of the cluster pools of VIPs that have so many endpoints.
    ///
    /// A new rule costs the kernel a look at each element of its map, and a new element one at each rule. There is a
    /// rule for each number of endpoints; so most elements, those of small pools, are in a map with few rules, and a
    /// large pool, which often comes to a number that no other has, is in a map with few elements.
    pub(crate) const fn endpoints(count: u32) -> Self {
        match count {
            0..=16 => Self::Endpoints,
            17..=64 => Self::Endpoints64,
            65..=256 => Self::Endpoints256,
            _ => Self::EndpointsMany,
        }
    }

    /// Its name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Endpoints64 => "endpoints-64",
            Self::Endpoints256 => "endpoints-256",
            Self::EndpointsMany => "endpoints-many",
            Self::LocalEndpoints => "local-endpoints",
            Self::AffineEndpoints => "affine-endpoints",
            Self::LocalAffineEndpoints => "local-affine-endpoints",
            Self::Affinity => "affinity",
            Self::Live => "live",
            Self::LocalLive => "local-live",
            Self::Vips => "vips",
            Self::PolicyLocalVips => "policy-local-vips",
            Self::ClusterVips => "cluster-vips",
            Self::LocalVips => "local-vips",
            Self::Restricted => "restricted",
            Self::SourceRanges => "source-ranges",
            Self::NodePortEndpoints => "nodeport-endpoints",
            Self::NodePortLocalEndpoints => "nodeport-local-endpoints",
            Self::NodePortAffineEndpoints => "nodeport-affine-endpoints",
            Self::NodePortLocalAffineEndpoints => "nodeport-local-affine-endpoints",
            Self::NodePortAffinity => "nodeport-affinity",
            Self::NodePortLive => "nodeport-live",
            Self::NodePortLocalLive => "nodeport-local-live",
            Self::NodePorts => "nodeports",
            Self::PolicyLocalNodePorts => "policy-local-nodeports",
            Self::ClusterNodePorts => "cluster-nodeports",
            Self::LocalNodePorts => "local-nodeports",
            Self::Hairpin => "hairpin",
            Self::ClusterIps => "cluster-ips",
        }
    }

    /// What an operator reads beside it.
    const fn comment(self) -> &'static str {
        match self {
            Self::Endpoints => "place in the cluster pool -> endpoint, pools of 1 to 16",
            Self::Endpoints64 => "place in the cluster pool -> endpoint, pools of 17 to 64",
            Self::Endpoints256 => "place in the cluster pool -> endpoint, pools of 65 to 256",
            Self::EndpointsMany => "place in the cluster pool -> endpoint, larger pools",
            Self::NodePortEndpoints => "place in the cluster pool -> endpoint",
            Self::LocalEndpoints | Self::NodePortLocalEndpoints => "place in the local pool -> endpoint",
            Self::AffineEndpoints | Self::NodePortAffineEndpoints => {
                "session affinity: place in the cluster pool -> endpoint"
            }
            Self::LocalAffineEndpoints | Self::NodePortLocalAffineEndpoints => {
                "session affinity: place in the local pool -> endpoint"
            }
            Self::Affinity | Self::NodePortAffinity => "session affinity: client -> its endpoint",
            Self::Live | Self::NodePortLive => "session affinity: who is in the cluster pool",
            Self::LocalLive | Self::NodePortLocalLive => "session affinity: who is in the local pool",
            Self::Vips | Self::NodePorts => "one pool for all clients",
            Self::PolicyLocalVips | Self::PolicyLocalNodePorts => "external traffic policy Local",
            Self::ClusterVips | Self::ClusterNodePorts => "policy Local: for pods and the node itself",
            Self::LocalVips | Self::LocalNodePorts => "policy Local: for everybody else",
            Self::Restricted => "load-balancer IPs that not everybody may use",
            Self::SourceRanges => "restricted VIP and who may use it",
            Self::Hairpin => "endpoints on this node: masqueraded when they reach themselves",
            Self::ClusterIps => "cluster IPs of all services",
        }
    }

    /// What its keys are made from.
    pub(crate) const fn kind(self) -> VipShape {
        match self {
            Self::NodePortEndpoints
            | Self::NodePortLocalEndpoints
            | Self::NodePortAffineEndpoints
            | Self::NodePortLocalAffineEndpoints
            | Self::NodePortAffinity
            | Self::NodePortLive
            | Self::NodePortLocalLive
            | Self::NodePorts
            | Self::PolicyLocalNodePorts
            | Self::ClusterNodePorts
            | Self::LocalNodePorts => VipShape::NodePort,
            Self::Endpoints
            | Self::Endpoints64
            | Self::Endpoints256
            | Self::EndpointsMany
            | Self::LocalEndpoints
            | Self::AffineEndpoints
            | Self::LocalAffineEndpoints
            | Self::Affinity
            | Self::Live
            | Self::LocalLive
            | Self::Vips
            | Self::PolicyLocalVips
            | Self::ClusterVips
            | Self::LocalVips
            | Self::Restricted
            | Self::SourceRanges
            | Self::Hairpin => VipShape::Vip,
            Self::ClusterIps => VipShape::Address,
        }
    }

    /// Whether several service ports may need one and the same element.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Hairpin | Self::ClusterIps)
    }

    const fn holds(self) -> Holds {
        match self {
            Self::Endpoints
            | Self::Endpoints64
            | Self::Endpoints256
            | Self::EndpointsMany
            | Self::LocalEndpoints
            | Self::NodePortEndpoints
            | Self::NodePortLocalEndpoints => Holds::Endpoint,
            Self::PolicyLocalVips
            | Self::PolicyLocalNodePorts
            | Self::Restricted
            | Self::Hairpin
            | Self::ClusterIps => Holds::Nothing,
            Self::AffineEndpoints
            | Self::LocalAffineEndpoints
            | Self::NodePortAffineEndpoints
            | Self::NodePortLocalAffineEndpoints => Holds::PaddedEndpoint,
            Self::Affinity | Self::NodePortAffinity => Holds::Clients,
            Self::Live | Self::LocalLive | Self::NodePortLive | Self::NodePortLocalLive => Holds::Member,
            Self::SourceRanges => Holds::Range,
            Self::Vips
            | Self::ClusterVips
            | Self::LocalVips
            | Self::NodePorts
            | Self::ClusterNodePorts
            | Self::LocalNodePorts => Holds::Verdict,
        }
    }

    /// Whether its elements are written by rules, and so not ours to add, list or delete.
    pub(crate) fn is_written_by_rules(self) -> bool {
        self.holds() == Holds::Clients
    }

    /// Whether its elements hold such data.
    #[cfg(test)]
    pub(crate) const fn takes(self, data: &Data) -> bool {
        matches!(
            (self.holds(), data),
            (Holds::Nothing, Data::None)
                | (Holds::Endpoint | Holds::PaddedEndpoint, Data::Endpoint(..))
                | (Holds::Member, Data::Member(..))
                | (Holds::Verdict, Data::Verdict(_))
                | (Holds::Range, Data::Range(_))
        )
    }

    /// Its definition.
    pub(crate) fn set(self, family: IpFamily) -> Set {
        let address = match family {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        };
        let endpoint = [address, DataType::InetService];
        let padded = [DataType::Mark, address, DataType::InetService];
        let mut key = match (self, self.holds()) {
            (Self::Hairpin, _) => vec![address],
            (_, Holds::Member) => endpoint.to_vec(),
            _ => vec![],
        };
        if self.kind() != VipShape::NodePort {
            key.push(address);
        }
        if self.kind() != VipShape::Address {
            key.extend([DataType::InetProto, DataType::InetService]);
        }
        let set = match self.holds() {
            Holds::Nothing | Holds::Member => Set::new(self.name(), key),
            Holds::Verdict => Set::verdict_map(self.name(), key),
            Holds::Endpoint => {
                // The type of marks: host byte order, as numgen's results are.
                key.push(DataType::Mark);
                Set::map(self.name(), key, endpoint)
            }
            Holds::PaddedEndpoint => {
                key.push(DataType::Mark);
                Set::map(self.name(), key, padded)
            }
            Holds::Clients => {
                key.push(address);
                let set = Set::map(self.name(), key, padded).flags(SetFlags::TIMEOUT | SetFlags::EVAL);
                set.size(MAX_CLIENTS)
            }
            Holds::Range => {
                key.push(address);
                Set::new(self.name(), key).flags(SetFlags::INTERVAL)
            }
        };
        set.comment(self.comment())
    }
}

// === impl Element ===

impl Element {
    /// Its key in the map, or the first one.
    pub(crate) fn key(&self) -> Fields {
        let fields = self.vip_fields();
        match self.data {
            Data::Endpoint(..) => fields.mark(self.index),
            Data::Range(range) => fields.addr(range.first),
            Data::None | Data::Verdict(_) | Data::Member(..) => fields,
        }
    }

    /// The last key of a range.
    pub(crate) fn key_end(&self) -> Option<Fields> {
        match self.data {
            Data::Range(range) => Some(self.vip_fields().addr(range.last)),
            _ => None,
        }
    }

    /// The endpoint that it holds, as a value.
    pub(crate) fn endpoint(&self) -> Option<Fields> {
        let Data::Endpoint(address, port) = self.data else { return None };
        let padding = match self.map.holds() {
            Holds::PaddedEndpoint => Fields::new().mark(0),
            _ => Fields::new(),
        };
        Some(padding.addr(address).port(port))
    }

    fn vip_fields(&self) -> Fields {
        let before = match (self.vip, self.data) {
            (Vip::AddressPort { address, .. }, _) if self.map == Map::Hairpin => Fields::new().addr(address),
            (_, Data::Member(address, port)) => Fields::new().addr(address).port(port),
            _ => Fields::new(),
        };
        put(&self.vip, before)
    }

    /// The pool chain that it leads to.
    pub(crate) fn pool(&self) -> Option<PoolChain> {
        match self.data {
            Data::Verdict(Verdict::Pool(chain)) => Some(chain),
            _ => None,
        }
    }

    /// Reads what the kernel holds. `None` when it is nothing that we would have written.
    pub(crate) fn read(map: Map, family: IpFamily, element: &nft::Element<'_>) -> Option<Self> {
        let mut fields = FieldReader::new(element.key);
        // A single address may come without an end.
        let key_end = element.key_end.unwrap_or(element.key);
        if map == Map::Hairpin {
            address(&mut fields, family)?;
        }
        let member = match map.holds() {
            Holds::Member => Some((address(&mut fields, family)?, fields.port()?)),
            _ => None,
        };
        let vip = map.kind().read(&mut fields, family)?;
        let index = match map.holds() {
            Holds::Endpoint | Holds::PaddedEndpoint => fields.mark()?,
            _ => 0,
        };
        let data = match (map.holds(), &element.data) {
            (Holds::Nothing, nft::ElementData::None) => Data::None,
            (Holds::Member, nft::ElementData::None) => member.map(|(address, port)| Data::Member(address, port))?,
            (Holds::Verdict, nft::ElementData::Verdict(verdict)) => Data::Verdict(Verdict::read(verdict)?),
            (holds @ (Holds::Endpoint | Holds::PaddedEndpoint), nft::ElementData::Value(value)) => {
                let mut fields = FieldReader::new(value);
                if holds == Holds::PaddedEndpoint {
                    fields.mark().filter(|padding| *padding == 0)?;
                }
                Data::Endpoint(address(&mut fields, family)?, fields.port()?)
            }
            (Holds::Range, nft::ElementData::None) => {
                let mut end = FieldReader::new(key_end);
                map.kind().read(&mut end, family)?;
                Data::Range(Range { first: address(&mut fields, family)?, last: address(&mut end, family)? })
            }
            _ => return None,
        };
        let read = Self { vip, map, index, data };
        // Whatever the fields do not show (padding, a second address, another VIP at the end) must be as we would write
        // it.
        let same_end = read.key_end().is_none_or(|end| end[..] == *key_end);
        (read.key()[..] == *element.key && same_end).then_some(read)
    }
}

impl Verdict {
    fn read(verdict: &nft::Verdict<'_>) -> Option<Self> {
        match verdict {
            nft::Verdict::Drop => Some(Self::Drop),
            nft::Verdict::Goto(chain) if *chain == REJECT => Some(Self::Reject),
            nft::Verdict::Goto(chain) => PoolChain::parse(chain).map(Self::Pool),
            _ => None,
        }
    }
}
