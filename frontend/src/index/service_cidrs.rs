//! The service CIDRs of the index, without the cluster IPs of Services that another proxy serves.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use proto::model::{ClusterInfo, PerFamily};

use super::Index;
use crate::object::ObjectName;

/// The maximum number of CIDRs in which service CIDRs are divided; nodes have a rule for each. One address divides a
/// range of 65,536 in 16. Beyond it the smallest are left out, so that packets to more unallocated addresses pass.
const MAX_DIVIDED: usize = 256;

impl Index {
    /// The current facts about the cluster. Nodes drop packets to unallocated addresses of its service CIDRs, which
    /// those of another proxy's Services are not.
    pub(super) fn cluster(&self) -> ClusterInfo {
        let foreign = self.foreign_services.values().flat_map(|cluster_ips| cluster_ips.iter());
        let foreign = foreign.filter_map(|(_, ip)| *ip).collect();
        ClusterInfo { service_cidrs: without(self.all_service_cidrs(), &foreign) }
    }

    fn all_service_cidrs(&self) -> BTreeSet<IpNet> {
        let cidrs = self.configured.service_cidrs.iter().chain(self.service_cidrs.values().flatten());
        cidrs.copied().collect()
    }

    pub(super) fn put_foreign_service(&mut self, name: &ObjectName, new: Option<PerFamily<Option<IpAddr>>>) {
        if self.foreign_services.get(name) == new.as_ref() {
            return;
        }
        match new {
            Some(cluster_ips) => self.foreign_services.insert(name.clone(), cluster_ips),
            None => self.foreign_services.remove(name),
        };
        self.pending.cluster = true;
    }

    pub(super) fn put_service_cidrs(&mut self, name: Arc<str>, cidrs: Vec<IpNet>) {
        let old = if cidrs.is_empty() {
            self.service_cidrs.remove(&name)
        } else {
            self.service_cidrs.insert(name.clone(), cidrs)
        };
        if old.as_ref() != self.service_cidrs.get(&name) {
            self.pending.cluster = true;
            let changed = self.claims.protected.set_service_cidrs(self.all_service_cidrs());
            self.mark_claimants_dirty(&changed);
        }
    }
}

/// The service CIDRs without these addresses, sorted.
fn without(cidrs: BTreeSet<IpNet>, foreign: &BTreeSet<IpAddr>) -> Vec<IpNet> {
    let mut whole = Vec::new();
    let mut divided = Vec::new();
    for cidr in cidrs {
        let inside: Vec<_> = foreign.range(cidr.network()..=cidr.broadcast()).copied().collect();
        if inside.is_empty() {
            whole.push(cidr);
        } else {
            divide(cidr, &inside, &mut divided);
        }
    }

    // The largest first.
    divided.sort_unstable_by_key(|cidr| (cidr.max_prefix_len() - cidr.prefix_len(), *cidr));
    divided.reverse();
    divided.truncate(MAX_DIVIDED);

    whole.extend(divided);
    whole.sort_unstable();
    whole.dedup();
    whole
}

/// Adds the parts of a CIDR without these addresses, which it contains, in their order.
fn divide(cidr: IpNet, foreign: &[IpAddr], parts: &mut Vec<IpNet>) {
    if foreign.is_empty() {
        return parts.push(cidr);
    }
    // A single address has no subnets.
    for half in cidr.subnets(cidr.prefix_len() + 1).into_iter().flatten() {
        let start = foreign.partition_point(|ip| *ip < half.network());
        let end = foreign.partition_point(|ip| *ip <= half.broadcast());
        divide(half, &foreign[start..end], parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(cidrs: &[&str], foreign: &[&str]) -> Vec<String> {
        let cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        let foreign = foreign.iter().map(|ip| ip.parse().unwrap()).collect();
        without(cidrs, &foreign).iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn address_is_cut_out_of_its_cidr() {
        let cidrs = ["10.96.0.0/30", "10.97.0.0/16", "fd00::/126"];
        assert_eq!(divided(&cidrs, &[]), cidrs);
        assert_eq!(divided(&cidrs, &["10.98.0.1", "fd01::1"]), cidrs);
        let expected = ["10.96.0.0/32", "10.96.0.2/31", "10.97.0.0/16", "fd00::/127", "fd00::2/128"];
        assert_eq!(divided(&cidrs, &["10.96.0.1", "fd00::3"]), expected);
        assert_eq!(divided(&["10.96.0.0/31"], &["10.96.0.0", "10.96.0.1"]), [""; 0]);
        assert_eq!(divided(&["10.96.0.0/16"], &["10.96.7.1"]).len(), 16);
        assert_eq!(divided(&["fd00::/108"], &["fd00::7"]).len(), 20);
    }

    #[test]
    fn overlapping_cidrs_are_both_divided() {
        let expected = ["10.96.0.0/31", "10.96.0.2/32", "10.96.0.4/30"];
        assert_eq!(divided(&["10.96.0.0/29", "10.96.0.0/30"], &["10.96.0.3"]), expected);
    }

    #[test]
    fn smallest_parts_are_left_out_beyond_the_maximum() {
        let foreign: Vec<_> = (0..200).map(|number| format!("10.96.{number}.1")).collect();
        let foreign: Vec<_> = foreign.iter().map(String::as_str).collect();
        let parts = divided(&["10.96.0.0/16", "10.97.0.0/16"], &foreign);
        assert_eq!(parts.len(), MAX_DIVIDED + 1);
        assert!(parts.contains(&"10.97.0.0/16".to_owned()) && parts.contains(&"10.96.0.128/25".to_owned()));
        assert!(!parts.contains(&"10.96.0.0/32".to_owned()));
    }
}
