//! The elements of maps and sets as small values without pointers, ordered for comparison. The kernel's encoding of an
//! element exists only in messages. Elements lead to chains, whose names are here too.

mod affinity;
mod map;
mod pool_chain;
mod source_group;

use std::net::IpAddr;

use backend::dataplane::Vip;
use ipnet::IpNet;
use netlink::nft::{self, FieldReader, Fields};
use proto::model::{IpFamily, Protocol};

pub(crate) use affinity::{Affinity, ForgottenClients};
pub(crate) use map::{Map, MapContent, VipShape};
pub(crate) use pool_chain::{PoolChain, PoolChainKind};
pub(crate) use source_group::SourceGroupId;

/// One element. Sorted by VIP first, so that the elements of a VIP are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Element {
    pub(crate) vip: Vip,
    pub(crate) map: Map,
    /// The slot of the endpoint in its pool, or the length of a prefix; otherwise 0.
    pub(crate) index: u32,
    pub(crate) data: ElementData,
}

/// The data of an element besides its VIP and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ElementData {
    None,
    Endpoint(IpAddr, u16),
    Verdict(Verdict),
    /// An endpoint, as part of the key.
    Member(IpAddr, u16),
    /// The VIP that is the key of the pool.
    PoolKey(Vip),
    /// The group of source ranges that a prefix belongs to, as part of the key.
    Source(SourceGroupId),
}

/// The verdict for packets to a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Verdict {
    /// Drop: there are endpoints, but none for this source class.
    Drop,
    /// Reject with an error to the client: there is no endpoint in the whole cluster.
    Reject,
    /// Translate to one of the endpoints of a pool.
    Pool(PoolChain),
    /// Drop, unless the source is in a group of source ranges.
    Sources(SourceGroupId),
    /// Any verdict that Fairlead never writes: of another process, or of another version of Fairlead.
    Foreign,
}

/// The name of the chain for [`Verdict::Reject`].
pub(crate) const REJECT: &str = "reject";

// === impl Element ===

impl Element {
    /// An element without a slot.
    pub(crate) fn new(map: Map, vip: Vip, data: ElementData) -> Self {
        Self { vip, map, index: 0, data }
    }

    /// The elements of [`Map::EqualBytes`].
    pub(crate) fn equal_bytes(family: IpFamily) -> impl Iterator<Item = Self> {
        let vip = Vip::Address(family.unspecified());
        (0..=u8::MAX.into()).map(move |index| Self { index, ..Self::new(Map::EqualBytes, vip, ElementData::None) })
    }

    /// The key in the map.
    pub(crate) fn key(&self) -> Fields {
        if self.map.is_fixed() {
            // An index up to 255, as a packet's byte is loaded into a register.
            let byte = self.index.to_le_bytes();
            return Fields::new().raw(&byte).raw(&byte);
        }

        let fields = match (self.vip, self.data) {
            (Vip::AddressPort { address, .. }, _) if self.map == Map::Hairpin => Fields::new().addr(address),
            (_, ElementData::Member(address, port)) => Fields::new().addr(address).port(port),
            // A prefix has at most 128 bits.
            (_, ElementData::Source(group)) => Fields::new().raw(&group.0).port(self.index as u16),
            _ => Fields::new(),
        };
        let fields = vip_fields(fields, &self.vip);
        match self.data {
            ElementData::Endpoint(..) => fields.mark(self.index),
            _ => fields,
        }
    }

    /// The value in the map, unless it is a verdict.
    pub(crate) fn value(&self) -> Option<Fields> {
        let padding = match self.map.content() {
            MapContent::PaddedEndpoint | MapContent::PoolKey => Fields::new().mark(0),
            _ => Fields::new(),
        };

        match self.data {
            ElementData::Endpoint(address, port) => Some(padding.addr(address).port(port)),
            ElementData::PoolKey(vip) => Some(vip_fields(padding, &vip)),
            _ => None,
        }
    }

    /// The pool chain that it leads to.
    pub(crate) fn pool(&self) -> Option<PoolChain> {
        match self.data {
            ElementData::Verdict(Verdict::Pool(chain)) => Some(chain),
            _ => None,
        }
    }

    /// The group of source ranges that the verdict refers to.
    pub(crate) fn source_group(&self) -> Option<SourceGroupId> {
        match self.data {
            ElementData::Verdict(Verdict::Sources(group)) => Some(group),
            _ => None,
        }
    }

    /// Whether no packet is affected by it unless another element leads to it.
    pub(crate) fn is_leaf(&self) -> bool {
        matches!(self.data, ElementData::Endpoint(..) | ElementData::Member(..))
    }

    /// The prefix of [`Map::AllowedSources`].
    pub(crate) fn prefix(&self) -> Option<IpNet> {
        let (Vip::Address(address), ElementData::Source(_)) = (self.vip, self.data) else { return None };
        IpNet::new(address, u8::try_from(self.index).ok()?).ok()
    }

    /// Decodes an element. `None`: Fairlead never writes such an element.
    pub(crate) fn read(map: Map, family: IpFamily, element: &nft::Element<'_>) -> Option<Self> {
        let read = if map.is_fixed() { Self::read_byte(family, element)? } else { Self::decode(map, family, element)? };
        // Parts that are not decoded (padding, a second address) must be as Fairlead writes them.
        if element.key_end.is_none() && read.key()[..] == *element.key { Some(read) } else { None }
    }

    /// Decodes an element of [`Map::EqualBytes`].
    fn read_byte(family: IpFamily, element: &nft::Element<'_>) -> Option<Self> {
        let byte = FieldReader::new(element.key).mark()?.to_ne_bytes()[0];
        Self::equal_bytes(family).nth(byte.into())
    }

    /// Decodes the parts of an element that differ between elements of the map.
    fn decode(map: Map, family: IpFamily, element: &nft::Element<'_>) -> Option<Self> {
        let endpoint = |fields: &mut FieldReader<'_>| Some((fields.addr(family)?, fields.port()?));
        let mut fields = FieldReader::new(element.key);
        let mut index = 0;
        let before_vip = match map.content() {
            MapContent::Nothing if map == Map::Hairpin => fields.addr(family).map(|_| ElementData::None)?,
            MapContent::Member => endpoint(&mut fields).map(|(address, port)| ElementData::Member(address, port))?,
            MapContent::Source => {
                let group = SourceGroupId(fields.array()?);
                index = fields.port()?.into();
                ElementData::Source(group)
            }
            _ => ElementData::None,
        };
        let vip = vip(map.vip_shape(), &mut fields, family)?;

        let data = match (map.content(), &element.data) {
            (MapContent::Nothing | MapContent::Member | MapContent::Source, nft::ElementData::None) => before_vip,
            (MapContent::Verdict, nft::ElementData::Verdict(verdict)) => ElementData::Verdict(Verdict::read(verdict)),
            (content @ (MapContent::Endpoint | MapContent::PaddedEndpoint), nft::ElementData::Value(value)) => {
                index = fields.mark()?;
                let mut value = FieldReader::new(value);
                if content == MapContent::PaddedEndpoint {
                    value.mark().filter(|padding| *padding == 0)?;
                }
                let (address, port) = endpoint(&mut value)?;
                ElementData::Endpoint(address, port)
            }
            (MapContent::PoolKey, nft::ElementData::Value(value)) => {
                let mut value = FieldReader::new(value);
                value.mark().filter(|padding| *padding == 0)?;
                ElementData::PoolKey(self::vip(VipShape::AddressPort, &mut value, family)?)
            }
            _ => return None,
        };

        let decoded = Self { vip, map, index, data };
        if map.content() == MapContent::Source && vip != Vip::Address(decoded.prefix()?.network()) {
            return None;
        }
        Some(decoded)
    }
}

// === impl Verdict ===

impl Verdict {
    /// The name of the chain that it jumps to.
    pub(crate) fn chain(&self) -> Option<String> {
        match self {
            Self::Reject => Some(REJECT.to_owned()),
            Self::Pool(chain) => Some(chain.to_string()),
            Self::Sources(group) => Some(group.to_string()),
            Self::Drop | Self::Foreign => None,
        }
    }

    fn read(verdict: &nft::Verdict<'_>) -> Self {
        let known = match verdict {
            nft::Verdict::Drop => Some(Self::Drop),
            nft::Verdict::Goto(chain) if *chain == REJECT => Some(Self::Reject),
            nft::Verdict::Goto(chain) => {
                let pool = PoolChain::parse(chain).map(Self::Pool);
                pool.or_else(|| SourceGroupId::parse(chain).map(Self::Sources))
            }
            _ => None,
        };
        known.unwrap_or(Self::Foreign)
    }
}

fn vip_fields(before: Fields, vip: &Vip) -> Fields {
    match *vip {
        Vip::AddressPort { address, port, protocol } => before.addr(address).proto(protocol.number()).port(port),
        Vip::NodePort { port, protocol } => before.proto(protocol.number()).port(port),
        Vip::Address(address) => before.addr(address),
    }
}

/// Reads a VIP from the next fields of a key.
fn vip(shape: VipShape, fields: &mut FieldReader<'_>, family: IpFamily) -> Option<Vip> {
    Some(match shape {
        VipShape::Address => Vip::Address(fields.addr(family)?),
        VipShape::AddressPort => {
            let address = fields.addr(family)?;
            let protocol = protocol(fields)?;
            Vip::AddressPort { address, port: fields.port()?, protocol }
        }
        VipShape::NodePort => {
            let protocol = protocol(fields)?;
            Vip::NodePort { port: fields.port()?, protocol }
        }
    })
}

fn protocol(fields: &mut FieldReader<'_>) -> Option<Protocol> {
    let number = fields.proto()?;
    Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
}
