//! The maps and sets of a table, and their elements as small values without pointers, ordered for comparison. The
//! kernel's encoding of an element exists only in messages.

mod vip;

use std::net::IpAddr;

use backend::dataplane::Vip;
use netlink::nft::{self, DataType, FieldReader, Fields, Set, SetFlags};
use proto::model::IpFamily;

use crate::desired::PoolChain;
pub(crate) use vip::VipShape;
use vip::{address, put};

/// A map or set. For each shape of [`Vip`], the maps with endpoints come before those with verdicts that lead to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Map {
    /// For pools of at most 16 endpoints; see [`Map::endpoints`].
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

/// What the elements of a map or set contain besides the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapContent {
    Nothing,
    Verdict,
    /// An endpoint; the key ends with its slot.
    Endpoint,
    /// The same, with a padding of four zero bytes before the endpoint, for the rules of session affinity.
    PaddedEndpoint,
    /// The key begins with an endpoint.
    Member,
    /// The key ends with the address of a client; the element is written by rules.
    Clients,
    /// The key ends with a range of addresses.
    Range,
}

/// One element. Sorted by VIP first, so that the elements of a VIP are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Element {
    pub(crate) vip: Vip,
    pub(crate) map: Map,
    /// The slot of the endpoint in its pool; 0 in maps without slots.
    pub(crate) index: u32,
    pub(crate) data: ElementData,
}

/// What an element contains besides its VIP and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ElementData {
    None,
    Endpoint(IpAddr, u16),
    Verdict(Verdict),
    /// An endpoint, as part of the key.
    Member(IpAddr, u16),
    /// Source addresses, as part of the key.
    Range(AddressRange),
}

/// Consecutive addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AddressRange {
    pub(crate) first: IpAddr,
    /// Not less than the first.
    pub(crate) last: IpAddr,
}

/// What happens to packets to a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Verdict {
    /// Drop: there are endpoints, but none for this source class.
    Drop,
    /// Reject with an error to the client: there is no endpoint in the whole cluster.
    Reject,
    /// Translate to one of the endpoints of a pool.
    Pool(PoolChain),
}

/// The name of the chain for [`Verdict::Reject`].
pub(crate) const REJECT: &str = "reject";

/// The maximum number of clients in each of [`Map::Affinity`] and [`Map::NodePortAffinity`]: one entry of about 155
/// bytes for each client address and VIP, so 30 MB when full. The kernel allocates 2 MB for the buckets at once: 8
/// bytes for each of 4/3 of this number, rounded up to a power of two, which is exactly met. When full, new clients are
/// served without affinity.
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

    /// The map with the endpoints of cluster pools of this size.
    ///
    /// When a rule is added, the kernel checks all elements of its map; when an element is added, all rules that use
    /// the map. There is a rule for each number of endpoints. With several maps, most elements, those of small pools,
    /// are in a map with few rules; and a large pool, whose size is often unique and needs a new rule, is in a map with
    /// few elements.
    pub(crate) const fn endpoints(count: u32) -> Self {
        match count {
            0..=16 => Self::Endpoints,
            17..=64 => Self::Endpoints64,
            65..=256 => Self::Endpoints256,
            _ => Self::EndpointsMany,
        }
    }

    /// The name in the table.
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

    /// The comment that `nft list` shows.
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

    /// The shape of the VIP in the keys.
    pub(crate) const fn vip_shape(self) -> VipShape {
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
            | Self::Hairpin => VipShape::AddressPort,
            Self::ClusterIps => VipShape::Address,
        }
    }

    /// Whether several service ports may need the same element.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Hairpin | Self::ClusterIps)
    }

    const fn content(self) -> MapContent {
        match self {
            Self::Endpoints
            | Self::Endpoints64
            | Self::Endpoints256
            | Self::EndpointsMany
            | Self::LocalEndpoints
            | Self::NodePortEndpoints
            | Self::NodePortLocalEndpoints => MapContent::Endpoint,
            Self::PolicyLocalVips
            | Self::PolicyLocalNodePorts
            | Self::Restricted
            | Self::Hairpin
            | Self::ClusterIps => MapContent::Nothing,
            Self::AffineEndpoints
            | Self::LocalAffineEndpoints
            | Self::NodePortAffineEndpoints
            | Self::NodePortLocalAffineEndpoints => MapContent::PaddedEndpoint,
            Self::Affinity | Self::NodePortAffinity => MapContent::Clients,
            Self::Live | Self::LocalLive | Self::NodePortLive | Self::NodePortLocalLive => MapContent::Member,
            Self::SourceRanges => MapContent::Range,
            Self::Vips
            | Self::ClusterVips
            | Self::LocalVips
            | Self::NodePorts
            | Self::ClusterNodePorts
            | Self::LocalNodePorts => MapContent::Verdict,
        }
    }

    /// Whether rules write the elements. Fairlead does not add, list or delete them.
    pub(crate) fn is_written_by_rules(self) -> bool {
        self.content() == MapContent::Clients
    }

    /// Whether the elements contain this type of data.
    #[cfg(test)]
    pub(crate) const fn accepts(self, data: &ElementData) -> bool {
        matches!(
            (self.content(), data),
            (MapContent::Nothing, ElementData::None)
                | (MapContent::Endpoint | MapContent::PaddedEndpoint, ElementData::Endpoint(..))
                | (MapContent::Member, ElementData::Member(..))
                | (MapContent::Verdict, ElementData::Verdict(_))
                | (MapContent::Range, ElementData::Range(_))
        )
    }

    /// The definition of the map.
    pub(crate) fn set(self, family: IpFamily) -> Set {
        let address = match family {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        };
        let endpoint = [address, DataType::InetService];
        let padded = [DataType::Mark, address, DataType::InetService];
        let mut key = match (self, self.content()) {
            (Self::Hairpin, _) => vec![address],
            (_, MapContent::Member) => endpoint.to_vec(),
            _ => vec![],
        };
        if self.vip_shape() != VipShape::NodePort {
            key.push(address);
        }
        if self.vip_shape() != VipShape::Address {
            key.extend([DataType::InetProto, DataType::InetService]);
        }
        let set = match self.content() {
            MapContent::Nothing | MapContent::Member => Set::new(self.name(), key),
            MapContent::Verdict => Set::verdict_map(self.name(), key),
            MapContent::Endpoint => {
                // Marks are in host byte order, as the results of numgen are.
                key.push(DataType::Mark);
                Set::map(self.name(), key, endpoint)
            }
            MapContent::PaddedEndpoint => {
                key.push(DataType::Mark);
                Set::map(self.name(), key, padded)
            }
            MapContent::Clients => {
                key.push(address);
                let set = Set::map(self.name(), key, padded).flags(SetFlags::TIMEOUT | SetFlags::EVAL);
                set.size(MAX_CLIENTS)
            }
            MapContent::Range => {
                key.push(address);
                Set::new(self.name(), key).flags(SetFlags::INTERVAL)
            }
        };
        set.comment(self.comment())
    }
}

// === impl Element ===

impl Element {
    /// The key in the map; of a range the first one.
    pub(crate) fn key(&self) -> Fields {
        let fields = self.vip_fields();
        match self.data {
            ElementData::Endpoint(..) => fields.mark(self.index),
            ElementData::Range(range) => fields.addr(range.first),
            ElementData::None | ElementData::Verdict(_) | ElementData::Member(..) => fields,
        }
    }

    /// The last key of a range.
    pub(crate) fn key_end(&self) -> Option<Fields> {
        match self.data {
            ElementData::Range(range) => Some(self.vip_fields().addr(range.last)),
            _ => None,
        }
    }

    /// The endpoint, encoded as the value of the element.
    pub(crate) fn endpoint(&self) -> Option<Fields> {
        let ElementData::Endpoint(address, port) = self.data else { return None };
        let padding = match self.map.content() {
            MapContent::PaddedEndpoint => Fields::new().mark(0),
            _ => Fields::new(),
        };
        Some(padding.addr(address).port(port))
    }

    fn vip_fields(&self) -> Fields {
        let before = match (self.vip, self.data) {
            (Vip::AddressPort { address, .. }, _) if self.map == Map::Hairpin => Fields::new().addr(address),
            (_, ElementData::Member(address, port)) => Fields::new().addr(address).port(port),
            _ => Fields::new(),
        };
        put(&self.vip, before)
    }

    /// The pool chain that it leads to.
    pub(crate) fn pool(&self) -> Option<PoolChain> {
        match self.data {
            ElementData::Verdict(Verdict::Pool(chain)) => Some(chain),
            _ => None,
        }
    }

    /// Decodes an element. `None`: Fairlead never writes such an element.
    pub(crate) fn read(map: Map, family: IpFamily, element: &nft::Element<'_>) -> Option<Self> {
        let mut fields = FieldReader::new(element.key);
        // A range of one address may have no end.
        let key_end = element.key_end.unwrap_or(element.key);
        if map == Map::Hairpin {
            address(&mut fields, family)?;
        }
        let member = match map.content() {
            MapContent::Member => Some((address(&mut fields, family)?, fields.port()?)),
            _ => None,
        };
        let vip = map.vip_shape().read(&mut fields, family)?;
        let index = match map.content() {
            MapContent::Endpoint | MapContent::PaddedEndpoint => fields.mark()?,
            _ => 0,
        };
        let data = match (map.content(), &element.data) {
            (MapContent::Nothing, nft::ElementData::None) => ElementData::None,
            (MapContent::Member, nft::ElementData::None) => {
                member.map(|(address, port)| ElementData::Member(address, port))?
            }
            (MapContent::Verdict, nft::ElementData::Verdict(verdict)) => ElementData::Verdict(Verdict::read(verdict)?),
            (content @ (MapContent::Endpoint | MapContent::PaddedEndpoint), nft::ElementData::Value(value)) => {
                let mut fields = FieldReader::new(value);
                if content == MapContent::PaddedEndpoint {
                    fields.mark().filter(|padding| *padding == 0)?;
                }
                ElementData::Endpoint(address(&mut fields, family)?, fields.port()?)
            }
            (MapContent::Range, nft::ElementData::None) => {
                let mut end = FieldReader::new(key_end);
                map.vip_shape().read(&mut end, family)?;
                ElementData::Range(AddressRange {
                    first: address(&mut fields, family)?,
                    last: address(&mut end, family)?,
                })
            }
            _ => return None,
        };
        let read = Self { vip, map, index, data };
        // What was not decoded (padding, a second address, the VIP of the end) must be equal to what we would write.
        let has_same_end = read.key_end().is_none_or(|end| end[..] == *key_end);
        (read.key()[..] == *element.key && has_same_end).then_some(read)
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
