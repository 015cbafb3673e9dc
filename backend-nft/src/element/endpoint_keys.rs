//! The keys that the endpoint maps should have, so that a large map can be listed by its keys instead of dumped: the
//! kernel finds an element by its key in constant time, but the time for a dump grows with the square of the size of
//! the map.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use backend::dataplane::Vip;
use netlink::nft::Fields;
use proto::model::{IpFamily, PerFamily};

use super::{Element, ElementData, Map};

/// The number of slots of each VIP in each endpoint map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndpointKeys(PerFamily<BTreeMap<Map, Vec<(Vip, u32)>>>);

impl EndpointKeys {
    /// Adds the slots of a VIP in a map.
    pub(crate) fn add(&mut self, family: IpFamily, map: Map, vip: Vip, slots: u32) {
        self.0[family].entry(map).or_default().push((vip, slots));
    }

    /// The number of keys that a map should have; 0 for a map without endpoints.
    pub(crate) fn len(&self, family: IpFamily, map: Map) -> usize {
        self.vips(family, map).iter().map(|(_, slots)| *slots as usize).sum()
    }

    /// The keys of a map. The kernel alone stores which endpoint has which slot.
    pub(crate) fn of_map(&self, family: IpFamily, map: Map) -> impl Iterator<Item = Fields> {
        // The data does not matter for the key.
        let data = match family {
            IpFamily::V4 => ElementData::Endpoint(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpFamily::V6 => ElementData::Endpoint(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        self.vips(family, map)
            .iter()
            .flat_map(move |(vip, slots)| (0..*slots).map(move |index| Element { vip: *vip, map, index, data }.key()))
    }

    fn vips(&self, family: IpFamily, map: Map) -> &[(Vip, u32)] {
        self.0[family].get(&map).map_or(&[], Vec::as_slice)
    }
}
