//! The keys that the maps of endpoints should have, so that a large map can be asked for them instead of being dumped: the kernel
//! finds an element by its key at once, but takes a time for a dump that grows with the square of the map's size.

use std::collections::BTreeMap;

use backend::dataplane::Vip;
use netlink::nft::Fields;
use proto::model::{IpFamily, PerFamily};

use crate::element::{Data, Element, Map};

/// How many places each front has in each map of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected(PerFamily<BTreeMap<Map, Vec<(Vip, u32)>>>);

impl Expected {
    /// Takes in what a service port is to have.
    pub(crate) fn add(&mut self, family: IpFamily, elements: &[Element]) {
        for Element { front, map, index, data } in elements {
            let Data::Endpoint(..) = data else { continue };
            let fronts = self.0[family].entry(*map).or_default();
            match fronts.last_mut() {
                Some((last, places)) if last == front => *places = (*places).max(index + 1),
                _ => fronts.push((*front, index + 1)),
            }
        }
    }

    /// How many keys it should have; 0 for a map that holds no endpoints.
    pub(crate) fn len(&self, family: IpFamily, map: Map) -> usize {
        self.fronts(family, map).iter().map(|(_, places)| *places as usize).sum()
    }

    /// Its keys. The data is not known: who has which place is the kernel's to say.
    pub(crate) fn keys(&self, family: IpFamily, map: Map) -> impl Iterator<Item = Fields> {
        let nobody = match family {
            IpFamily::V4 => Data::Endpoint(std::net::Ipv4Addr::UNSPECIFIED.into(), 0),
            IpFamily::V6 => Data::Endpoint(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        self.fronts(family, map).iter().flat_map(move |(front, places)| {
            (0..*places).map(move |index| Element { front: *front, map, index, data: nobody }.key())
        })
    }

    fn fronts(&self, family: IpFamily, map: Map) -> &[(Vip, u32)] {
        self.0[family].get(&map).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use backend::{dataplane::Masquerade, testing::mk_state};

    use super::*;
    use crate::desired::{Orders, desired};

    #[test]
    fn its_keys_are_those_of_the_elements() {
        let state = mk_state()
            .service("default/web", |web| {
                let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").external_ip("203.0.113.1");
                let web = web.node_port(30080).external_local().affinity(60);
                let web = web.endpoints(["10.244.1.1:80", "10.244.2.1:80", "[fd00:244::1]:80"]);
                web.local_endpoints(["10.244.1.1:80"])
            })
            .build();
        let service = state.service_ports().values().next().unwrap();
        for family in IpFamily::ALL {
            let (mut elements, mut expected) = (Vec::new(), Expected::default());
            let orders = Orders::default();
            let desired = desired(service, family, Masquerade::Never, |_| true, &orders, &[]);
            desired.unwrap().elements(&mut elements);
            expected.add(family, &elements);
            for map in Map::ALL {
                let of_map = elements.iter().filter(|element| element.map == map);
                let keys: Vec<_> =
                    of_map.filter(|element| matches!(element.data, Data::Endpoint(..))).map(Element::key).collect();
                assert_eq!(expected.len(family, map), keys.len(), "{}", map.name());
                assert!(expected.keys(family, map).map(|key| key.to_vec()).eq(keys.iter().map(|key| key.to_vec())));
            }
        }
    }
}
