//! The elements of maps and sets as small values without pointers, ordered for comparison. The kernel's encoding of an
//! element exists only in messages.

mod map;

use std::net::IpAddr;

use backend::dataplane::Vip;
use netlink::nft::{self, FieldReader, Fields};
use proto::model::{IpFamily, Protocol};

use crate::desired::PoolChain;
use map::MapContent;
pub(crate) use map::{Map, VipShape};

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

// === impl Element ===

impl Element {
    /// An element without a slot.
    pub(crate) fn new(map: Map, vip: Vip, data: ElementData) -> Self {
        Self { vip, map, index: 0, data }
    }

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
        match self.vip {
            Vip::AddressPort { address, port, protocol } => before.addr(address).proto(protocol.number()).port(port),
            Vip::NodePort { port, protocol } => before.proto(protocol.number()).port(port),
            Vip::Address(address) => before.addr(address),
        }
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
        let endpoint = |fields: &mut FieldReader<'_>| Some((address(fields, family)?, fields.port()?));
        let member = if map.content() == MapContent::Member { Some(endpoint(&mut fields)?) } else { None };
        let vip = vip(map.vip_shape(), &mut fields, family)?;
        let mut index = 0;
        let data = match (map.content(), &element.data) {
            (MapContent::Nothing, nft::ElementData::None) => ElementData::None,
            (MapContent::Member, nft::ElementData::None) => {
                member.map(|(address, port)| ElementData::Member(address, port))?
            }
            (MapContent::Verdict, nft::ElementData::Verdict(verdict)) => ElementData::Verdict(Verdict::read(verdict)?),
            (content @ (MapContent::Endpoint | MapContent::PaddedEndpoint), nft::ElementData::Value(value)) => {
                index = fields.mark()?;
                let mut value = FieldReader::new(value);
                if content == MapContent::PaddedEndpoint {
                    value.mark().filter(|padding| *padding == 0)?;
                }
                let (address, port) = endpoint(&mut value)?;
                ElementData::Endpoint(address, port)
            }
            (MapContent::Range, nft::ElementData::None) => {
                let mut end = FieldReader::new(key_end);
                self::vip(map.vip_shape(), &mut end, family)?;
                let (first, last) = (address(&mut fields, family)?, address(&mut end, family)?);
                ElementData::Range(AddressRange { first, last })
            }
            _ => return None,
        };
        let read = Self { vip, map, index, data };
        // Parts that are not decoded (padding, a second address, the VIP of the end) must be as Fairlead writes them.
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

/// Reads a VIP from the next fields of a key.
fn vip(shape: VipShape, fields: &mut FieldReader<'_>, family: IpFamily) -> Option<Vip> {
    let protocol_port = |fields: &mut FieldReader<'_>| {
        let number = fields.proto()?;
        Some((Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?, fields.port()?))
    };
    Some(match shape {
        VipShape::Address => Vip::Address(address(fields, family)?),
        VipShape::AddressPort => {
            let address = address(fields, family)?;
            let (protocol, port) = protocol_port(fields)?;
            Vip::AddressPort { address, port, protocol }
        }
        VipShape::NodePort => {
            let (protocol, port) = protocol_port(fields)?;
            Vip::NodePort { port, protocol }
        }
    })
}

/// Reads the address in the next field.
fn address(fields: &mut FieldReader<'_>, family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => fields.ipv4().map(IpAddr::V4),
        IpFamily::V6 => fields.ipv6().map(IpAddr::V6),
    }
}
