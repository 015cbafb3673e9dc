//! Fields whose meaning depends on others, or whose values are written differently: pod detection, node ports,
//! addresses and logging.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;
use serde_json::Value;

use super::translate::{TargetRole, Translation};
use crate::config::{BackendName, FieldProblem};

/// kube-proxy's verbosity that is closest to our level debug.
const DEBUG_VERBOSITY: i64 = 4;

/// The fields that are set, by path, and their translation.
pub(super) struct CrossFields<'a> {
    pub(super) backend: BackendName,
    pub(super) role: TargetRole,
    pub(super) fields: BTreeMap<String, &'a Value>,
    pub(super) translation: &'a mut Translation,
}

impl CrossFields<'_> {
    /// Translates all of them. Returns the errors.
    pub(super) fn translate(mut self) -> Vec<FieldProblem> {
        if let Some(file) = self.fields.get("clientConnection.kubeconfig").copied() {
            let field = match self.role {
                TargetRole::Local => "kubeconfig",
                TargetRole::Backend => "discoveryKubeconfig",
            };
            self.translation.set("clientConnection.kubeconfig", field, file.clone());
        }
        self.local_pods();
        let results = [self.verbosity(), self.feature_gates(), self.bind_address(), self.node_ports()];
        results.into_iter().filter_map(Result::err).collect()
    }

    fn verbosity(&mut self) -> Result<(), FieldProblem> {
        const PATH: &str = "logging.verbosity";
        let Some(value) = self.fields.get(PATH) else { return Ok(()) };
        // That of a flag is text.
        let verbosity = value.as_i64().or_else(|| value.as_str()?.parse().ok());
        let verbosity = verbosity.ok_or_else(|| FieldProblem::new(PATH, format!("{value}: expected a number")))?;
        self.translation.set(PATH, "log", if verbosity < DEBUG_VERBOSITY { "info" } else { "debug" });
        Ok(())
    }

    fn feature_gates(&mut self) -> Result<(), FieldProblem> {
        const PATH: &str = "featureGates";
        let Some(value) = self.fields.get(PATH) else { return Ok(()) };
        let invalid = || FieldProblem::new(PATH, format!("{value}: expected names with true or false"));
        for (gate, state) in value.as_object().ok_or_else(invalid)? {
            let path = format!("{PATH}.{gate}");
            if gate != "AllowServiceExternalIPs" {
                self.translation.warn(path, "has no effect: Fairlead has no feature gates");
                continue;
            }
            match (boolean(&path, state)?, self.role) {
                (true, _) => {}
                (false, TargetRole::Local) => self.translation.set(&path, "externalIps", "none"),
                (false, TargetRole::Backend) => {
                    let why = "false has no effect in a backend: set externalIps of the frontend to none";
                    self.translation.warn(path, why);
                }
            }
        }
        Ok(())
    }

    fn bind_address(&mut self) -> Result<(), FieldProblem> {
        const PATH: &str = "bindAddress";
        let Some(value) = self.fields.get(PATH) else { return Ok(()) };
        let invalid = || FieldProblem::new(PATH, format!("{value}: expected an IP address"));
        let address: IpAddr = value.as_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
        if !address.is_unspecified() {
            let cidr = IpNet::from(address);
            let why = format!(
                "{address} has no effect on the node's addresses, which Fairlead reads from the Node object. To serve \
                 node ports only at this address, set nodePortAddresses to [{cidr}]"
            );
            self.translation.warn(PATH, why);
        }
        // Health is served in both IP families by default, metrics in one.
        if address.is_ipv6() && !self.fields.contains_key("metricsBindAddress") {
            self.translation.set(PATH, "metrics", Ipv6Addr::LOCALHOST.to_string());
        }
        Ok(())
    }

    /// Our settings reject unknown modes, and modes without the field that they need.
    fn local_pods(&mut self) {
        const MODE: &str = "detectLocalMode";
        const CLUSTER_CIDR: &str = "clusterCIDR";
        let default = Value::from("ClusterCIDR");
        let given = self.fields.get(MODE).copied();
        let mode = given.unwrap_or(&default);
        for (of, path, field) in [
            ("ClusterCIDR", CLUSTER_CIDR, "clusterCidr"),
            ("BridgeInterface", "detectLocal.bridgeInterface", "podBridgeInterface"),
            ("InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "podInterfaceNamePrefix"),
        ] {
            match self.fields.get(path).copied() {
                Some(value) if mode == of => self.translation.set(path, field, value.clone()),
                Some(_) => self.translation.warn(path, format!("has no effect with {MODE} {mode}, as in kube-proxy")),
                None => {}
            }
        }
        if *mode != default || self.fields.contains_key(CLUSTER_CIDR) {
            self.translation.set(MODE, "detectLocalMode", mode.clone());
        } else if given.is_some() {
            let why = format!("{mode} has no effect without {CLUSTER_CIDR}, as in kube-proxy: pods are not detected");
            self.translation.warn(MODE, why);
        }
    }

    fn node_ports(&mut self) -> Result<(), FieldProblem> {
        const PATH: &str = "nodePortAddresses";
        const LOCALHOST: &str = "iptables.localhostNodePorts";
        let given = self.fields.get(PATH).map_or_else(Vec::new, |value| entries(value));
        let has = |keyword: &str| given.iter().any(|entry| entry == keyword);
        if has("localhost") {
            let why = "localhost: node ports are served at 127.0.0.0/8 only with backend iptables and without `primary`, \
                       and at ::1 with none";
            self.translation.warn(PATH, why);
        }
        let is_primary = match given[..] {
            [] => self.backend == BackendName::Nftables,
            _ => has("primary") && given.iter().all(|entry| entry == "primary" || entry == "localhost"),
        };
        let addresses = if is_primary { vec!["primary"] } else { cidrs(&given) };
        self.translation.set(PATH, "nodeportAddresses", addresses.join(","));

        let localhost = self.fields.get(LOCALHOST).map(|value| boolean(LOCALHOST, value)).transpose()?;
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let is_covered = |cidr: &&str| cidr.parse::<IpNet>().is_ok_and(|cidr| cidr.contains(&loopback));
        let is_covered = addresses.iter().any(is_covered);
        if self.backend == BackendName::Iptables && localhost != Some(false) && is_covered {
            self.translation.set(LOCALHOST, "iptablesLocalhostNodeports", true);
        } else if localhost == Some(true) {
            let why = format!("has no effect: {PATH} does not contain loopback addresses, as in kube-proxy");
            self.translation.warn(LOCALHOST, why);
        }
        Ok(())
    }
}

fn boolean(path: &str, value: &Value) -> Result<bool, FieldProblem> {
    value.as_bool().ok_or_else(|| FieldProblem::new(path, format!("{value}: expected true or false")))
}

/// The entries of a list; that of a flag is text, separated by commas.
fn entries(value: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = value.as_array().map_or_else(|| text(value), |list| list.iter().map(text).collect::<Vec<_>>().join(","));
    list.split(',').map(|entry| entry.trim().to_owned()).collect()
}

/// The CIDRs of `nodePortAddresses`. kube-proxy serves node ports at all addresses of an IP family without a CIDR;
/// Fairlead would serve none.
fn cidrs(entries: &[String]) -> Vec<&str> {
    const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];
    let mut cidrs = Vec::new();
    for entry in entries {
        match entry.as_str() {
            "localhost" => cidrs.extend(["127.0.0.0/8", "::1/128"]),
            "all" => cidrs.extend(EVERYWHERE),
            cidr => cidrs.push(cidr),
        }
    }
    let is_v6 = |cidr: &str| cidr.contains(':');
    for all in EVERYWHERE {
        if !cidrs.iter().any(|cidr| is_v6(cidr) == is_v6(all)) {
            cidrs.push(all);
        }
    }
    cidrs
}
