//! The objects of a tenant who multiplies the dimensions of a Service.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// The tenant's namespace and Service.
pub(super) const TENANT: (&str, &str) = ("tenant", "attack");
const CLUSTER_IP: &str = "10.64.255.1";
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 0);
const FIRST_EXTERNAL_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FIRST_LOAD_BALANCER_IP: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const FIRST_RANGE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
/// The most endpoints of a slice that the API server accepts.
const SLICE: usize = 1_000;

/// The dimensions of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimensions {
    pub(super) ports: usize,
    pub(super) external_ips: usize,
    pub(super) load_balancer_ips: usize,
    pub(super) endpoints: usize,
    pub(super) ranges: usize,
    pub(super) affinity: bool,
    /// How often all endpoints are replaced by others, one slice after the other.
    pub(super) flaps: usize,
}

/// A family of Services of any size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) name: &'static str,
    /// Dimensions whose inputs are about this number.
    pub(super) dimensions: fn(usize) -> Dimensions,
}

const ONE: Dimensions =
    Dimensions { ports: 1, external_ips: 0, load_balancer_ips: 0, endpoints: 1, ranges: 0, affinity: false, flaps: 0 };

/// Ports of the products that have several.
const PORTS: usize = 20;

pub(super) const PRODUCTS: [Product; 7] = [
    Product {
        name: "VIPs x endpoints",
        dimensions: |size| Dimensions { external_ips: size / 2, endpoints: size / 2, ..ONE },
    },
    Product {
        name: "VIPs x endpoints, affinity",
        dimensions: |size| Dimensions { external_ips: size / 2, endpoints: size / 2, affinity: true, ..ONE },
    },
    Product {
        name: "VIPs x ranges",
        dimensions: |size| Dimensions { load_balancer_ips: size / 2, ranges: size / 2, ..ONE },
    },
    Product {
        name: "ports x ranges",
        dimensions: |size| Dimensions { ports: PORTS, load_balancer_ips: 1, ranges: size / PORTS, ..ONE },
    },
    Product {
        name: "ports x endpoints",
        dimensions: |size| Dimensions { ports: PORTS, endpoints: size / PORTS, ..ONE },
    },
    Product {
        name: "ports x VIPs x endpoints x ranges",
        dimensions: |size| {
            let each = size / PORTS / 3;
            Dimensions { ports: PORTS, load_balancer_ips: each, endpoints: each, ranges: each, ..ONE }
        },
    },
    Product {
        name: "flapping: VIPs x endpoints",
        dimensions: |size| Dimensions { external_ips: size / 2, endpoints: size / 2, flaps: 4, ..ONE },
    },
];

// === impl Dimensions ===

impl Dimensions {
    /// The sum of VIPs, endpoints and ranges of all service ports.
    pub(super) fn inputs(&self) -> usize {
        let Self { ports, external_ips, load_balancer_ips, endpoints, ranges, .. } = self;
        // One more VIP is the cluster IP.
        ports * (1 + external_ips + load_balancer_ips + endpoints + ranges)
    }

    /// The Service.
    pub(super) fn service(&self) -> Value {
        let (namespace, name) = TENANT;
        let numbers = |count: usize, first: Ipv4Addr| (0..count).map(move |number| ip(first, number));
        let ports = (0..self.ports).map(|port| {
            json!({"name": format!("p{port}"), "protocol": "TCP", "port": 1_000 + port, "targetPort": 10_000 + port})
        });
        // Neighbours are not siblings: none can be merged with another one.
        let ranges = (0..self.ranges).map(|number| format!("{}/28", ip(FIRST_RANGE, 32 * number)));
        let ingress = numbers(self.load_balancer_ips, FIRST_LOAD_BALANCER_IP).map(|ip| json!({"ip": ip}));
        json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": CLUSTER_IP,
                "clusterIPs": [CLUSTER_IP],
                "ports": ports.collect::<Vec<_>>(),
                "externalIPs": numbers(self.external_ips, FIRST_EXTERNAL_IP).collect::<Vec<_>>(),
                "loadBalancerSourceRanges": ranges.collect::<Vec<_>>(),
                "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
            },
            "status": {"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}},
        })
    }

    /// The names and contents of its slices. Each generation has other endpoints.
    pub(super) fn slices(&self, generation: usize) -> Vec<(String, Value)> {
        let (namespace, service) = TENANT;
        let ports: Vec<_> = (0..self.ports)
            .map(|port| json!({"name": format!("p{port}"), "protocol": "TCP", "port": 10_000 + port}))
            .collect();
        let first = generation * self.endpoints;
        let addresses: Vec<_> = (first..first + self.endpoints).map(|number| ip(FIRST_POD, number)).collect();
        let slices = addresses.chunks(SLICE).enumerate().map(|(number, addresses)| {
            let name = format!("{service}-{number}");
            let endpoints: Vec<_> = addresses
                .iter()
                .map(|address| json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "elsewhere"}))
                .collect();
            let slice = json!({
                "metadata": {
                    "namespace": namespace,
                    "name": name,
                    "labels": {"kubernetes.io/service-name": service},
                },
                "addressType": "IPv4",
                "ports": ports,
                "endpoints": endpoints,
            });
            (name, slice)
        });
        slices.collect()
    }
}

fn ip(first: Ipv4Addr, number: usize) -> String {
    Ipv4Addr::from(u32::from(first) + number as u32).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_each_product_double_with_its_size() {
        for Product { name, dimensions } in PRODUCTS {
            let (small, large) = (dimensions(1_000).inputs() as f64, dimensions(2_000).inputs() as f64);
            assert!((0.8..1.2).contains(&(small / 1_000.0)), "{name}: {small}");
            assert!((1.8..2.1).contains(&(large / small)), "{name}: {small}, {large}");
        }
    }

    #[test]
    fn slices_are_as_large_as_the_api_allows() {
        let dimensions = Dimensions { endpoints: 2_500, ..ONE };
        let slices = dimensions.slices(0);
        let sizes: Vec<_> = slices.iter().map(|(_, slice)| slice["endpoints"].as_array().map_or(0, Vec::len)).collect();
        assert_eq!(sizes, [1_000, 1_000, 500]);
        assert_ne!(dimensions.slices(1)[0].1["endpoints"], slices[0].1["endpoints"]);
    }
}
