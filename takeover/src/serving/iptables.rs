//! By its chains in iptables: a rule for each way in, chains behind it that end in DNAT.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use super::{Outcome, Reached, Served, To, Way};
use crate::{
    Family,
    iptables::{
        names,
        saved::{Rule, Table, parse},
    },
};

const MODE: &str = "iptables";
/// Behind what kube-proxy says of a service port in a comment.
const REMARKS: [&str; 6] = [
    " cluster IP",
    " external IP",
    " loadbalancer IP",
    " has no endpoints",
    " has no local endpoints",
    " health check node port",
];

/// The chains of a table.
struct Chains<'a>(BTreeMap<&'a str, Vec<&'a Rule>>);

pub(super) fn read(family: Family, saved: &str) -> BTreeMap<Way, Served> {
    let tables = parse(saved);
    // Fairlead's iptables backend gives its chains the same names.
    if tables.iter().flat_map(Table::chains).any(names::is_fairleads) {
        return BTreeMap::new();
    }
    let table = |name| Chains::of(tables.iter().find(|table| table.name == name));
    let (nat, filter) = (table("nat"), table("filter"));
    let mut ways = BTreeMap::<Way, Served>::new();
    for rule in nat.rules("KUBE-SERVICES").iter().chain(nat.rules("KUBE-NODEPORTS")) {
        let (Some(way), Some(target)) = (way(family, rule), rule.target()) else { continue };
        let Reached { inside, outside } = nat.reached(target);
        if inside.is_empty() && outside.is_empty() {
            continue;
        }
        // Without an endpoint the packet goes on, and the filter table has a word for it.
        let (inside, outside) = (Outcome::of(inside, Outcome::Drop), Outcome::of(outside, Outcome::Drop));
        ways.entry(way).or_insert(Served { mode: MODE, service: service(rule), inside, outside });
    }
    for rule in filter.rules("KUBE-SERVICES").iter().chain(filter.rules("KUBE-EXTERNAL-SERVICES")) {
        let outcome = match rule.target() {
            Some("REJECT") => Outcome::Reject,
            Some("DROP") => Outcome::Drop,
            _ => continue,
        };
        let Some(way) = way(family, rule) else { continue };
        ways.entry(way).or_insert_with(|| Served::everywhere(MODE, service(rule), outcome));
    }
    ways
}

/// The way that a rule is about, unless it is about something else.
fn way(family: Family, rule: &Rule) -> Option<Way> {
    let protocol = match rule.value("-p")? {
        "tcp" => 6,
        "udp" => 17,
        "sctp" => 132,
        _ => return None,
    };
    let port = rule.value("--dport")?.parse().ok()?;
    let to = match rule.value("-d") {
        // Loopback addresses have a rule of their own besides.
        Some(range) if range.starts_with("127.") => return None,
        Some(address) => To::Vip(address.split('/').next()?.parse::<IpAddr>().ok()?, port),
        None => To::NodePort(port),
    };
    Some(Way { family, to, protocol })
}

fn service(rule: &Rule) -> Option<String> {
    let comment = rule.value("--comment")?;
    let name = REMARKS.iter().find_map(|remark| comment.strip_suffix(remark)).unwrap_or(comment);
    Some(name.to_owned())
}

impl<'a> Chains<'a> {
    fn of(table: Option<&'a Table>) -> Self {
        let mut chains = BTreeMap::<_, Vec<_>>::new();
        for rule in table.into_iter().flat_map(|table| &table.rules) {
            chains.entry(&*rule.chain).or_default().push(rule);
        }
        Self(chains)
    }

    fn rules(&self, chain: &str) -> &[&'a Rule] {
        self.0.get(chain).map_or(&[], Vec::as_slice)
    }

    /// Where a way in leads that ends at this chain.
    fn reached(&self, chain: &str) -> Reached {
        let kind = names::kind(chain);
        if kind == Some("KUBE-FW-") {
            // Those who may, go on as all others do.
            let targets = self.rules(chain).iter().filter_map(|rule| rule.target());
            return targets.map(|target| self.reached(target)).next().unwrap_or_default();
        }
        if !matches!(kind, Some("KUBE-EXT-" | "KUBE-XLB-")) {
            let endpoints = self.endpoints(chain, DEPTH);
            return Reached::by_all(endpoints);
        }
        let mut reached = Reached::default();
        for rule in self.rules(chain) {
            let Some(target) = rule.target() else { continue };
            let endpoints = self.endpoints(target, DEPTH);
            if rule.has("-s") || rule.has("--src-type") || rule.has("-i") {
                reached.add_inside(endpoints);
            } else {
                reached.add_everywhere(endpoints);
            }
        }
        reached
    }

    /// All that chains behind this one translate to.
    fn endpoints(&self, chain: &str, depth: usize) -> BTreeSet<SocketAddr> {
        let mut endpoints = BTreeSet::new();
        for rule in self.rules(chain) {
            match rule.target() {
                Some("DNAT") => {
                    endpoints.extend(rule.value("--to-destination").and_then(|to| to.parse::<SocketAddr>().ok()))
                }
                Some(target) if depth > 0 => endpoints.extend(self.endpoints(target, depth - 1)),
                _ => {}
            }
        }
        endpoints
    }
}

/// More chains than a packet meets behind each other, should they lead in a circle.
const DEPTH: usize = 4;
