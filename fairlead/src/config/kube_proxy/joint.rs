//! Fields that mean something only together: the mode, what a pod is, where node ports are, and what is served where.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use clap::ValueEnum as _;
use ipnet::IpNet;
use serde_json::Value;

use super::{
    translate::Role,
    values::{Read, cidr},
};
use crate::{
    cli::BackendName,
    config::{Invalid, Setting, Values, Warning},
};

/// kube-proxy's modes, the default first.
const MODES: [(&str, BackendName); 3] =
    [("iptables", BackendName::Iptables), ("ipvs", BackendName::Ipvs), ("nftables", BackendName::Nft)];

/// The default of `iptables.syncPeriod` and its siblings, in nanoseconds.
const SYNC_PERIOD: f64 = 30e9;
/// The verbosity from which on kube-proxy says what Fairlead has at the level debug.
const DEBUG_VERBOSITY: i64 = 4;

/// What has been read of them, by path.
pub(super) struct Joint<'a> {
    pub(super) backend: BackendName,
    pub(super) role: Role,
    pub(super) fields: &'a BTreeMap<&'static str, Read>,
}

/// The backend of a mode, unless the command line names one.
pub(super) fn backend(
    named: Option<BackendName>,
    mode: Option<&Value>,
    warnings: &mut Vec<Warning>,
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
        warnings.push(Warning::new("mode", format!("{mode} has no effect: the command line asks for {named}")));
    }
    Ok(named.unwrap_or(*of_mode))
}

/// What kube-proxy calls the mode of a backend.
pub(crate) fn mode_of(backend: BackendName) -> &'static str {
    MODES.iter().find(|(_, of_mode)| *of_mode == backend).map_or("", |(mode, _)| mode)
}

/// A backend as `--backend` takes it.
pub(super) fn name(backend: BackendName) -> Values {
    Values::One(backend.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()))
}

impl Joint<'_> {
    /// Everything that takes more than one field.
    pub(super) fn translate(
        &self,
        settings: &mut Vec<Setting>,
        warnings: &mut Vec<Warning>,
        problems: &mut Vec<Invalid>,
    ) {
        self.process(settings, warnings);
        self.periods(problems);
        for part in [
            self.addresses(settings, warnings),
            self.served("healthzBindAddress", "healthz", settings),
            self.served("metricsBindAddress", "metrics", settings),
            self.local_pods(settings, warnings),
            self.node_ports(settings, warnings),
        ] {
            problems.extend(part.err());
        }
    }

    fn text(&self, path: &str) -> Option<&str> {
        match self.fields.get(path) {
            Some(Read::Text(text)) => Some(text),
            _ => None,
        }
    }

    // === The process ===

    fn process(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<Warning>) {
        let mut set = |path: &str, flag: &str, value: &str| {
            settings.push(Setting::new(path, flag, Values::One(value.to_owned())));
        };
        if let Some(file) = self.text("clientConnection.kubeconfig") {
            let flag = match self.role {
                Role::Local => "kubeconfig",
                Role::Backend => "discovery-kubeconfig",
            };
            set("clientConnection.kubeconfig", flag, file);
        }
        if let Some(format) = self.text("logging.format") {
            set("logging.format", "log-format", format);
        }
        if let Some(Read::Integer(verbosity)) = self.fields.get("logging.verbosity") {
            set("logging.verbosity", "log", if *verbosity < DEBUG_VERBOSITY { "info" } else { "debug" });
        }
        let Some(Read::Other(Value::Object(gates))) = self.fields.get("featureGates") else { return };
        for (gate, state) in gates {
            let why = match (gate.as_str(), state.as_bool()) {
                ("AllowServiceExternalIPs", Some(true)) => continue,
                ("AllowServiceExternalIPs", _) => {
                    "false has no effect: external IPs of Services are served. Let the API server refuse them (admission plugin \
                     DenyServiceExternalIPs)"
                }
                _ => "has no effect: Fairlead has no feature gates",
            };
            warnings.push(Warning::new(format!("featureGates.{gate}"), why));
        }
    }

    /// A minimum is not above what it is the minimum of.
    fn periods(&self, problems: &mut Vec<Invalid>) {
        let sections = [
            ("iptables.syncPeriod", "iptables.minSyncPeriod"),
            ("ipvs.syncPeriod", "ipvs.minSyncPeriod"),
            ("nftables.syncPeriod", "nftables.minSyncPeriod"),
        ];
        let time = |path| match self.fields.get(path) {
            Some(Read::Time(time)) => Some(*time),
            _ => None,
        };
        for (period, minimum) in sections {
            if time(minimum).is_some_and(|minimum| minimum > time(period).unwrap_or(SYNC_PERIOD)) {
                problems.push(Invalid::new(minimum, format!("is longer than {period}")));
            }
        }
    }

    // === Addresses ===

    fn addresses(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<Warning>) -> Result<(), Invalid> {
        let Some(text) = self.text("bindAddress") else { return Ok(()) };
        let wrong = || Invalid::new("bindAddress", format!("{text:?}: expected an IP address"));
        let address: IpAddr = text.parse().map_err(|_| wrong())?;
        if !address.is_unspecified() {
            let cidr = IpNet::from(address);
            let why = format!(
                "{address} has no effect on what the node's addresses are: they are those of its Node object. For node ports at this one \
                 only, set nodePortAddresses to [{cidr}]"
            );
            warnings.push(Warning::new("bindAddress", why));
        }
        // Health is told at both families anyway, metrics at one of them.
        if address.is_ipv6() && self.text("metricsBindAddress").is_none() {
            let loopback = Values::One(IpAddr::from(Ipv6Addr::LOCALHOST).to_string());
            settings.push(Setting::new("bindAddress", "metrics", loopback));
        }
        Ok(())
    }

    /// Where something is served over HTTP; the port may be left out.
    fn served(&self, path: &str, flag: &str, settings: &mut Vec<Setting>) -> Result<(), Invalid> {
        let Some(text) = self.text(path) else { return Ok(()) };
        let is_socket = text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0);
        if !is_socket && text.parse::<IpAddr>().is_err() {
            let why = format!("{text:?}: expected an IP address with a port, such as 0.0.0.0:10256");
            return Err(Invalid::new(path, why));
        }
        settings.push(Setting::new(path, flag, Values::One(text.to_owned())));
        Ok(())
    }

    // === Pods ===

    fn local_pods(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<Warning>) -> Result<(), Invalid> {
        const MODE: &str = "detectLocalMode";
        let mode = self.text(MODE);
        let flags = [
            ("ClusterCIDR", "clusterCIDR", "cluster-cidr"),
            ("BridgeInterface", "detectLocal.bridgeInterface", "pod-bridge-interface"),
            ("InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "pod-interface-name-prefix"),
        ];
        let chosen = mode.unwrap_or("ClusterCIDR");
        if chosen != "NodeCIDR" && flags.iter().all(|(mode, ..)| *mode != chosen) {
            let why = format!("{chosen:?}: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix");
            return Err(Invalid::new(MODE, why));
        }
        self.cluster_cidrs()?;
        let mut is_told = chosen == "NodeCIDR";
        for (of, path, flag) in flags {
            match self.text(path) {
                Some(text) if of == chosen => {
                    is_told = true;
                    let values = match of {
                        "ClusterCIDR" => Values::Many(text.split(',').map(|cidr| cidr.trim().to_owned()).collect()),
                        _ => Values::One(text.to_owned()),
                    };
                    settings.push(Setting::new(path, flag, values));
                }
                Some(_) => {
                    let why = format!("has no effect with {MODE} {chosen}, in kube-proxy as here");
                    warnings.push(Warning::new(path, why));
                }
                None if of == chosen && of != "ClusterCIDR" => {
                    return Err(Invalid::new(path, format!("is needed for {MODE} {chosen}")));
                }
                None => {}
            }
        }
        if is_told {
            settings.push(Setting::new(MODE, "detect-local-mode", Values::One(chosen.to_owned())));
        } else if mode.is_some() {
            let why =
                format!("{chosen} has no effect without clusterCIDR: nobody says what a pod is, in kube-proxy as here");
            warnings.push(Warning::new(MODE, why));
        }
        Ok(())
    }

    /// One, or one of each family.
    fn cluster_cidrs(&self) -> Result<(), Invalid> {
        let path = "clusterCIDR";
        let Some(text) = self.text(path) else { return Ok(()) };
        let cidrs: Vec<IpNet> =
            text.split(',').map(cidr).collect::<Result<_, _>>().map_err(|why| Invalid::new(path, why))?;
        match cidrs[..] {
            [_] | [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => Ok(()),
            _ => Err(Invalid::new(path, format!("{text:?}: expected one CIDR, or one of each family"))),
        }
    }

    // === Node ports ===

    fn node_ports(&self, settings: &mut Vec<Setting>, warnings: &mut Vec<Warning>) -> Result<(), Invalid> {
        const PATH: &str = "nodePortAddresses";
        const LOCALHOST: &str = "iptables.localhostNodePorts";
        let given = match self.fields.get(PATH) {
            Some(Read::List(list)) => list.as_slice(),
            _ => &[],
        };
        let is_primary = match given {
            [] => self.backend == BackendName::Nft,
            [only] => only == "primary",
            _ => false,
        };
        let flag = "nodeport-addresses";
        let mut cidrs = Vec::new();
        if is_primary {
            settings.push(Setting::new(PATH, flag, Values::One("primary".to_owned())));
        } else {
            let parsed: Vec<IpNet> = given
                .iter()
                .map(|text| cidr(text))
                .collect::<Result<_, _>>()
                .map_err(|why| Invalid::new(PATH, format!("{why}, or `primary` alone")))?;
            cidrs = every_family(parsed);
            let list = cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            settings.push(Setting::new(PATH, flag, Values::One(list)));
        }
        let localhost = match self.fields.get(LOCALHOST) {
            Some(Read::Bool(localhost)) => Some(*localhost),
            _ => None,
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let is_covered = cidrs.iter().any(|cidr| cidr.contains(&loopback));
        if self.backend == BackendName::Iptables && localhost != Some(false) && is_covered {
            settings.push(Setting::new(LOCALHOST, "iptables-localhost-nodeports", Values::Switch));
        } else if localhost == Some(true) {
            let why = format!("has no effect: {PATH} leaves loopback out, for kube-proxy as here");
            warnings.push(Warning::new(LOCALHOST, why));
        }
        Ok(())
    }
}

/// A family of which no range is given has node ports everywhere, for kube-proxy; for us it would have none.
fn every_family(mut cidrs: Vec<IpNet>) -> Vec<IpNet> {
    let everywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    for address in everywhere {
        if !cidrs.iter().any(|cidr| cidr.addr().is_ipv4() == address.is_ipv4()) {
            cidrs.extend(IpNet::new(address, 0));
        }
    }
    cidrs
}
