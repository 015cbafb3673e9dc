//! The keys that the endpoint maps should have, so that a large map can be listed by its keys instead of dumped: the
//! kernel finds an element by its key in constant time, but the time for a dump grows with the square of the size of
//! the map.

use std::collections::BTreeMap;

use backend::dataplane::Vip;
use netlink::nft::Fields;
use proto::model::{IpFamily, PerFamily};

use super::Update;
use crate::element::{Element, ElementData, Map};

/// The number of slots of each VIP in each endpoint map.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointKeys(PerFamily<BTreeMap<Map, Vec<(Vip, u32)>>>);

impl EndpointKeys {
    /// The keys that these service ports should have.
    pub(crate) fn of(updates: &[Update]) -> Self {
        let mut keys = Self::default();
        for (family, desired) in updates.iter().flat_map(|update| update.desired.iter()) {
            for (map, vip, slots) in desired.iter().flat_map(|desired| desired.endpoint_maps()) {
                keys.0[family].entry(map).or_default().push((vip, slots));
            }
        }
        keys
    }

    /// The number of keys that a map should have; 0 for a map without endpoints.
    pub(crate) fn len(&self, family: IpFamily, map: Map) -> usize {
        self.vips(family, map).iter().map(|(_, slots)| *slots as usize).sum()
    }

    /// The keys of a map. The kernel alone stores which endpoint has which slot.
    pub(crate) fn of_map(&self, family: IpFamily, map: Map) -> impl Iterator<Item = Fields> {
        // The data does not matter for the key.
        let data = ElementData::Endpoint(family.unspecified(), 0);
        self.vips(family, map)
            .iter()
            .flat_map(move |(vip, slots)| (0..*slots).map(move |index| Element { vip: *vip, map, index, data }.key()))
    }

    fn vips(&self, family: IpFamily, map: Map) -> &[(Vip, u32)] {
        self.0[family].get(&map).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use backend::{
        dataplane::Masquerade,
        testing::{mk_key, mk_state},
    };

    use super::*;
    use crate::{desired::desired, element::Affinity};

    #[test]
    fn endpoint_keys_are_the_keys_of_the_endpoint_elements() {
        let state = mk_state()
            .service("default/web", |web| {
                let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").external_ip("203.0.113.1");
                let web = web.node_port(30080).external_local().affinity(60);
                let web = web.endpoints(["10.244.1.1:80", "10.244.2.1:80", "[fd00:244::1]:80"]);
                web.local_endpoints(["10.244.1.1:80"])
            })
            .build();
        let key = mk_key("default/web");
        let service_port = state.service_port(&key).unwrap();
        let of_family = |family| {
            desired(service_port, family, Masquerade::Never, |_| true, &[], Affinity::buckets(1)).map(Box::new)
        };
        let update = Update { key, desired: PerFamily::from_fn(of_family) };
        let all_keys = EndpointKeys::of(std::slice::from_ref(&update));
        for family in IpFamily::ALL {
            let mut elements = Vec::new();
            update.desired[family].as_ref().unwrap().elements(&mut elements);
            for map in Map::ALL {
                let of_map = elements.iter().filter(|element| element.map == map);
                let endpoints = of_map.filter(|element| matches!(element.data, ElementData::Endpoint(..)));
                let keys: Vec<_> = endpoints.map(Element::key).collect();
                assert_eq!(all_keys.len(family, map), keys.len(), "{}", map.name());
                let found = all_keys.of_map(family, map).map(|key| key.to_vec());
                assert!(found.eq(keys.iter().map(|key| key.to_vec())));
            }
        }
    }
}
