//! The operator's limits for Services: which addresses they may claim, and how much of one Service is used.
//!
//! A cost is then the sum of what users write, never a product that one Service chooses: its ports times its VIPs, its
//! source ranges or its endpoints.

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::object::{ConnectionResets, ObjectProblem, RESET_CONNECTIONS_ANNOTATION, ServiceLimits, ServiceObject};

/// The operator's limits for Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePolicy {
    /// `spec.externalIPs` that are served.
    pub external_ips: AllowedIps,
    /// `status.loadBalancer.ingress[].ip` that are served.
    pub load_balancer_ips: AllowedIps,
    /// The CIDRs of pods. An external IP in them is not served, nor a load-balancer IP that is an endpoint. They may
    /// contain other addresses than those of pods.
    pub cluster_cidrs: Vec<IpNet>,
    /// TCP and UDP ports that no Service gets at the address of a Node, and as a node port: those of what runs on
    /// nodes. The ports of API servers are added from `default/kubernetes`.
    pub protected_ports: BTreeSet<u16>,
    /// Whether addresses of Nodes are served on no port at all. With IPVS a VIP is an address of every node, so that
    /// they could not reach the Node that has it.
    pub refuse_node_addresses: bool,
    /// How much of one Service is used.
    pub limits: ServiceLimits,
    /// Which connections are reset. A Service may choose less.
    pub connection_resets: ConnectionResets,
}

/// Which addresses may be claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedIps {
    /// All addresses.
    #[default]
    All,
    /// No address.
    None,
    /// Those in these CIDRs.
    In(Vec<IpNet>),
}

// === impl AllowedIps ===

impl AllowedIps {
    fn allows(&self, ip: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::In(cidrs) => cidrs.iter().any(|cidr| cidr.contains(&ip)),
        }
    }
}

impl FromStr for AllowedIps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cidr = |text: &str| {
            let text = text.trim();
            let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            let error = || format!("{text:?}: expected `all`, `none`, or CIDRs such as 203.0.113.0/24");
            net.map(|net| net.trunc()).map_err(|_| error())
        };
        match text.trim() {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            cidrs => cidrs.split(',').map(cidr).collect::<Result<_, _>>().map(Self::In),
        }
    }
}

impl fmt::Display for AllowedIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::In(cidrs) => f.write_str(&cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

// === impl ServicePolicy ===

const EXTERNAL: &str = "spec.externalIPs";
const LOAD_BALANCER: &str = "status.loadBalancer.ingress";
const RANGES: &str = "spec.loadBalancerSourceRanges";

impl ServicePolicy {
    /// What is used of a Service, and why the rest is not.
    pub(crate) fn apply(&self, mut service: ServiceObject) -> (ServiceObject, Vec<ObjectProblem>) {
        let mut problems = Vec::new();
        let allowed = self.connection_resets;
        if let Some(wanted) = service.connection_resets.filter(|wanted| *wanted > allowed) {
            let field = format!("metadata.annotations[{RESET_CONNECTIONS_ANNOTATION}]");
            let message = format!("{wanted}: not applied, because --reset-connections is {allowed}");
            problems.push(problem(&field, message));
        }
        service.connection_resets = Some(service.connection_resets.unwrap_or(allowed).min(allowed));
        retain_allowed(&mut service.external_ips, &self.external_ips, EXTERNAL, "--external-ips", &mut problems);
        for ips in [&mut service.load_balancer_ips, &mut service.closed_ips] {
            retain_allowed(ips, &self.load_balancer_ips, LOAD_BALANCER, "--load-balancer-ips", &mut problems);
        }
        let ServiceObject { external_ips, load_balancer_ips, closed_ips, .. } = &mut service;
        // The address is that of the load balancer, with its source ranges.
        external_ips.retain(|ip| load_balancer_ips.binary_search(ip).is_err() && closed_ips.binary_search(ip).is_err());
        self.limit_vips(&mut service, &mut problems);
        self.limit_ranges(&mut service, &mut problems);
        (service, problems)
    }

    /// Load-balancer IPs first, then external IPs, each in sorted order.
    fn limit_vips(&self, service: &mut ServiceObject, problems: &mut Vec<ObjectProblem>) {
        let ServiceLimits { vips, port_vips, .. } = self.limits;
        let of_product = (port_vips / service.ports.len().max(1)).max(1);
        let (mut left, flag) =
            if of_product < vips { (of_product, "--max-service-port-vips") } else { (vips, "--max-service-vips") };
        let ServiceObject { external_ips, load_balancer_ips, closed_ips, .. } = service;
        for (ips, field) in [(load_balancer_ips, LOAD_BALANCER), (closed_ips, LOAD_BALANCER), (external_ips, EXTERNAL)]
        {
            if ips.len() > left {
                let message =
                    format!("{} addresses: only the first {left} in sorted order are served ({flag})", ips.len());
                problems.push(problem(field, message));
                ips.truncate(left);
            }
            left -= ips.len();
        }
    }

    /// Without all of its ranges, a load-balancer IP is closed to everyone.
    fn limit_ranges(&self, service: &mut ServiceObject, problems: &mut Vec<ObjectProblem>) {
        let ServiceLimits { source_ranges, port_source_ranges, .. } = self.limits;
        let count = service.source_ranges.len();
        let ports = service.ports.len();
        let message = if count > source_ranges {
            format!("{count} source ranges, more than {source_ranges} (--max-service-source-ranges)")
        } else if count > 1 && ports.saturating_mul(count) > port_source_ranges {
            format!(
                "{count} source ranges for {ports} ports, more than {port_source_ranges} in total \
                 (--max-service-port-source-ranges)"
            )
        } else {
            return;
        };

        problems.push(problem(RANGES, format!("{message}: no load-balancer IP of the Service is served")));
        service.source_ranges.clear();
        service.closed_ips.append(&mut service.load_balancer_ips);
        service.closed_ips.sort_unstable();
    }
}

fn problem(field: &str, message: String) -> ObjectProblem {
    ObjectProblem { field: field.to_owned(), message }
}

/// One problem for all addresses that are not allowed.
fn retain_allowed(
    ips: &mut Vec<IpAddr>,
    allowed: &AllowedIps,
    field: &str,
    flag: &str,
    problems: &mut Vec<ObjectProblem>,
) {
    let refused: Vec<_> = ips.extract_if(.., |ip| !allowed.allows(*ip)).collect();
    let Some(first) = refused.first() else { return };
    let more = match refused.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    problems.push(problem(field, format!("{first}{more}: not served, because {flag} is {allowed}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ip, service};

    fn addresses(count: u32) -> Vec<IpAddr> {
        (0..count).map(|n| IpAddr::from((0xc633_6400 + n).to_be_bytes())).collect()
    }

    fn ranges(count: u32) -> Vec<IpNet> {
        (0..count).map(|n| IpNet::from(IpAddr::from((0x0b00_0000 + n).to_be_bytes()))).collect()
    }

    fn with_ports(mut service: ServiceObject, count: usize) -> ServiceObject {
        let port = service.ports[0].clone();
        let named = |n| crate::object::ServiceObjectPort { name: format!("port-{n:05}").into(), ..port.clone() };
        service.ports = (0..count).map(named).collect();
        service
    }

    fn fields(problems: &[ObjectProblem]) -> Vec<&str> {
        problems.iter().map(|problem| problem.field.as_str()).collect()
    }

    #[test]
    fn allowed_ips_are_all_none_or_in_cidrs() {
        let parsed: AllowedIps = " 192.0.2.1/24, 2001:db8::1".parse().unwrap();
        assert_eq!(parsed.to_string(), "192.0.2.0/24,2001:db8::1/128");
        assert!(parsed.allows(ip("192.0.2.9")) && !parsed.allows(ip("192.0.3.1")));
        assert_eq!(("all".parse(), "none".parse()), (Ok(AllowedIps::All), Ok(AllowedIps::None)));
        assert!("some".parse::<AllowedIps>().unwrap_err().contains("expected `all`"));
        let claims = ServiceObject {
            external_ips: vec![ip("192.0.2.1"), ip("198.51.100.1"), ip("198.51.100.2")],
            load_balancer_ips: vec![ip("192.0.2.2")],
            ..service("s", "10.96.0.1")
        };
        let policy = ServicePolicy { external_ips: parsed, ..ServicePolicy::default() };
        let (used, problems) = policy.apply(claims.clone());
        assert_eq!(used.external_ips, [ip("192.0.2.1")]);
        assert_eq!(
            problems[0].message,
            "198.51.100.1 and 1 more: not served, because --external-ips is 192.0.2.0/24,2001:db8::1/128"
        );
        let none = ServicePolicy {
            external_ips: AllowedIps::None,
            load_balancer_ips: AllowedIps::None,
            ..ServicePolicy::default()
        };
        let (used, problems) = none.apply(claims);
        assert!(used.external_ips.is_empty() && used.load_balancer_ips.is_empty());
        assert_eq!(fields(&problems), [EXTERNAL, LOAD_BALANCER]);
    }

    #[test]
    fn a_service_chooses_at_most_the_resets_that_the_operator_allows() {
        use ConnectionResets::{Never, NodeGone, Removed};
        for (allowed, chosen, used) in [
            (Never, None, Never),
            (Never, Some(Removed), Never),
            (NodeGone, None, NodeGone),
            (NodeGone, Some(Removed), NodeGone),
            (NodeGone, Some(Never), Never),
            (Removed, Some(NodeGone), NodeGone),
            (Removed, Some(Removed), Removed),
        ] {
            let policy = ServicePolicy { connection_resets: allowed, ..ServicePolicy::default() };
            let (object, problems) =
                policy.apply(ServiceObject { connection_resets: chosen, ..service("s", "10.96.0.1") });
            assert_eq!(object.connection_resets, Some(used), "{allowed}, {chosen:?}");
            let reported = chosen.is_some_and(|chosen| chosen > allowed);
            assert_eq!(problems.len(), usize::from(reported), "{problems:?}");
        }
    }

    #[test]
    fn vips_are_limited_and_those_of_load_balancers_come_first() {
        let claims = ServiceObject {
            external_ips: addresses(1000),
            load_balancer_ips: vec![ip("203.0.113.1")],
            ..service("s", "10.96.0.1")
        };
        let (used, problems) = ServicePolicy::default().apply(claims.clone());
        assert_eq!((used.external_ips.len(), problems.len()), (1000, 0), "one address of each node");
        let limits = ServiceLimits { vips: 256, ..ServiceLimits::default() };
        let (used, problems) = ServicePolicy { limits, ..ServicePolicy::default() }.apply(claims.clone());
        assert_eq!((used.load_balancer_ips.len(), used.external_ips.len()), (1, 255));
        assert_eq!(used.external_ips, addresses(255));
        assert_eq!(fields(&problems), [EXTERNAL]);
        for ports in [1, 20, 200, 2000, 20_000, 30_000] {
            let (used, _) = ServicePolicy::default().apply(with_ports(claims.clone(), ports));
            let vips = used.load_balancer_ips.len() + used.external_ips.len();
            assert!(ports * vips <= ServiceLimits::default().port_vips.max(ports), "{ports} ports, {vips} VIPs");
            assert!(!used.load_balancer_ips.is_empty());
        }
    }

    #[test]
    fn load_balancer_ip_with_too_many_source_ranges_is_closed() {
        let claims = |count| ServiceObject {
            external_ips: vec![ip("192.0.2.1"), ip("203.0.113.1")],
            load_balancer_ips: vec![ip("203.0.113.1")],
            source_ranges: ranges(count),
            ..service("s", "10.96.0.1")
        };
        for (ports, count, closed) in [
            (1, 4096, false),
            (1, 4097, true),
            (12, 4096, false),
            (13, 4096, true),
            (20, 2500, false),
            (20, 2501, true),
        ] {
            let (used, problems) = ServicePolicy::default().apply(with_ports(claims(count), ports));
            assert_eq!(used.load_balancer_ips.is_empty(), closed, "{ports} ports, {count} ranges");
            // It must not be served as an external IP either, which no range restricts.
            assert_eq!(used.external_ips, [ip("192.0.2.1")]);
            assert_eq!(used.closed_ips, if closed { vec![ip("203.0.113.1")] } else { vec![] });
            assert_eq!(fields(&problems), if closed { vec![RANGES] } else { vec![] });
            assert!(ports * used.source_ranges.len() <= ServiceLimits::default().port_source_ranges);
        }
    }
}
