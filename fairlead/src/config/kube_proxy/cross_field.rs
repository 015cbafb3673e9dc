//! Fields whose meaning depends on others, or whose values are written differently: mode, pod detection, node ports,
//! addresses and logging.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    translate::Role,
    values::{Decoded, cidr},
};
use crate::{
    cli::BackendName,
    config::{FieldError, FieldWarning, Setting},
};

/// kube-proxy's modes, the default first.
const MODES: [(&str, BackendName); 3] =
    [("iptables", BackendName::Iptables), ("ipvs", BackendName::Ipvs), ("nftables", BackendName::Nftables)];

/// The default of `iptables.syncPeriod`, `ipvs.syncPeriod` and `nftables.syncPeriod`, in nanoseconds.
const SYNC_PERIOD: f64 = 30e9;
/// kube-proxy's verbosity that is closest to our level debug.
const DEBUG_VERBOSITY: i64 = 4;

/// Decoded fields, by path.
pub(super) struct CrossFields<'a> {
    pub(super) backend: BackendName,
    pub(super) role: Role,
    pub(super) fields: &'a BTreeMap<&'static str, Decoded>,
}

/// The backend that the command line names, else that of the mode.
pub(super) fn backend(
    named: Option<BackendName>,
    mode: Option<&Value>,
    warnings: &mut Vec<FieldWarning>,
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
        warnings.push(FieldWarning::new("mode", format!("{mode} has no effect: the command line sets {named}")));
    }
    Ok(named.unwrap_or(*of_mode))
}

/// kube-proxy's mode of a backend.
pub(crate) fn mode_of(backend: BackendName) -> &'static str {
    MODES.iter().find(|(_, of_mode)| *of_mode == backend).map_or("", |(mode, _)| mode)
}

impl CrossFields<'_> {
    /// Translates all of them.
    pub(super) fn translate(
        &self,
        settings: &mut Vec<Setting>,
        warnings: &mut Vec<FieldWarning>,
        errors: &mut Vec<FieldError>,
    ) {
        self.process(settings, warnings);
        self.sync_periods(errors);
        for result in [
            self.bind_address(settings, warnings),
            self.http_address("healthzBindAddress", "healthz", settings),
            self.http_address("metricsBindAddress", "metrics", settings),
            self.local_pods(settings, warnings),
            self.node_ports(settings, warnings),
        ] {
            errors.extend(result.err());
        }
    }

    fn text(&self, path: &str) -> Option<&str> {
        match self.fields.get(path) {
            Some(Decoded::Text(text)) => Some(text),
            _ => None,
        }
    }

    // === The process ===

    fn process(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<FieldWarning>) {
        let mut set = |path: &str, field: &str, value: &str| settings.push(Setting::new(path, field, value));
        if let Some(file) = self.text("clientConnection.kubeconfig") {
            let field = match self.role {
                Role::Local => "kubeconfig",
                Role::Backend => "discoveryKubeconfig",
            };
            set("clientConnection.kubeconfig", field, file);
        }
        if let Some(format) = self.text("logging.format") {
            set("logging.format", "logFormat", format);
        }
        if let Some(Decoded::Integer(verbosity)) = self.fields.get("logging.verbosity") {
            set("logging.verbosity", "log", if *verbosity < DEBUG_VERBOSITY { "info" } else { "debug" });
        }
        let Some(Decoded::Other(Value::Object(gates))) = self.fields.get("featureGates") else { return };
        for (gate, state) in gates {
            let why = match (gate.as_str(), state.as_bool()) {
                ("AllowServiceExternalIPs", Some(true)) => continue,
                ("AllowServiceExternalIPs", _) => {
                    "false has no effect: Fairlead serves external IPs. Enable the admission plugin \
                     DenyServiceExternalIPs of the API server instead"
                }
                _ => "has no effect: Fairlead has no feature gates",
            };
            warnings.push(FieldWarning::new(format!("featureGates.{gate}"), why));
        }
    }

    /// A minimum must not exceed its period.
    fn sync_periods(&self, errors: &mut Vec<FieldError>) {
        let sections = [
            ("iptables.syncPeriod", "iptables.minSyncPeriod"),
            ("ipvs.syncPeriod", "ipvs.minSyncPeriod"),
            ("nftables.syncPeriod", "nftables.minSyncPeriod"),
        ];
        let time = |path| match self.fields.get(path) {
            Some(Decoded::Time(time)) => Some(*time),
            _ => None,
        };
        for (period, minimum) in sections {
            if time(minimum).is_some_and(|minimum| minimum > time(period).unwrap_or(SYNC_PERIOD)) {
                errors.push(FieldError::new(minimum, format!("is longer than {period}")));
            }
        }
    }

    // === Addresses ===

    fn bind_address(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<FieldWarning>) -> Result<(), FieldError> {
        let Some(text) = self.text("bindAddress") else { return Ok(()) };
        let invalid = || FieldError::new("bindAddress", format!("{text:?}: expected an IP address"));
        let address: IpAddr = text.parse().map_err(|_| invalid())?;
        if !address.is_unspecified() {
            let cidr = IpNet::from(address);
            let why = format!(
                "{address} has no effect on the node's addresses, which Fairlead reads from the Node object. To serve \
                 node ports only at this address, set nodePortAddresses to [{cidr}]"
            );
            warnings.push(FieldWarning::new("bindAddress", why));
        }
        // Health is served in both IP families by default, metrics in one.
        if address.is_ipv6() && self.text("metricsBindAddress").is_none() {
            let loopback = IpAddr::from(Ipv6Addr::LOCALHOST).to_string();
            settings.push(Setting::new("bindAddress", "metrics", loopback));
        }
        Ok(())
    }

    /// The address of an HTTP server, with or without a port.
    fn http_address(&self, path: &str, field: &str, settings: &mut Vec<Setting>) -> Result<(), FieldError> {
        let Some(text) = self.text(path) else { return Ok(()) };
        let is_socket = text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0);
        if !is_socket && text.parse::<IpAddr>().is_err() {
            let why = format!("{text:?}: expected an IP address with a port, such as 0.0.0.0:10256");
            return Err(FieldError::new(path, why));
        }
        settings.push(Setting::new(path, field, text));
        Ok(())
    }

    // === Pods ===

    fn local_pods(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<FieldWarning>) -> Result<(), FieldError> {
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
            return Err(FieldError::new(MODE, why));
        }
        let cluster_cidrs = self.cluster_cidrs()?;
        let mut is_effective = chosen == "NodeCIDR";
        for (of, path, field) in sources {
            match self.text(path) {
                Some(text) if of == chosen => {
                    is_effective = true;
                    let value = if of == "ClusterCIDR" { cluster_cidrs.clone() } else { text.into() };
                    settings.push(Setting::new(path, field, value));
                }
                Some(_) => {
                    let why = format!("has no effect with {MODE} {chosen}, as in kube-proxy");
                    warnings.push(FieldWarning::new(path, why));
                }
                None if of == chosen && of != "ClusterCIDR" => {
                    return Err(FieldError::new(path, format!("is required for {MODE} {chosen}")));
                }
                None => {}
            }
        }
        if is_effective {
            settings.push(Setting::new(MODE, "detectLocalMode", chosen));
        } else if mode.is_some() {
            let why = format!("{chosen} has no effect without clusterCIDR, as in kube-proxy: pods are not detected");
            warnings.push(FieldWarning::new(MODE, why));
        }
        Ok(())
    }

    /// `clusterCIDR` as a list: one CIDR, or one of each IP family.
    fn cluster_cidrs(&self) -> Result<Value, FieldError> {
        let path = "clusterCIDR";
        let Some(text) = self.text(path) else { return Ok(Value::Null) };
        let cidrs: Vec<IpNet> =
            text.split(',').map(cidr).collect::<Result<_, _>>().map_err(|why| FieldError::new(path, why))?;
        match cidrs[..] {
            [_] | [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => {
                Ok(text.split(',').map(str::trim).collect())
            }
            _ => Err(FieldError::new(path, format!("{text:?}: expected one CIDR, or one of each IP family"))),
        }
    }

    // === Node ports ===

    fn node_ports(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<FieldWarning>) -> Result<(), FieldError> {
        const PATH: &str = "nodePortAddresses";
        const LOCALHOST: &str = "iptables.localhostNodePorts";
        let given = match self.fields.get(PATH) {
            Some(Decoded::List(list)) => list.as_slice(),
            _ => &[],
        };
        let is_primary = match given {
            [] => self.backend == BackendName::Nftables,
            [only] => only == "primary",
            _ => false,
        };
        let mut cidrs = Vec::new();
        if is_primary {
            settings.push(Setting::new(PATH, "nodeportAddresses", "primary"));
        } else {
            let parsed: Vec<IpNet> = given
                .iter()
                .map(|text| cidr(text))
                .collect::<Result<_, _>>()
                .map_err(|why| FieldError::new(PATH, format!("{why}, or `primary` alone")))?;
            cidrs = with_both_families(parsed);
            let list = cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            settings.push(Setting::new(PATH, "nodeportAddresses", list));
        }
        let localhost = match self.fields.get(LOCALHOST) {
            Some(Decoded::Bool(localhost)) => Some(*localhost),
            _ => None,
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let is_covered = cidrs.iter().any(|cidr| cidr.contains(&loopback));
        if self.backend == BackendName::Iptables && localhost != Some(false) && is_covered {
            settings.push(Setting::new(LOCALHOST, "iptablesLocalhostNodeports", true));
        } else if localhost == Some(true) {
            let why = format!("has no effect: {PATH} does not contain loopback addresses, as in kube-proxy");
            warnings.push(FieldWarning::new(LOCALHOST, why));
        }
        Ok(())
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
