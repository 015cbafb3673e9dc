//! The service ports that a node without rules programs first, because others depend on them.

use proto::model::ServicePort;

/// The port of DNS.
const DNS: u16 = 53;

/// Whether this is the API server's Service (`default/kubernetes`) or cluster DNS: any Service with port 53 in
/// `kube-system`.
#[must_use]
pub fn is_urgent(port: &ServicePort) -> bool {
    match (&*port.key.namespace, &*port.key.name) {
        ("default", "kubernetes") => true,
        ("kube-system", _) => port.port.get() == DNS,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::mk_state;

    use super::*;

    #[test]
    fn api_server_and_cluster_dns_are_urgent() {
        let state = mk_state()
            .service("default/kubernetes", |api| api.port(443))
            .service("kube-system/kube-dns/udp", |dns| dns.port(53))
            .service("kube-system/coredns", |dns| dns.port(53))
            .service("kube-system/kube-dns-metrics", |metrics| metrics.port(9153))
            .service("default/dns", |dns| dns.port(53))
            .service("shop/kubernetes", |other| other.port(443))
            .build();
        let urgent = state.service_ports().values().filter(|service| is_urgent(&service.port));
        let urgent: Vec<String> = urgent.map(|service| service.port.key.to_string()).collect();
        assert_eq!(urgent, ["default/kubernetes/tcp", "kube-system/coredns/tcp", "kube-system/kube-dns/udp"]);
    }
}
