//! The VIPs of a Service, and the source ranges that may use them.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServiceSpec};
use proto::model::{IpFamily, PerFamily};

use super::super::{
    FieldProblems,
    address::{self, AddressUse},
    items,
};

/// The most entries of one list that are used. A service port is one message, with at most 23 bytes for an entry: three
/// full lists are far below its limit. A larger Service would end the stream of every node.
const MAX_ENTRIES: usize = 4096;

/// The VIPs of a Service. All lists are sorted and without duplicates.
pub(super) struct Vips {
    pub(super) cluster_ips: PerFamily<Option<IpAddr>>,
    pub(super) external_ips: Vec<IpAddr>,
    pub(super) load_balancer_ips: Vec<IpAddr>,
    pub(super) source_ranges: Vec<IpNet>,
}

/// The valid source ranges, and whether these are all.
struct SourceRanges {
    ranges: Vec<IpNet>,
    complete: bool,
}

/// `None` if the Service is headless, or has no usable cluster IP.
///
/// External and load-balancer IPs of an IP family without a cluster IP are ignored.
pub(super) fn from_resource(service: &Service, problems: &mut FieldProblems) -> Option<Vips> {
    let spec = service.spec.as_ref()?;
    let cluster_ips = cluster_ips(spec, problems)?;
    let SourceRanges { ranges, complete } = source_ranges(spec, problems);
    let external_ips = external_ips(spec, &cluster_ips, problems);
    let mut load_balancer_ips = load_balancer_ips(service, &cluster_ips, problems);
    if !complete {
        load_balancer_ips.retain(|ip| is_restricted(ip, &ranges, problems));
    }
    Some(Vips { cluster_ips, external_ips, load_balancer_ips, source_ranges: ranges })
}

// === Cluster IPs ===

fn cluster_ips(spec: &ServiceSpec, problems: &mut FieldProblems) -> Option<PerFamily<Option<IpAddr>>> {
    let all = items(spec.cluster_ips.as_ref());
    // The API server keeps the first entries of the two fields equal.
    let first = spec.cluster_ip.as_deref().or(all.first().map(String::as_str)).unwrap_or_default();
    if first.is_empty() || first == "None" {
        return None;
    }
    let families = items(spec.ip_families.as_ref());
    let mut found = PerFamily::default();
    if all.is_empty() {
        add_cluster_ip("spec.clusterIP", first, families.first(), &mut found, problems);
    }
    for (n, text) in all.iter().enumerate() {
        add_cluster_ip(&format!("spec.clusterIPs[{n}]"), text, families.get(n), &mut found, problems);
    }
    found.iter().any(|(_, ip)| ip.is_some()).then_some(found)
}

/// `family` is the entry of `ipFamilies` with the same index; without one, the family is that of the address.
fn add_cluster_ip(
    path: &str,
    text: &str,
    family: Option<&String>,
    found: &mut PerFamily<Option<IpAddr>>,
    problems: &mut FieldProblems,
) {
    let Some(ip) = problems.ignored(path, address::usable_address(text, AddressUse::ClusterIp)) else { return };
    if let Some(family) = family
        && *family != IpFamily::of(&ip).to_string()
    {
        problems.add(path, format!("{ip}: spec.ipFamilies has {family} for it; ignored"));
        return;
    }
    let slot = &mut found[IpFamily::of(&ip)];
    match slot {
        Some(first) if *first != ip => {
            problems.add(path, format!("{ip}: the second of its IP family, after {first}; ignored"));
        }
        _ => *slot = Some(ip),
    }
}

// === External and load-balancer IPs ===

fn external_ips(
    spec: &ServiceSpec,
    cluster_ips: &PerFamily<Option<IpAddr>>,
    problems: &mut FieldProblems,
) -> Vec<IpAddr> {
    let texts = items(spec.external_ips.as_ref()).iter().enumerate();
    let ips = texts.filter_map(|(n, text)| external_ip(format!("spec.externalIPs[{n}]"), text, cluster_ips, problems));
    let ips = sorted(ips);
    limited("spec.externalIPs", ips, problems)
}

fn load_balancer_ips(
    service: &Service,
    cluster_ips: &PerFamily<Option<IpAddr>>,
    problems: &mut FieldProblems,
) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = items(status.and_then(|status| status.ingress.as_ref())).iter().enumerate();
    let ips = ingress.filter_map(|(n, ingress)| {
        let text = vip_of(n, ingress, problems)?;
        external_ip(format!("status.loadBalancer.ingress[{n}].ip"), text, cluster_ips, problems)
    });
    let ips = sorted(ips);
    limited("status.loadBalancer.ingress", ips, problems)
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

fn external_ip(
    path: String,
    text: &str,
    cluster_ips: &PerFamily<Option<IpAddr>>,
    problems: &mut FieldProblems,
) -> Option<IpAddr> {
    let ip = problems.ignored(&path, address::usable_address(text, AddressUse::External))?;
    let family = IpFamily::of(&ip);
    if cluster_ips[family].is_none() {
        problems.add(path, format!("{ip}: the Service has no {family} cluster IP; ignored"));
        return None;
    }
    Some(ip)
}

// === Source ranges ===

fn source_ranges(spec: &ServiceSpec, problems: &mut FieldProblems) -> SourceRanges {
    let texts = items(spec.load_balancer_source_ranges.as_ref());
    let read = texts
        .iter()
        .enumerate()
        .filter_map(|(n, text)| problems.ignored(format!("spec.loadBalancerSourceRanges[{n}]"), address::cidr(text)));
    let read: Vec<_> = read.collect();
    let readable = read.len() == texts.len();
    let all = sorted(read);
    let count = all.len();
    let ranges = limited("spec.loadBalancerSourceRanges", all, problems);
    SourceRanges { complete: readable && ranges.len() == count, ranges }
}

/// An IP family without ranges is open to all sources. If an invalid range may have been its only one, its VIPs are not
/// served.
fn is_restricted(ip: &IpAddr, ranges: &[IpNet], problems: &mut FieldProblems) -> bool {
    let restricted = ranges.iter().any(|range| IpFamily::of(&range.addr()) == IpFamily::of(ip));
    if !restricted {
        let message = format!("{ip} would be open to all sources without the ignored ranges; {ip} is ignored");
        problems.add("spec.loadBalancerSourceRanges", message);
    }
    restricted
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<_> = items.into_iter().collect();
    items.sort_unstable();
    items.dedup();
    items
}

fn limited<T>(path: &str, mut items: Vec<T>, problems: &mut FieldProblems) -> Vec<T> {
    if items.len() > MAX_ENTRIES {
        problems.add(path, format!("{} entries: only the first {MAX_ENTRIES} in sorted order are used", items.len()));
        items.truncate(MAX_ENTRIES);
    }
    items
}
