//! The maps and sets of a table, and their elements as values: small, without pointers, in the order in which they are
//! compared. Their bytes exist only in messages.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use netlink::nft::{self, DataType, FieldReader, Fields, Set, SetFlags};
use proto::model::{Family, Protocol};

use crate::desired::PoolChain;

/// What a packet is addressed to; in [`Map::Hairpin`], the endpoint that it was sent on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Front {
    /// An address and a port.
    Vip {
        /// A cluster IP, external IP or load-balancer IP.
        address: IpAddr,
        /// The port there.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// A port at the node's own addresses.
    NodePort {
        /// The port.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// An address, whatever the port and the protocol.
    Address(IpAddr),
}

/// A map or set. Within each kind of [`Front`], those that verdicts lead to come before those with the verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Map {
    /// Of pools of at most 16; see [`Map::endpoints`].
    Endpoints,
    Endpoints64,
    Endpoints256,
    EndpointsMany,
    LocalEndpoints,
    Vips,
    PolicyLocalVips,
    ClusterVips,
    LocalVips,
    Restricted,
    SourceRanges,
    NodePortEndpoints,
    NodePortLocalEndpoints,
    NodePorts,
    PolicyLocalNodePorts,
    ClusterNodePorts,
    LocalNodePorts,
    Hairpin,
    ClusterIps,
}

/// What the keys of a map are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontKind {
    /// [`Front::Vip`].
    Vip,
    /// [`Front::NodePort`].
    NodePort,
    /// [`Front::Address`].
    Address,
}

/// What a map holds under its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Verdict,
    /// Its keys end with an index.
    Endpoint,
    /// Its keys end with an address: from the first one to the last one.
    Range,
}

/// One element. Sorted by front first: all that belongs to one front is together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Element {
    pub(crate) front: Front,
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

/// Where a front leads.
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

// === impl Map ===

impl Map {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 19] = [
        Self::Endpoints,
        Self::Endpoints64,
        Self::Endpoints256,
        Self::EndpointsMany,
        Self::LocalEndpoints,
        Self::Vips,
        Self::PolicyLocalVips,
        Self::ClusterVips,
        Self::LocalVips,
        Self::Restricted,
        Self::SourceRanges,
        Self::NodePortEndpoints,
        Self::NodePortLocalEndpoints,
        Self::NodePorts,
        Self::PolicyLocalNodePorts,
        Self::ClusterNodePorts,
        Self::LocalNodePorts,
        Self::Hairpin,
        Self::ClusterIps,
    ];

    /// The map of the cluster pools of VIPs that have so many endpoints.
    ///
    /// A new rule costs the kernel a look at each element of its map, and a new element one at each rule. There is a rule for each
    /// number of endpoints; so most elements, those of small pools, are in a map with few rules, and a large pool, which
    /// often comes to a number that no other has, is in a map with few elements.
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
            Self::Vips => "vips",
            Self::PolicyLocalVips => "policy-local-vips",
            Self::ClusterVips => "cluster-vips",
            Self::LocalVips => "local-vips",
            Self::Restricted => "restricted",
            Self::SourceRanges => "source-ranges",
            Self::NodePortEndpoints => "nodeport-endpoints",
            Self::NodePortLocalEndpoints => "nodeport-local-endpoints",
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
    pub(crate) const fn kind(self) -> FrontKind {
        match self {
            Self::NodePortEndpoints
            | Self::NodePortLocalEndpoints
            | Self::NodePorts
            | Self::PolicyLocalNodePorts
            | Self::ClusterNodePorts
            | Self::LocalNodePorts => FrontKind::NodePort,
            Self::Endpoints
            | Self::Endpoints64
            | Self::Endpoints256
            | Self::EndpointsMany
            | Self::LocalEndpoints
            | Self::Vips
            | Self::PolicyLocalVips
            | Self::ClusterVips
            | Self::LocalVips
            | Self::Restricted
            | Self::SourceRanges
            | Self::Hairpin => FrontKind::Vip,
            Self::ClusterIps => FrontKind::Address,
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
            Self::SourceRanges => Holds::Range,
            Self::Vips
            | Self::ClusterVips
            | Self::LocalVips
            | Self::NodePorts
            | Self::ClusterNodePorts
            | Self::LocalNodePorts => Holds::Verdict,
        }
    }

    /// Whether its elements hold such data.
    #[cfg(test)]
    pub(crate) const fn takes(self, data: &Data) -> bool {
        matches!(
            (self.holds(), data),
            (Holds::Nothing, Data::None)
                | (Holds::Endpoint, Data::Endpoint(..))
                | (Holds::Verdict, Data::Verdict(_))
                | (Holds::Range, Data::Range(_))
        )
    }

    /// Its definition.
    pub(crate) fn set(self, family: Family) -> Set {
        let address = match family {
            Family::V4 => DataType::Ipv4Addr,
            Family::V6 => DataType::Ipv6Addr,
        };
        let mut key = match (self, self.kind()) {
            (Self::Hairpin, _) => vec![address, address],
            (_, FrontKind::Vip | FrontKind::Address) => vec![address],
            (_, FrontKind::NodePort) => vec![],
        };
        if self.kind() != FrontKind::Address {
            key.extend([DataType::InetProto, DataType::InetService]);
        }
        let set = match self.holds() {
            Holds::Nothing => Set::new(self.name(), key),
            Holds::Verdict => Set::verdict_map(self.name(), key),
            Holds::Endpoint => {
                // The type of marks: host byte order, as numgen's results are.
                key.push(DataType::Mark);
                Set::map(self.name(), key, [address, DataType::InetService])
            }
            Holds::Range => {
                key.push(address);
                Set::new(self.name(), key).flags(SetFlags::INTERVAL)
            }
        };
        set.comment(self.comment())
    }
}

// === impl Front ===

impl Front {
    /// Which keys are made from it.
    pub(crate) const fn kind(&self) -> FrontKind {
        match self {
            Self::Vip { .. } => FrontKind::Vip,
            Self::NodePort { .. } => FrontKind::NodePort,
            Self::Address(_) => FrontKind::Address,
        }
    }

    fn read(fields: &mut FieldReader<'_>, kind: FrontKind, family: Family) -> Option<Self> {
        let address = match kind {
            FrontKind::Address => return address(fields, family).map(Self::Address),
            FrontKind::Vip => Some(address(fields, family)?),
            FrontKind::NodePort => None,
        };
        let number = fields.proto()?;
        let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?;
        let port = fields.port()?;
        Some(match address {
            Some(address) => Self::Vip { address, port, protocol },
            None => Self::NodePort { port, protocol },
        })
    }
}

fn address(fields: &mut FieldReader<'_>, family: Family) -> Option<IpAddr> {
    match family {
        Family::V4 => fields.ipv4().map(IpAddr::V4),
        Family::V6 => fields.ipv6().map(IpAddr::V6),
    }
}

// === impl Element ===

impl Element {
    /// Its key in the map, or the first one.
    pub(crate) fn key(&self) -> Fields {
        let fields = self.front_fields();
        match self.data {
            Data::Endpoint(..) => fields.mark(self.index),
            Data::Range(range) => fields.addr(range.first),
            Data::None | Data::Verdict(_) => fields,
        }
    }

    /// The last key of a range.
    pub(crate) fn key_end(&self) -> Option<Fields> {
        match self.data {
            Data::Range(range) => Some(self.front_fields().addr(range.last)),
            _ => None,
        }
    }

    fn front_fields(&self) -> Fields {
        match self.front {
            Front::Vip { address, port, protocol } if self.map == Map::Hairpin => {
                Fields::new().addr(address).addr(address).proto(protocol.number()).port(port)
            }
            Front::Vip { address, port, protocol } => {
                Fields::new().addr(address).proto(protocol.number()).port(port)
            }
            Front::NodePort { port, protocol } => Fields::new().proto(protocol.number()).port(port),
            Front::Address(address) => Fields::new().addr(address),
        }
    }

    /// The pool chain that it leads to.
    pub(crate) fn pool(&self) -> Option<PoolChain> {
        match self.data {
            Data::Verdict(Verdict::Pool(chain)) => Some(chain),
            _ => None,
        }
    }

    /// Reads what the kernel holds. `None` when it is nothing that we would have written.
    pub(crate) fn read(map: Map, family: Family, element: &nft::Element<'_>) -> Option<Self> {
        let mut fields = FieldReader::new(element.key);
        // A single address may come without an end.
        let key_end = element.key_end.unwrap_or(element.key);
        if map == Map::Hairpin {
            address(&mut fields, family)?;
        }
        let front = Front::read(&mut fields, map.kind(), family)?;
        let index = match map.holds() {
            Holds::Endpoint => fields.mark()?,
            Holds::Nothing | Holds::Verdict | Holds::Range => 0,
        };
        let data = match (map.holds(), &element.data) {
            (Holds::Nothing, nft::Data::None) => Data::None,
            (Holds::Verdict, nft::Data::Verdict(verdict)) => Data::Verdict(Verdict::read(verdict)?),
            (Holds::Endpoint, nft::Data::Value(value)) => {
                let mut fields = FieldReader::new(value);
                Data::Endpoint(address(&mut fields, family)?, fields.port()?)
            }
            (Holds::Range, nft::Data::None) => {
                let mut end = FieldReader::new(key_end);
                Front::read(&mut end, map.kind(), family)?;
                Data::Range(Range { first: address(&mut fields, family)?, last: address(&mut end, family)? })
            }
            _ => return None,
        };
        let read = Self { front, map, index, data };
        // Whatever the fields do not show (padding, a second address, another VIP at the end) must be as we would write it.
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

/// The value of an endpoint.
pub(crate) fn endpoint_value(address: IpAddr, port: u16) -> Fields {
    Fields::new().addr(address).port(port)
}

impl fmt::Display for Front {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp` or `10.96.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { address, port, protocol } => {
                write!(f, "{}/{}", SocketAddr::new(*address, *port), protocol.lower())
            }
            Self::NodePort { port, protocol } => write!(f, "node port {port}/{}", protocol.lower()),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}
