//! Fields whose meaning depends on others, or whose values are written differently: mode, pod detection, node ports,
//! addresses and logging.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    translate::{TargetRole, Translation},
    values::{cidr, nanoseconds},
};
use crate::config::{BackendName, FieldProblem};

/// kube-proxy's modes, the default first.
const MODES: [(&str, BackendName); 3] =
    [("iptables", BackendName::Iptables), ("ipvs", BackendName::Ipvs), ("nftables", BackendName::Nftables)];

/// The default of `iptables.syncPeriod`, `ipvs.syncPeriod` and `nftables.syncPeriod`, in nanoseconds.
const SYNC_PERIOD: f64 = 30e9;
/// kube-proxy's verbosity that is closest to our level debug.
const DEBUG_VERBOSITY: i64 = 4;

/// The fields that are set, by path, and their translation.
pub(super) struct CrossFields<'a> {
    pub(super) backend: BackendName,
    pub(super) role: TargetRole,
    pub(super) fields: BTreeMap<&'static str, &'a Value>,
    pub(super) translation: &'a mut Translation,
}

/// The backend that the command line names, else that of the mode.
pub(super) fn backend(
    named: Option<BackendName>,
    mode: Option<&Value>,
    translation: &mut Translation,
) -> Result<BackendName, String> {
    let text = match mode {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(other) => return Err(format!("{other}: expected text")),
    };
    let found = if text.is_empty() { MODES.first() } else { MODES.iter().find(|(mode, _)| *mode == text) };
    let Some((mode, of_mode)) = found else {
        let modes = MODES.map(|(mode, _)| mode).join(", ");
        return Err(format!("{text:?}: expected one of {modes}, or nothing for {}", MODES[0].0));
    };
    if let Some(named) = named.filter(|named| named != of_mode)
        && !text.is_empty()
    {
        let named = mode_of(named);
        translation.warn("mode", format!("{mode} has no effect: the command line sets {named}"));
    }
    Ok(named.unwrap_or(*of_mode))
}

/// kube-proxy's mode of a backend.
pub(crate) fn mode_of(backend: BackendName) -> &'static str {
    MODES.iter().find(|(_, of_mode)| *of_mode == backend).map_or("", |(mode, _)| mode)
}

impl<'a> CrossFields<'a> {
    /// Translates all of them. Returns the errors.
    pub(super) fn translate(mut self) -> Vec<FieldProblem> {
        self.process();
        let results = [
            self.bind_address(),
            self.http_address("healthzBindAddress", "healthz"),
            self.http_address("metricsBindAddress", "metrics"),
            self.local_pods(),
            self.node_ports(),
        ];
        self.sync_periods().into_iter().chain(results.into_iter().filter_map(Result::err)).collect()
    }

    fn text(&self, path: &str) -> Option<&'a str> {
        self.fields.get(path)?.as_str()
    }

    // === The process ===

    fn process(&mut self) {
        if let Some(file) = self.text("clientConnection.kubeconfig") {
            let field = match self.role {
                TargetRole::Local => "kubeconfig",
                TargetRole::Backend => "discoveryKubeconfig",
            };
            self.translation.set("clientConnection.kubeconfig", field, file);
        }
        if let Some(format) = self.text("logging.format") {
            self.translation.set("logging.format", "logFormat", format);
        }
        if let Some(verbosity) = self.fields.get("logging.verbosity").and_then(|verbosity| verbosity.as_i64()) {
            let level = if verbosity < DEBUG_VERBOSITY { "info" } else { "debug" };
            self.translation.set("logging.verbosity", "log", level);
        }
        for (gate, state) in self.fields.get("featureGates").and_then(|gates| gates.as_object()).into_iter().flatten() {
            let path = format!("featureGates.{gate}");
            let why = match (gate.as_str(), state.as_bool(), self.role) {
                ("AllowServiceExternalIPs", Some(true), _) => continue,
                ("AllowServiceExternalIPs", _, TargetRole::Local) => {
                    self.translation.set(&path, "externalIps", "none");
                    continue;
                }
                ("AllowServiceExternalIPs", _, TargetRole::Backend) => {
                    "false has no effect in a backend: set externalIps of the frontend to none"
                }
                _ => "has no effect: Fairlead has no feature gates",
            };
            self.translation.warn(path, why);
        }
    }

    /// A minimum must not exceed its period.
    fn sync_periods(&self) -> Vec<FieldProblem> {
        let time = |path: &str| self.text(path).and_then(nanoseconds);
        let error = |(mode, _)| {
            let (period, minimum) = (format!("{mode}.syncPeriod"), format!("{mode}.minSyncPeriod"));
            let is_longer = time(&minimum)? > time(&period).unwrap_or(SYNC_PERIOD);
            is_longer.then(|| FieldProblem::new(minimum, format!("is longer than {period}")))
        };
        MODES.into_iter().filter_map(error).collect()
    }

    // === Addresses ===

    fn bind_address(&mut self) -> Result<(), FieldProblem> {
        let Some(text) = self.text("bindAddress") else { return Ok(()) };
        let invalid = || FieldProblem::new("bindAddress", format!("{text:?}: expected an IP address"));
        let address: IpAddr = text.parse().map_err(|_| invalid())?;
        if !address.is_unspecified() {
            let cidr = IpNet::from(address);
            let why = format!(
                "{address} has no effect on the node's addresses, which Fairlead reads from the Node object. To serve \
                 node ports only at this address, set nodePortAddresses to [{cidr}]"
            );
            self.translation.warn("bindAddress", why);
        }
        // Health is served in both IP families by default, metrics in one.
        if address.is_ipv6() && self.text("metricsBindAddress").is_none() {
            self.translation.set("bindAddress", "metrics", Ipv6Addr::LOCALHOST.to_string());
        }
        Ok(())
    }

    /// The address of an HTTP server, with or without a port.
    fn http_address(&mut self, path: &str, field: &str) -> Result<(), FieldProblem> {
        let Some(text) = self.text(path) else { return Ok(()) };
        let is_socket = text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0);
        if !is_socket && text.parse::<IpAddr>().is_err() {
            let why = format!("{text:?}: expected an IP address with a port, such as 0.0.0.0:10256");
            return Err(FieldProblem::new(path, why));
        }
        self.translation.set(path, field, text);
        Ok(())
    }

    // === Pods ===

    fn local_pods(&mut self) -> Result<(), FieldProblem> {
        const MODE: &str = "detectLocalMode";
        let mode = self.text(MODE);
        let sources = [
            ("ClusterCIDR", "clusterCIDR", "clusterCidr"),
            ("BridgeInterface", "detectLocal.bridgeInterface", "podBridgeInterface"),
            ("InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "podInterfaceNamePrefix"),
        ];
        let chosen = mode.unwrap_or("ClusterCIDR");
        if chosen != "NodeCIDR" && sources.iter().all(|(mode, ..)| *mode != chosen) {
            let why = format!("{chosen:?}: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix");
            return Err(FieldProblem::new(MODE, why));
        }
        let cluster_cidrs = self.cluster_cidrs()?;
        let mut is_effective = chosen == "NodeCIDR";
        for (of, path, field) in sources {
            match self.text(path) {
                Some(text) if of == chosen => {
                    is_effective = true;
                    let value = if of == "ClusterCIDR" { cluster_cidrs.clone() } else { text.into() };
                    self.translation.set(path, field, value);
                }
                Some(_) => {
                    self.translation.warn(path, format!("has no effect with {MODE} {chosen}, as in kube-proxy"));
                }
                None if of == chosen && of != "ClusterCIDR" => {
                    return Err(FieldProblem::new(path, format!("is required for {MODE} {chosen}")));
                }
                None => {}
            }
        }
        if is_effective {
            self.translation.set(MODE, "detectLocalMode", chosen);
        } else if mode.is_some() {
            let why = format!("{chosen} has no effect without clusterCIDR, as in kube-proxy: pods are not detected");
            self.translation.warn(MODE, why);
        }
        Ok(())
    }

    /// `clusterCIDR` as a list: one CIDR, or one of each IP family.
    fn cluster_cidrs(&self) -> Result<Value, FieldProblem> {
        let path = "clusterCIDR";
        let Some(text) = self.text(path) else { return Ok(Value::Null) };
        let cidrs: Vec<IpNet> =
            text.split(',').map(cidr).collect::<Result<_, _>>().map_err(|why| FieldProblem::new(path, why))?;
        match cidrs[..] {
            [_] | [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => {
                Ok(text.split(',').map(str::trim).collect())
            }
            _ => Err(FieldProblem::new(path, format!("{text:?}: expected one CIDR, or one of each IP family"))),
        }
    }

    // === Node ports ===

    fn node_ports(&mut self) -> Result<(), FieldProblem> {
        const PATH: &str = "nodePortAddresses";
        const LOCALHOST: &str = "iptables.localhostNodePorts";
        let given = self.fields.get(PATH).and_then(|list| list.as_array()).into_iter().flatten();
        let given: Vec<_> = given.filter_map(Value::as_str).map(str::trim).collect();
        let has_localhost = given.contains(&"localhost");
        if has_localhost {
            let why = "localhost: node ports are served at 127.0.0.0/8 only with backend iptables and without `primary`, \
                       and at ::1 with none";
            self.translation.warn(PATH, why.to_owned());
        }
        let is_primary = match given[..] {
            [] => self.backend == BackendName::Nftables,
            _ => given.contains(&"primary") && given.iter().all(|address| ["primary", "localhost"].contains(address)),
        };
        let mut cidrs = Vec::new();
        if is_primary {
            self.translation.set(PATH, "nodeportAddresses", "primary");
        } else {
            let parsed: Result<Vec<_>, _> = given.into_iter().map(address_ranges).collect();
            let parsed = parsed.map_err(|why| FieldProblem::new(PATH, format!("{why}, or `primary` alone")))?;
            cidrs = with_both_families(parsed.concat());
            let list = cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            self.translation.set(PATH, "nodeportAddresses", list);
        }
        let localhost = self.fields.get(LOCALHOST).and_then(|localhost| localhost.as_bool());
        let is_covered = cidrs.iter().any(|cidr| cidr.contains(&IpAddr::from([127, 0, 0, 1])));
        if self.backend == BackendName::Iptables && localhost != Some(false) && is_covered {
            self.translation.set(LOCALHOST, "iptablesLocalhostNodeports", true);
        } else if localhost == Some(true) {
            let why = format!("has no effect: {PATH} does not contain loopback addresses, as in kube-proxy");
            self.translation.warn(LOCALHOST, why);
        }
        Ok(())
    }
}

/// The CIDRs of one entry of `nodePortAddresses`.
fn address_ranges(entry: &str) -> Result<Vec<IpNet>, String> {
    match entry {
        "localhost" => ["127.0.0.0/8", "::1/128"].map(cidr).into_iter().collect(),
        "all" => Ok(with_both_families(Vec::new())),
        _ => cidr(entry).map(|cidr| vec![cidr]),
    }
}

/// kube-proxy serves node ports at all addresses of an IP family without a CIDR; Fairlead would serve none.
fn with_both_families(mut cidrs: Vec<IpNet>) -> Vec<IpNet> {
    let everywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    for address in everywhere {
        if !cidrs.iter().any(|cidr| cidr.addr().is_ipv4() == address.is_ipv4()) {
            cidrs.extend(IpNet::new(address, 0));
        }
    }
    cidrs
}
