//! The VIPs of a Service, and the source ranges that may use them.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServiceSpec};
use proto::model::{IpFamily, PerFamily};

use super::super::{FieldProblems, address, items, sorted};
use crate::object::ServiceObject;

/// A Service with nothing but its VIPs and source ranges. `None` if it is headless, or has no usable cluster IP.
///
/// External and load-balancer IPs of an IP family without a cluster IP are ignored.
pub(super) fn with_vips(service: &Service, problems: &mut FieldProblems) -> Option<ServiceObject> {
    let spec = service.spec.as_ref()?;
    let cluster_ips = cluster_ips(spec, problems)?;

    let path = "spec.loadBalancerSourceRanges";
    let ranges = problems.valid(path, spec.load_balancer_source_ranges.as_ref(), address::cidr);
    let source_ranges = IpNet::aggregate(&ranges);
    let all_ranges_used = ranges.len() == items(spec.load_balancer_source_ranges.as_ref()).len();

    let path = "spec.externalIPs";
    let external_ips = sorted(problems.valid(path, spec.external_ips.as_ref(), |text| external_ip(text, &cluster_ips)));

    let mut load_balancer_ips = load_balancer_ips(service, &cluster_ips, problems);
    let mut closed_ips = Vec::new();
    if !all_ranges_used {
        closed_ips = load_balancer_ips.extract_if(.., |ip| !is_restricted(ip, &source_ranges, problems)).collect();
    }
    Some(ServiceObject {
        cluster_ips,
        external_ips,
        load_balancer_ips,
        closed_ips,
        source_ranges,
        ..ServiceObject::default()
    })
}

/// The cluster IPs of a Service. `None` if it is headless, or has no usable cluster IP.
pub(super) fn cluster_ips(spec: &ServiceSpec, problems: &mut FieldProblems) -> Option<PerFamily<Option<IpAddr>>> {
    let all = items(spec.cluster_ips.as_ref());
    // The API server keeps the first entries of the two fields equal.
    let first = spec.cluster_ip.as_deref().or(all.first().map(String::as_str)).unwrap_or_default();
    if first.is_empty() || first == "None" {
        return None;
    }

    let mut fields: Vec<_> = all.iter().zip(0..).map(|(text, n)| (format!("spec.clusterIPs[{n}]"), &**text)).collect();
    if fields.is_empty() {
        fields.push(("spec.clusterIP".to_owned(), first));
    }

    let families = items(spec.ip_families.as_ref());
    let mut found = PerFamily::default();
    for (n, (path, text)) in fields.into_iter().enumerate() {
        if let Some(ip) = problems.ignored(path, cluster_ip(text, families.get(n), &found)) {
            found[IpFamily::of(&ip)] = Some(ip);
        }
    }
    found.iter().any(|(_, ip)| ip.is_some()).then_some(found)
}

/// `family` is the entry of `ipFamilies` with the same index; without one, the family is that of the address.
fn cluster_ip(text: &str, family: Option<&String>, found: &PerFamily<Option<IpAddr>>) -> Result<IpAddr, String> {
    let ip = address::cluster_ip(text)?;
    let own = IpFamily::of(&ip);
    match (family, found[own]) {
        (Some(family), _) if *family != own.to_string() => Err(format!("{ip}: spec.ipFamilies has {family} for it")),
        (_, Some(first)) if first != ip => Err(format!("{ip}: the second of its IP family, after {first}")),
        _ => Ok(ip),
    }
}

fn load_balancer_ips(
    service: &Service,
    cluster_ips: &PerFamily<Option<IpAddr>>,
    problems: &mut FieldProblems,
) -> Vec<IpAddr> {
    let path = "status.loadBalancer.ingress";
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let mut ips = Vec::new();
    for (n, ingress) in items(status.and_then(|status| status.ingress.as_ref())).iter().enumerate() {
        if let Some(text) = vip_of(n, ingress, problems) {
            ips.extend(problems.ignored(format!("{path}[{n}].ip"), external_ip(text, cluster_ips)));
        }
    }
    sorted(ips)
}

/// The IP of an entry in mode VIP. In mode Proxy, nodes send traffic to the load balancer instead of serving it.
fn vip_of<'a>(n: usize, ingress: &'a LoadBalancerIngress, problems: &mut FieldProblems) -> Option<&'a str> {
    let ip = ingress.ip.as_deref().filter(|ip| !ip.is_empty())?;
    match ingress.ip_mode.as_deref() {
        None | Some("VIP") => Some(ip),
        Some("Proxy") => None,
        Some(other) => {
            let path = format!("status.loadBalancer.ingress[{n}].ipMode");
            problems.add(path, format!("{other:?}: expected VIP or Proxy; the entry is ignored"));
            None
        }
    }
}

/// An external or load-balancer IP.
fn external_ip(text: &str, cluster_ips: &PerFamily<Option<IpAddr>>) -> Result<IpAddr, String> {
    let ip = address::usable_address(text)?;
    let family = IpFamily::of(&ip);
    cluster_ips[family].map(|_| ip).ok_or_else(|| format!("{ip}: the Service has no {family} cluster IP"))
}

/// An IP family without ranges is open to all sources. If an invalid range may have been its only one, its VIPs are not
/// served.
fn is_restricted(ip: &IpAddr, ranges: &[IpNet], problems: &mut FieldProblems) -> bool {
    let is_restricted = ranges.iter().any(|range| IpFamily::of(&range.addr()) == IpFamily::of(ip));
    if !is_restricted {
        let message = format!("{ip} would be open to all sources without the ignored ranges; {ip} is ignored");
        problems.add("spec.loadBalancerSourceRanges", message);
    }
    is_restricted
}
