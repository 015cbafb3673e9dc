//! The maps and sets of a table: their names, keys and data.

use netlink::nft::{DataType, Set, SetFlags};
use proto::model::IpFamily;

/// Defines [`Map`]. Each row: the variant, its name in the table, the shape of the VIP in its keys, what its elements
/// contain besides the VIP, and the comment that `nft list` shows.
macro_rules! maps {
    ($($(#[$doc:meta])* $map:ident $name:literal $shape:ident $content:ident $comment:literal;)*) => {
        /// A map or set. For each shape of [`Vip`](backend::dataplane::Vip), the maps with endpoints come before those
        /// with verdicts that lead to them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Map {
            $($(#[$doc])* $map,)*
        }

        impl Map {
            /// All of them, in their order.
            pub(crate) const ALL: [Self; [$($name),*].len()] = [$(Self::$map),*];

            const DEFINITIONS: [MapDefinition; Self::ALL.len()] = [$(MapDefinition {
                name: $name,
                vip_shape: VipShape::$shape,
                content: MapContent::$content,
                comment: $comment,
            }),*];
        }
    };
}

maps! {
    /// Its keys begin with the key of a pool. For pools of at most 16 endpoints; see [`Map::endpoints`].
    Endpoints "endpoints" AddressPort Endpoint "place in the cluster pool -> endpoint, pools of 1 to 16";
    Endpoints64 "endpoints-64" AddressPort Endpoint "place in the cluster pool -> endpoint, pools of 17 to 64";
    Endpoints256 "endpoints-256" AddressPort Endpoint "place in the cluster pool -> endpoint, pools of 65 to 256";
    EndpointsMany "endpoints-many" AddressPort Endpoint "place in the cluster pool -> endpoint, larger pools";
    LocalEndpoints "local-endpoints" AddressPort Endpoint "place in the local pool -> endpoint";
    AffineEndpoints "affine-endpoints" AddressPort PaddedEndpoint
        "session affinity: place in the cluster pool -> endpoint";
    LocalAffineEndpoints "local-affine-endpoints" AddressPort PaddedEndpoint
        "session affinity: place in the local pool -> endpoint";
    AffineClients "affine-clients" AddressPort Clients "session affinity: bucket of clients -> their endpoint";
    Live "live" AddressPort Member "session affinity: who is in the cluster pool";
    LocalLive "local-live" AddressPort Member "session affinity: who is in the local pool";
    Aliases "aliases" AddressPort PoolKey "VIP -> the key of its pool";
    Vips "vips" AddressPort Verdict "one pool for all clients";
    PolicyLocalVips "policy-local-vips" AddressPort Nothing "external traffic policy Local";
    ClusterVips "cluster-vips" AddressPort Verdict "policy Local: for pods and the node itself";
    LocalVips "local-vips" AddressPort Verdict "policy Local: for everybody else";
    RestrictedVips "restricted-vips" AddressPort Verdict "load-balancer IP -> the group of its source ranges";
    NodePortAliases "nodeport-aliases" NodePort PoolKey "node port -> the key of its pool";
    NodePorts "nodeports" NodePort Verdict "one pool for all clients";
    PolicyLocalNodePorts "policy-local-nodeports" NodePort Nothing "external traffic policy Local";
    ClusterNodePorts "cluster-nodeports" NodePort Verdict "policy Local: for pods and the node itself";
    LocalNodePorts "local-nodeports" NodePort Verdict "policy Local: for everybody else";
    /// Its keys begin with the address of the endpoint; the VIP is the endpoint to which a packet was translated.
    Hairpin "hairpin" AddressPort Nothing "endpoints on this node: masqueraded when they reach themselves";
    ClusterIps "cluster-ips" Address Nothing "cluster IPs of all services";
    /// Part of the base ruleset: nf_tables cannot compare two fields of a packet, but look both up. Its index is the
    /// byte.
    EqualBytes "equal-bytes" Address Byte "each byte twice: a field is compared with another byte by byte";
    /// The address is a range's first; the index is its prefix length.
    AllowedSources "allowed-sources" Address Source "group of source ranges . prefix length . first address";
}

/// A row of the table above.
struct MapDefinition {
    name: &'static str,
    vip_shape: VipShape,
    content: MapContent,
    comment: &'static str,
}

/// The fields of a VIP in the keys of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VipShape {
    /// [`Vip::AddressPort`](backend::dataplane::Vip::AddressPort).
    AddressPort,
    /// [`Vip::NodePort`](backend::dataplane::Vip::NodePort).
    NodePort,
    /// [`Vip::Address`](backend::dataplane::Vip::Address).
    Address,
}

/// The fields of the elements of a map or set besides the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapContent {
    Nothing,
    Verdict,
    /// An endpoint; the key ends with its slot.
    Endpoint,
    /// As [`Self::Endpoint`], with a padding of four zero bytes before the endpoint, for the rules of session affinity.
    PaddedEndpoint,
    /// The key begins with an endpoint.
    Member,
    /// The key ends with a bucket of clients; the element is written by rules.
    Clients,
    /// The key of a pool, after a padding of four zero bytes.
    PoolKey,
    /// The key begins with a group of source ranges and the length of a prefix.
    Source,
    /// The key is a byte, twice, without a VIP.
    Byte,
}

/// The maximum number of elements in [`Map::AffineClients`]: each takes about 150 bytes, so 30 MB when full. The kernel
/// allocates 2 MB for the buckets of its hash table at once: 8 bytes for each of 4/3 of this number, rounded up to a
/// power of two, which is exactly met. When full, clients in new buckets are served without affinity. One namespace
/// uses at most a quarter of them, unless it has many service ports, see [`Affinity`](super::Affinity).
pub(crate) const MAX_AFFINE_CLIENTS: u32 = 196_608;

// === impl Map ===

impl Map {
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

    pub(crate) const fn name(self) -> &'static str {
        Self::DEFINITIONS[self as usize].name
    }

    pub(crate) const fn vip_shape(self) -> VipShape {
        Self::DEFINITIONS[self as usize].vip_shape
    }

    pub(crate) const fn content(self) -> MapContent {
        Self::DEFINITIONS[self as usize].content
    }

    /// Whether several service ports may need the same element.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Hairpin | Self::ClusterIps | Self::AllowedSources)
    }

    /// Whether the base ruleset contains the elements.
    pub(crate) fn is_fixed(self) -> bool {
        self.content() == MapContent::Byte
    }

    /// Whether rules write the elements. Fairlead does not add, list or delete them.
    pub(crate) fn is_written_by_rules(self) -> bool {
        self.content() == MapContent::Clients
    }

    /// The definition of the map.
    pub(crate) fn set(self, family: IpFamily) -> Set {
        let address = match family {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        };
        let endpoint = vec![address, DataType::InetService];
        let padded_endpoint = vec![DataType::Mark, address, DataType::InetService];

        let mut key = match (self, self.content()) {
            (Self::Hairpin, _) => vec![address],
            (_, MapContent::Member) => endpoint.clone(),
            // nft prints a type of 16 bytes as an address.
            (_, MapContent::Source) => vec![DataType::Ipv6Addr, DataType::InetService],
            // A byte in a register is followed by zeros.
            (_, MapContent::Byte) => vec![DataType::Mark, DataType::Mark],
            _ => vec![],
        };
        key.extend(match self.vip_shape() {
            _ if self.is_fixed() => vec![],
            VipShape::AddressPort => vec![address, DataType::InetProto, DataType::InetService],
            VipShape::NodePort => vec![DataType::InetProto, DataType::InetService],
            VipShape::Address => vec![address],
        });

        let (key_end, data, flags) = match self.content() {
            MapContent::Nothing | MapContent::Member | MapContent::Source | MapContent::Byte => {
                (None, vec![], SetFlags::NONE)
            }
            MapContent::Verdict => (None, vec![DataType::Verdict], SetFlags::NONE),
            // Marks are in host byte order, as the results of numgen are.
            MapContent::Endpoint => (Some(DataType::Mark), endpoint, SetFlags::NONE),
            MapContent::PaddedEndpoint => (Some(DataType::Mark), padded_endpoint, SetFlags::NONE),
            MapContent::Clients => (Some(DataType::Mark), padded_endpoint, SetFlags::TIMEOUT | SetFlags::EVAL),
            MapContent::PoolKey => {
                let pool_key = vec![DataType::Mark, address, DataType::InetProto, DataType::InetService];
                (None, pool_key, SetFlags::NONE)
            }
        };
        key.extend(key_end);

        let size = if self.is_written_by_rules() { Some(MAX_AFFINE_CLIENTS) } else { None };
        let set = Set::map(self.name(), key, data).comment(Self::DEFINITIONS[self as usize].comment);
        Set { flags, size, ..set }
    }
}
