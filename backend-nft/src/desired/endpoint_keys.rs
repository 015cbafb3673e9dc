//! The keys of the endpoint elements of service ports.

use proto::model::IpFamily;

use super::Update;
use crate::element::EndpointKeys;

/// The keys that the endpoint maps should have for these service ports.
pub(crate) fn endpoint_keys(updates: &[Update]) -> EndpointKeys {
    let mut keys = EndpointKeys::default();
    for Update { desired, .. } in updates {
        for family in IpFamily::ALL {
            for (map, vip, slots) in desired[family].iter().flat_map(|desired| desired.endpoint_maps()) {
                keys.add(family, map, vip, slots);
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use backend::{
        dataplane::Masquerade,
        testing::{mk_key, mk_state},
    };
    use proto::model::PerFamily;

    use super::*;
    use crate::{
        desired::desired,
        element::{Element, ElementData, Map},
    };

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
        let of_family = |family| desired(service_port, family, Masquerade::Never, |_| true, &[], 1).map(Box::new);
        let update = Update { key, desired: PerFamily::from_fn(of_family) };
        let all_keys = endpoint_keys(std::slice::from_ref(&update));
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
