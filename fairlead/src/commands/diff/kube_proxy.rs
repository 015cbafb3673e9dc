//! What kube-proxy's rules do with new connections, against what Fairlead would do, by way in. What docs/semantics.md says is meant is told
//! as such.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::SocketAddr,
};

use anyhow::Result;
use backend::{
    NodeState, ServicePortState,
    dataplane::{Vip, VipKind, VipOwnership, vips},
};
use proto::model::{IpFamily, PoolClass, TrafficPolicy};
use serde::Serialize;
use takeover::{ConnectionVerdict, KubeProxyRules, VipAddress, VipKey, VipRules};

use crate::table::Table;

/// The comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The modes in which kube-proxy's rules are here.
    modes: BTreeSet<&'static str>,
    /// Ways in that are served alike.
    alike: usize,
    /// Those that are not, and should be.
    differences: Vec<Line>,
    /// Those that are not, and are not meant to be.
    meant: Vec<Line>,
    notes: Vec<&'static str>,
}

/// A way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    way: String,
    /// The service port, or what kube-proxy calls it.
    service: Option<String>,
    /// From whom.
    from: From,
    fairlead: Option<ConnectionVerdict>,
    kube_proxy: Option<ConnectionVerdict>,
    /// Why it is meant, if it is.
    why: Option<&'static str>,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum From {
    Everywhere,
    /// Pods of this node, and the node itself.
    Inside,
    Outside,
}

/// What Fairlead does at a way in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ours {
    service: String,
    policy: TrafficPolicy,
    inside: ConnectionVerdict,
    outside: ConnectionVerdict,
}

/// So many endpoints are named in a table.
const SHOWN: usize = 4;
const IPVS: &str = "ipvs";
const IPVS_LOCAL: &str = "kube-proxy's ipvs mode makes no difference between pods and others under policy Local, and without an \
                          endpoint here uses those elsewhere";
const SOMEBODYS: &str = "the address is a cluster IP or the node's own, and Fairlead lets no Service take that over";
const ALL_ADDRESSES: &str = "node ports: kube-proxy's iptables and ipvs modes answer at all addresses of the node, Fairlead at the primary \
                             one of each family unless --nodeport-addresses says otherwise";
const NOT_COMPARED: &str =
    "not compared: who is masqueraded, source ranges, session affinity, and ports and addresses that no Service has";

/// Reads kube-proxy's rules in this network namespace, and compares.
pub(crate) async fn compare(state: &NodeState) -> Result<Report> {
    Ok(Report::new(state, KubeProxyRules::read().await?))
}

impl Report {
    fn new(state: &NodeState, rules: KubeProxyRules) -> Self {
        let mut ours = ours(state);
        let modes: BTreeSet<_> = rules.vips.values().map(|served| served.mode).collect();
        let mut report =
            Self { modes, alike: 0, differences: Vec::new(), meant: Vec::new(), notes: vec![NOT_COMPARED] };
        let has_node_ports = rules.vips.keys().any(|way| matches!(way.address, VipAddress::NodePort(_)));
        if has_node_ports && report.modes.iter().any(|mode| *mode != "nftables") {
            report.notes.push(ALL_ADDRESSES);
        }
        let somebodys = somebodys(state);
        for (way, theirs) in rules.vips {
            let ours = ours.remove(&way);
            let why = match (&ours, way.address) {
                (None, VipAddress::Ip(address, _)) if somebodys.contains(&address) => Some(SOMEBODYS),
                (Some(ours), _) if theirs.mode == IPVS && ours.policy == TrafficPolicy::Local => Some(IPVS_LOCAL),
                _ => None,
            };
            report.add(way, ours, Some(theirs), why);
        }
        // Where it has served nothing it does nothing otherwise.
        let served = !report.modes.is_empty();
        for (way, ours) in ours.into_iter().filter(|_| served) {
            report.add(way, Some(ours), None, None);
        }
        report
    }

    fn add(&mut self, way: VipKey, ours: Option<Ours>, theirs: Option<VipRules>, why: Option<&'static str>) {
        let outcomes = |pick: fn(&Ours) -> &ConnectionVerdict, pick_theirs: fn(&VipRules) -> &ConnectionVerdict| {
            (ours.as_ref().map(pick).cloned(), theirs.as_ref().map(pick_theirs).cloned())
        };
        let inside = outcomes(|ours| &ours.inside, |theirs| &theirs.internal);
        let outside = outcomes(|ours| &ours.outside, |theirs| &theirs.external);
        let service = ours.as_ref().map(|ours| ours.service.clone());
        let service = service.or_else(|| theirs.as_ref().and_then(|theirs| theirs.service.clone()));
        let cases = if inside == outside {
            vec![(From::Everywhere, inside)]
        } else {
            vec![(From::Inside, inside), (From::Outside, outside)]
        };
        let wrong = cases.into_iter().filter(|(_, (fairlead, kube_proxy))| fairlead != kube_proxy);
        let lines: Vec<_> = wrong
            .map(|(from, (fairlead, kube_proxy))| Line {
                way: way.to_string(),
                service: service.clone(),
                from,
                fairlead,
                kube_proxy,
                why,
            })
            .collect();
        match (lines.is_empty(), why) {
            (true, _) => self.alike += 1,
            (false, Some(_)) => self.meant.extend(lines),
            (false, None) => self.differences.extend(lines),
        }
    }

    /// Whether there is no difference but those that are meant.
    pub(crate) fn is_as_meant(&self) -> bool {
        self.differences.is_empty()
    }

    /// For logs: how many ways in are served alike, otherwise, and otherwise as is meant.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.alike, self.differences.len(), self.meant.len())
    }

    /// The differences in words, one a line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |line: &Line| {
            let [service, way, from, kube_proxy, fairlead] = line.cells();
            format!("{way} {service} from {from}: {kube_proxy}; Fairlead: {fairlead}")
        };
        self.differences.iter().map(line).collect()
    }

    /// A table of the differences, and what else there is to say.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if self.modes.is_empty() {
            return "There are no rules of kube-proxy's here that serve anything.\n".to_owned();
        }
        if !self.differences.is_empty() {
            let mut table = Table::new(&["SERVICE PORT", "WAY IN", "FROM", "KUBE-PROXY", "FAIRLEAD"]);
            self.differences.iter().for_each(|line| table.row(line.cells()));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{table}");
        }
        if !self.meant.is_empty() {
            let mut table = Table::new(&["MEANT TO DIFFER", "WAY IN", "FROM", "KUBE-PROXY", "FAIRLEAD"]);
            self.meant.iter().for_each(|line| table.row(line.cells()));
            let whys: BTreeSet<_> = self.meant.iter().filter_map(|line| line.why).collect();
            let _ = write!(text, "{table}");
            for why in whys {
                let _ = writeln!(text, "note: {why}");
            }
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        let Self { alike, differences, meant, modes, .. } = self;
        let modes: Vec<_> = modes.iter().copied().collect();
        let _ = writeln!(
            text,
            "Of kube-proxy's rules ({}): {alike} ways in are served alike, {} otherwise, {} otherwise as is meant.",
            modes.join(", "),
            differences.len(),
            meant.len(),
        );
        text
    }
}

impl Line {
    fn cells(&self) -> [String; 5] {
        let from = match self.from {
            From::Everywhere => "everywhere",
            From::Inside => "this node",
            From::Outside => "outside",
        };
        let (kube_proxy, fairlead) = match (&self.kube_proxy, &self.fairlead) {
            (Some(ConnectionVerdict::Endpoints(theirs)), Some(ConnectionVerdict::Endpoints(ours))) => {
                (besides(theirs, ours), besides(ours, theirs))
            }
            (theirs, ours) => (words(theirs.as_ref()), words(ours.as_ref())),
        };
        let service = self.service.clone().unwrap_or_default();
        [service, self.way.clone(), from.to_owned(), kube_proxy, fairlead]
    }
}

/// What is in one pool only, and how many are in both.
fn besides(pool: &BTreeSet<SocketAddr>, other: &BTreeSet<SocketAddr>) -> String {
    let own: Vec<_> = pool.difference(other).map(ToString::to_string).collect();
    let shared = pool.len() - own.len();
    match (shared, own.is_empty()) {
        (0, _) => own.join(" "),
        (_, true) => format!("{shared} in both"),
        (_, false) => format!("{shared} in both, and {}", own.join(" ")),
    }
}

fn words(outcome: Option<&ConnectionVerdict>) -> String {
    match outcome {
        None => "not served".to_owned(),
        Some(ConnectionVerdict::Endpoints(endpoints)) if endpoints.len() > SHOWN => {
            format!("{} endpoints", endpoints.len())
        }
        Some(outcome) => outcome.to_string(),
    }
}

/// What Fairlead does, by the table of docs/protocol.md.
fn ours(state: &NodeState) -> BTreeMap<VipKey, Ours> {
    let claims = VipOwnership::of(state);
    let mut ways = BTreeMap::new();
    for (key, service) in state.service_ports() {
        for family in IpFamily::ALL {
            let owned = vips(&service.port, family).into_iter();
            for (front, class) in owned.filter(|(front, _)| claims.owns(key, family, front)) {
                let to = match front {
                    Vip::AddressPort { address, port, .. } => VipAddress::Ip(address, port),
                    Vip::NodePort { port, .. } => VipAddress::NodePort(port),
                    Vip::Address(_) => continue,
                };
                let port = &service.port;
                let policy = if class == VipKind::ClusterIp { port.internal_policy } else { port.external_policy };
                let inside = match (class, policy) {
                    (VipKind::ClusterIp, TrafficPolicy::Local) => PoolClass::Local,
                    _ => PoolClass::Cluster,
                };
                let outside = match policy {
                    TrafficPolicy::Cluster => PoolClass::Cluster,
                    TrafficPolicy::Local => PoolClass::Local,
                };
                let [inside, outside] = [inside, outside].map(|class| outcome(service, class, family));
                let way = VipKey { family, address: to, protocol: key.protocol.number() };
                ways.insert(way, Ours { service: key.to_string(), policy, inside, outside });
            }
        }
    }
    ways
}

fn outcome(service: &ServicePortState, class: PoolClass, family: IpFamily) -> ConnectionVerdict {
    let pool = service.pool(class, family);
    if !service.port.any_endpoints[family] {
        return ConnectionVerdict::Reject;
    }
    let endpoints: BTreeSet<SocketAddr> =
        pool.iter().map(|endpoint| (endpoint.address, endpoint.port.get()).into()).collect();
    if endpoints.is_empty() { ConnectionVerdict::Drop } else { ConnectionVerdict::Endpoints(endpoints) }
}

/// Addresses that no Service may take over.
fn somebodys(state: &NodeState) -> BTreeSet<std::net::IpAddr> {
    let cluster_ips =
        state.service_ports().values().flat_map(|service| IpFamily::ALL.map(|family| service.port.cluster_ips[family]));
    cluster_ips.flatten().chain(state.node().addresses.iter().copied()).collect()
}
