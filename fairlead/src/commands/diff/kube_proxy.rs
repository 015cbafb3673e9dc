//! Compares the effect of kube-proxy's rules on new connections to each VIP with that of Fairlead. Differences that
//! docs/semantics.md documents are listed separately.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use backend::{
    NodeState, ServicePortState,
    dataplane::{Vip, VipKind, VipOwnership, vips},
};
use proto::model::{IpFamily, PoolClass, TrafficPolicy};
use serde::Serialize;

use crate::{
    commands::services::verdict,
    modes::Mode,
    table::TextTable,
    takeover::{ConnectionVerdict, KubeProxyRules, VipKey, VipRules, kube_proxy_rules},
};

/// The result of the comparison.
#[derive(Debug, Serialize)]
pub(crate) struct KubeProxyReport {
    /// The modes of kube-proxy whose rules are on this node.
    modes: BTreeSet<Mode>,
    /// The number of VIPs that are served equally.
    equal: usize,
    /// VIPs that are served differently.
    differences: Vec<VipDifference>,
    /// VIPs whose difference docs/semantics.md documents.
    documented: Vec<VipDifference>,
    notes: [&'static str; 1],
}

/// A VIP that is served differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct VipDifference {
    vip: String,
    /// The service port, or kube-proxy's name for it.
    service_port: Option<String>,
    from: ClientLocation,
    fairlead: Option<ConnectionVerdict>,
    kube_proxy: Option<ConnectionVerdict>,
    /// The reason of a documented difference.
    why: Option<&'static str>,
}

/// Where clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ClientLocation {
    Everywhere,
    /// On this node: its pods, and itself.
    Inside,
    Outside,
}

/// What Fairlead does at a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FairleadVip {
    service_port: String,
    policy: TrafficPolicy,
    inside: ConnectionVerdict,
    outside: ConnectionVerdict,
}

/// The greatest number of endpoints that a table cell lists.
const LISTED_ENDPOINTS: usize = 4;
const IPVS_LOCAL: &str = "under policy Local, kube-proxy's ipvs mode treats pods as external clients, and without a \
                          local endpoint uses endpoints on other nodes";
const ADDRESS_IN_USE: &str =
    "the address is a cluster IP or belongs to the node, so Fairlead does not let a Service claim it";
pub(crate) const NOT_COMPARED: &str = "not compared: the addresses at which node ports answer, whether packets reach the rules (hooks), masquerading, \
     source ranges, session affinity, and ports and addresses without a Service";

/// Reads kube-proxy's rules in this network namespace, and compares them.
pub(crate) async fn compare(state: &NodeState) -> Result<KubeProxyReport> {
    Ok(KubeProxyReport::new(state, kube_proxy_rules().await?))
}

impl KubeProxyReport {
    fn new(state: &NodeState, rules: KubeProxyRules) -> Self {
        let mut ours = fairlead_vips(state);
        let addresses_in_use = addresses_in_use(state);
        let mut report = Self {
            modes: rules.values().map(|served| served.mode).collect(),
            equal: 0,
            differences: Vec::new(),
            documented: Vec::new(),
            notes: [NOT_COMPARED],
        };

        for (vip, theirs) in rules {
            let ours = ours.remove(&vip);
            let why = match (&ours, vip.vip) {
                (None, Vip::AddressPort { address, .. }) if addresses_in_use.contains(&address) => Some(ADDRESS_IN_USE),
                (Some(ours), _) if theirs.mode == Mode::Ipvs && ours.policy == TrafficPolicy::Local => Some(IPVS_LOCAL),
                _ => None,
            };
            report.add(&vip, ours.as_ref(), Some(&theirs), why);
        }
        // Without any rules, kube-proxy does not run here.
        if !report.modes.is_empty() {
            for (vip, only_ours) in ours {
                report.add(&vip, Some(&only_ours), None, None);
            }
        }
        report
    }

    fn add(&mut self, vip: &VipKey, ours: Option<&FairleadVip>, theirs: Option<&VipRules>, why: Option<&'static str>) {
        let inside = (ours.map(|ours| &ours.inside), theirs.map(|theirs| &theirs.internal));
        let outside = (ours.map(|ours| &ours.outside), theirs.map(|theirs| &theirs.external));
        let cases = if inside == outside {
            vec![(ClientLocation::Everywhere, inside)]
        } else {
            vec![(ClientLocation::Inside, inside), (ClientLocation::Outside, outside)]
        };

        let service_port = match ours {
            Some(ours) => Some(&ours.service_port),
            None => theirs.and_then(|theirs| theirs.service.as_ref()),
        };
        let mut differences = Vec::new();
        for (from, (fairlead, kube_proxy)) in cases {
            if fairlead != kube_proxy {
                differences.push(VipDifference {
                    vip: vip.to_string(),
                    service_port: service_port.cloned(),
                    from,
                    fairlead: fairlead.cloned(),
                    kube_proxy: kube_proxy.cloned(),
                    why,
                });
            }
        }

        match (differences.is_empty(), why) {
            (true, _) => self.equal += 1,
            (false, Some(_)) => self.documented.extend(differences),
            (false, None) => self.differences.extend(differences),
        }
    }

    /// Whether all differences are documented.
    pub(crate) fn is_as_documented(&self) -> bool {
        self.differences.is_empty()
    }

    /// The number of VIPs that are served equally, of differences, and of documented differences.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.equal, self.differences.len(), self.documented.len())
    }

    /// A line per difference.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for difference in &self.differences {
            let [service_port, vip, from, kube_proxy, fairlead] = difference.cells();
            lines.push(format!("{vip} {service_port} from {from}: {kube_proxy}; Fairlead: {fairlead}"));
        }
        lines
    }

    /// Tables of differences, notes and totals.
    pub(crate) fn text(&self) -> String {
        if self.modes.is_empty() {
            return "kube-proxy has no rules on this node that serve a VIP\n".to_owned();
        }
        let Self { equal, differences, documented, modes, notes } = self;
        let mut text = String::new();
        // Writing to a String cannot fail.
        if !differences.is_empty() {
            let _ = writeln!(text, "{}", table("SERVICE PORT", differences));
        }
        if !documented.is_empty() {
            let _ = write!(text, "{}", table("DOCUMENTED DIFFERENCE", documented));
            let reasons: BTreeSet<_> = documented.iter().filter_map(|difference| difference.why).collect();
            reasons.into_iter().for_each(|reason| text += &format!("note: {reason}\n"));
            text.push('\n');
        }
        notes.iter().for_each(|note| text += &format!("note: {note}\n"));

        let modes: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
        let _ = writeln!(
            text,
            "kube-proxy ({}): {equal} VIPs without differences, {} differences, {} documented differences",
            modes.join(", "),
            differences.len(),
            documented.len(),
        );
        text
    }
}

fn table(first: &str, differences: &[VipDifference]) -> TextTable {
    TextTable::of(&[first, "VIP", "FROM", "KUBE-PROXY", "FAIRLEAD"], differences.iter().map(VipDifference::cells))
}

impl VipDifference {
    fn cells(&self) -> [String; 5] {
        let from = match self.from {
            ClientLocation::Everywhere => "everywhere",
            ClientLocation::Inside => "this node",
            ClientLocation::Outside => "outside",
        };

        let (kube_proxy, fairlead) = match (&self.kube_proxy, &self.fairlead) {
            (Some(ConnectionVerdict::Endpoints(theirs)), Some(ConnectionVerdict::Endpoints(ours))) => {
                (describe_difference(theirs, ours), describe_difference(ours, theirs))
            }
            (theirs, ours) => (describe(theirs.as_ref()), describe(ours.as_ref())),
        };

        let service_port = self.service_port.clone().unwrap_or_default();
        [service_port, self.vip.clone(), from.to_owned(), kube_proxy, fairlead]
    }
}

/// The endpoints in this pool only, and the number in both.
fn describe_difference(pool: &BTreeSet<SocketAddr>, other: &BTreeSet<SocketAddr>) -> String {
    let own: Vec<_> = pool.difference(other).map(ToString::to_string).collect();
    let shared = pool.len() - own.len();
    match (shared, own.is_empty()) {
        (0, _) => own.join(" "),
        (_, true) => format!("{shared} in both"),
        (_, false) => format!("{shared} in both, and {}", own.join(" ")),
    }
}

fn describe(verdict: Option<&ConnectionVerdict>) -> String {
    match verdict {
        None => "not served".to_owned(),
        Some(ConnectionVerdict::Endpoints(endpoints)) if endpoints.len() > LISTED_ENDPOINTS => {
            format!("{} endpoints", endpoints.len())
        }
        Some(verdict) => verdict.to_string(),
    }
}

/// What Fairlead does at each VIP, by the table of docs/protocol.md.
fn fairlead_vips(state: &NodeState) -> BTreeMap<VipKey, FairleadVip> {
    let ownership = VipOwnership::of(state);
    let mut fairlead_vips = BTreeMap::new();
    for (key, service) in state.service_ports().iter() {
        for family in IpFamily::ALL {
            for (vip, kind) in vips(&service.port, family) {
                if ownership.owns(key, family, &vip) {
                    fairlead_vips.insert(VipKey { family, vip }, FairleadVip::new(service, family, kind));
                }
            }
        }
    }
    fairlead_vips
}

impl FairleadVip {
    fn new(service: &ServicePortState, family: IpFamily, kind: VipKind) -> Self {
        let port = &service.port;
        let policy = if kind == VipKind::ClusterIp { port.internal_policy } else { port.external_policy };
        let class = match policy {
            TrafficPolicy::Cluster => PoolClass::Cluster,
            TrafficPolicy::Local => PoolClass::Local,
        };
        // External policy Local does not apply to clients on the node.
        let class_inside = if kind == VipKind::ClusterIp { class } else { PoolClass::Cluster };
        Self {
            service_port: port.key.to_string(),
            policy,
            inside: verdict(service, class_inside, family),
            outside: verdict(service, class, family),
        }
    }
}

/// Cluster IPs and addresses of the node, which a Service must not claim.
fn addresses_in_use(state: &NodeState) -> BTreeSet<IpAddr> {
    let mut addresses: BTreeSet<_> = state.node().addresses.iter().copied().collect();
    for service in state.service_ports().values() {
        addresses.extend(service.port.cluster_ips.iter().filter_map(|(_, ip)| *ip));
    }
    addresses
}
