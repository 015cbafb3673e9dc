//! The addresses that a Service answers at, and who may use them.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServiceSpec};
use proto::model::{IpFamily, PerFamily};

use super::super::{
    Problems,
    address::{self, Role},
    items,
};

/// How many entries of one list count. A service port travels whole, with at most 23 bytes an entry: three full lists are far
/// below the size of a message, whereas what a Service may hold otherwise is not, and would end the stream of every node.
const MAX_ENTRIES: usize = 4096;

/// What [`from_resource`] finds. All lists are sorted and free of duplicates.
pub(super) struct Vips {
    pub(super) cluster_ips: PerFamily<Option<IpAddr>>,
    pub(super) external_ips: Vec<IpAddr>,
    pub(super) load_balancer_ips: Vec<IpAddr>,
    pub(super) source_ranges: Vec<IpNet>,
}

/// Source ranges, and whether all of them are there.
struct SourceRanges {
    ranges: Vec<IpNet>,
    complete: bool,
}

/// `None` when the service is headless, or has no usable cluster IP.
///
/// A family without a cluster IP is not the service's: external and load-balancer IPs of that family are dropped.
pub(super) fn from_resource(service: &Service, problems: &mut Problems) -> Option<Vips> {
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

fn cluster_ips(spec: &ServiceSpec, problems: &mut Problems) -> Option<PerFamily<Option<IpAddr>>> {
    let all = items(spec.cluster_ips.as_ref());
    // The two fields begin with the same address wherever both have been filled in.
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

/// `family` is the entry of `ipFamilies` in the same place; without one, the address speaks for itself.
fn add_cluster_ip(
    path: &str,
    text: &str,
    family: Option<&String>,
    found: &mut PerFamily<Option<IpAddr>>,
    problems: &mut Problems,
) {
    let Some(ip) = problems.ignored(path, address::usable_address(text, Role::ClusterIp)) else { return };
    if let Some(family) = family
        && *family != IpFamily::of(&ip).to_string()
    {
        problems.add(path, format!("{ip}: not an {family} address, as spec.ipFamilies says; ignored"));
        return;
    }
    let slot = &mut found[IpFamily::of(&ip)];
    match slot {
        Some(first) if *first != ip => {
            problems.add(path, format!("{ip}: one more of its family, after {first}; ignored"));
        }
        _ => *slot = Some(ip),
    }
}

// === External and load-balancer IPs ===

fn external_ips(spec: &ServiceSpec, cluster_ips: &PerFamily<Option<IpAddr>>, problems: &mut Problems) -> Vec<IpAddr> {
    let texts = items(spec.external_ips.as_ref()).iter().enumerate();
    let ips = texts.filter_map(|(n, text)| external_ip(format!("spec.externalIPs[{n}]"), text, cluster_ips, problems));
    let ips = sorted(ips);
    limited("spec.externalIPs", ips, problems)
}

fn load_balancer_ips(
    service: &Service,
    cluster_ips: &PerFamily<Option<IpAddr>>,
    problems: &mut Problems,
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

/// The IP of an entry that is for nodes to answer at. In mode Proxy traffic goes out to the load balancer instead.
fn vip_of<'a>(n: usize, ingress: &'a LoadBalancerIngress, problems: &mut Problems) -> Option<&'a str> {
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
    problems: &mut Problems,
) -> Option<IpAddr> {
    let ip = problems.ignored(&path, address::usable_address(text, Role::External))?;
    let family = IpFamily::of(&ip);
    if cluster_ips[family].is_none() {
        problems.add(path, format!("{ip}: the service has no {family} cluster IP; ignored"));
        return None;
    }
    Some(ip)
}

// === Source ranges ===

fn source_ranges(spec: &ServiceSpec, problems: &mut Problems) -> SourceRanges {
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

/// A family without ranges is open to everybody. Where an ignored range may have been its only one, it stays closed.
fn is_restricted(ip: &IpAddr, ranges: &[IpNet], problems: &mut Problems) -> bool {
    let restricted = ranges.iter().any(|range| IpFamily::of(&range.addr()) == IpFamily::of(ip));
    if !restricted {
        let message = format!("{ip} would be open to everybody without the ignored ranges; {ip} is ignored");
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

fn limited<T>(path: &str, mut items: Vec<T>, problems: &mut Problems) -> Vec<T> {
    if items.len() > MAX_ENTRIES {
        problems.add(path, format!("{} entries: only the first {MAX_ENTRIES} in order are used", items.len()));
        items.truncate(MAX_ENTRIES);
    }
    items
}
