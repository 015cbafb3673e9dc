//! kube-proxy's configuration (`kubeproxy.config.k8s.io/v1alpha1`), converted to ours. Each field that is set has an
//! effect or a warning.

pub(super) mod fields;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use ipnet::IpNet;
use serde_json::{Map, Value};

use self::fields::{Effect, Field, modes};
use super::{Kind, Setting, duration};
use crate::modes::Mode;

/// The process, or the release, that replaces kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetRole {
    /// `fairlead local`, which watches the API server itself, as kube-proxy does.
    Local,
    /// `fairlead backend configured`, which follows a frontend.
    Backend,
    /// A release of the Helm chart: values.
    Chart,
}

/// A converted configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conversion {
    pub(crate) settings: Vec<Setting>,
    /// Fields without effect, or with another effect than in kube-proxy; why, and what to do instead.
    pub(crate) warnings: Vec<String>,
}

/// The values of the fields that are set, by path.
type Values<'a> = BTreeMap<String, &'a Value>;

/// kube-proxy's default.
const OOM_SCORE_ADJ: i64 = -999;

/// kube-proxy's verbosity that is closest to our level debug.
const DEBUG_VERBOSITY: i64 = 4;

impl TargetRole {
    /// The kind of the configuration that has the settings.
    pub(crate) fn kind(self) -> Kind {
        match self {
            // The settings are checked before they become values.
            Self::Local | Self::Chart => Kind::Local,
            Self::Backend => Kind::Backend,
        }
    }
}

/// Converts all fields, with kube-proxy's defaults for missing ones. Values that our settings have in the same form are
/// not checked here.
///
/// # Errors
/// A mode that Fairlead does not have, and a list of cluster CIDRs.
pub(crate) fn convert(document: &Map<String, Value>, role: TargetRole) -> Result<Conversion> {
    let mode = mode(document)?;
    // Our field may be a list, kube-proxy's may not.
    if let Some(list @ Value::Array(_)) = document.get("clusterCIDR") {
        bail!("clusterCIDR: {list}: expected text, with commas between CIDRs");
    }

    let mut conversion = Conversion::default();
    conversion.set("mode", "backend", mode.name());
    let mut values = Values::new();
    flatten(document, "", &mut values);
    values.retain(|path, value| conversion.keeps(path, value, mode));

    // The pods of the chart have the score that the kubelet gives them.
    if !values.contains_key("oomScoreAdj") && role != TargetRole::Chart {
        conversion.set("oomScoreAdj", "oomScoreAdj", OOM_SCORE_ADJ);
    }
    if let Some(file) = values.get("clientConnection.kubeconfig").copied() {
        let field = match role {
            TargetRole::Local | TargetRole::Chart => "kubeconfig",
            TargetRole::Backend => "discoveryKubeconfig",
        };
        conversion.set("clientConnection.kubeconfig", field, file.clone());
    }
    if let Some(verbosity) = conversion.typed(&values, "logging.verbosity", Value::as_i64) {
        let level = if verbosity < DEBUG_VERBOSITY { "info" } else { "debug" };
        conversion.set("logging.verbosity", "log", level);
    }

    conversion.feature_gates(&values, role);
    conversion.bind_address(&values);
    conversion.local_pods(&values);
    conversion.node_ports(&values, mode);
    Ok(conversion)
}

/// The mode of kube-proxy, iptables by default.
fn mode(document: &Map<String, Value>) -> Result<Mode> {
    match document.get("mode") {
        None | Some(Value::Null) => Ok(Mode::Iptables),
        Some(Value::String(name)) if name.is_empty() => Ok(Mode::Iptables),
        Some(mode) => {
            let named = mode.as_str().and_then(Mode::named);
            named.with_context(|| format!("mode: {mode}: expected one of iptables, ipvs, nftables"))
        }
    }
}

impl Conversion {
    fn set(&mut self, path: &str, field: &str, value: impl Into<Value>) {
        self.settings.push(Setting::new(path, field, value));
    }

    fn warn(&mut self, path: &str, reason: impl Display) {
        self.warnings.push(format!("{path}: {reason}"));
    }

    /// The value of a field that is set, as its type. A value of another type is ignored, with a warning.
    fn typed<'a, T>(
        &mut self,
        values: &Values<'a>,
        path: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = values.get(path).copied()?;
        let typed = read(value);
        if typed.is_none() {
            self.warn(path, format!("{value}: unexpected type, ignored"));
        }
        typed
    }

    /// Converts a field that does not depend on other fields. Returns whether kube-proxy reads it.
    fn keeps(&mut self, path: &str, value: &Value, mode: Mode) -> bool {
        let Some(field) = Field::at(path) else {
            let is_section = Field::has_section(&format!("{path}."));
            let why = if is_section {
                "unexpected type, ignored"
            } else {
                "kube-proxy has no such field, and ignores it too"
            };
            self.warn(path, why);
            return false;
        };
        if !field.is_pointer && is_zero(value) {
            return false;
        }
        let readers = modes(path);
        if !readers.contains(&mode) {
            let names: Vec<_> = readers.iter().map(|reader| reader.name()).collect();
            let reason =
                format!("kube-proxy reads it only in mode {}, and this is {}", names.join(" and "), mode.name());
            self.warn(path, reason);
            return false;
        }
        match field.effect {
            Effect::Becomes(ours) => self.set(path, ours, value.clone()),
            Effect::CrossField => {}
            Effect::Nothing(why) => self.warn(path, format!("{value} has no effect: {why}")),
        }
        true
    }

    fn feature_gates(&mut self, values: &Values<'_>, role: TargetRole) {
        let gates = self.typed(values, "featureGates", Value::as_object).into_iter().flatten();
        let gates: Values<'_> = gates.map(|(gate, state)| (format!("featureGates.{gate}"), state)).collect();
        for path in gates.keys() {
            if path != "featureGates.AllowServiceExternalIPs" {
                self.warn(path, "has no effect: Fairlead has no feature gates");
            } else if self.typed(&gates, path, Value::as_bool) == Some(false) {
                match role {
                    TargetRole::Local | TargetRole::Chart => self.set(path, "externalIPs", "none"),
                    TargetRole::Backend => {
                        let why = "false has no effect in a backend: set externalIPs of the frontend to none";
                        self.warn(path, why);
                    }
                }
            }
        }
    }

    fn bind_address(&mut self, values: &Values<'_>) {
        const PATH: &str = "bindAddress";
        let Some(address) = self.typed(values, PATH, Value::as_str) else { return };
        if !["0.0.0.0", "::"].contains(&address) {
            let why = format!(
                "{address} has no effect on the node's addresses, which Fairlead reads from the Node object. To serve \
                 node ports only at this address, set nodePortAddresses to its CIDR"
            );
            self.warn(PATH, why);
        }
        // By default health is served in both IP families, and metrics only in IPv4.
        if address.contains(':') && !values.contains_key("metricsBindAddress") {
            self.set(PATH, "metrics", "::1");
        }
    }

    /// Our settings reject unknown modes, and modes without the field that they need.
    fn local_pods(&mut self, values: &Values<'_>) {
        const MODE: &str = "detectLocalMode";
        const CLUSTER_CIDR: &str = "clusterCIDR";
        let default = Value::from("ClusterCIDR");
        let given = values.get(MODE).copied();
        let mode = given.unwrap_or(&default);
        for (of, path, field) in [
            ("ClusterCIDR", CLUSTER_CIDR, "clusterCIDR"),
            ("BridgeInterface", "detectLocal.bridgeInterface", "podBridgeInterface"),
            ("InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "podInterfaceNamePrefix"),
        ] {
            match values.get(path).copied() {
                Some(value) if mode == of => self.set(path, field, value.clone()),
                Some(_) => self.warn(path, format!("has no effect with {MODE} {mode}, as in kube-proxy")),
                None => {}
            }
        }

        if *mode != default || values.contains_key(CLUSTER_CIDR) {
            self.set(MODE, MODE, mode.clone());
        } else if given.is_some() {
            let why = format!("{mode} has no effect without {CLUSTER_CIDR}, as in kube-proxy: pods are not detected");
            self.warn(MODE, why);
        }
    }

    fn node_ports(&mut self, values: &Values<'_>, mode: Mode) {
        const PATH: &str = "nodePortAddresses";
        const LOCALHOST: &str = "iptables.localhostNodePorts";
        let mut entries = Vec::new();
        for entry in self.typed(values, PATH, Value::as_array).into_iter().flatten() {
            entries.push(entry.as_str().map_or_else(|| entry.to_string(), str::to_owned));
        }
        let has = |keyword: &str| entries.iter().any(|entry| entry == keyword);
        if has("localhost") {
            let why = "localhost: node ports are served at 127.0.0.0/8 only with backend iptables and without `primary`, \
                       and at ::1 with none";
            self.warn(PATH, why);
        }

        let is_primary = if entries.is_empty() {
            mode == Mode::Nftables
        } else {
            has("primary") && entries.iter().all(|entry| entry == "primary" || entry == "localhost")
        };
        let addresses = if is_primary { vec!["primary"] } else { cidrs(&entries) };
        self.set(PATH, "nodePortAddresses", addresses.join(","));

        let localhost = self.typed(values, LOCALHOST, Value::as_bool);
        let has_loopback = addresses.iter().any(|cidr| contains_loopback(cidr));
        if mode.traits().serves_localhost_nodeports && localhost != Some(false) && has_loopback {
            self.set(LOCALHOST, "iptablesLocalhostNodePorts", true);
        } else if localhost == Some(true) {
            let why = format!("has no effect: {PATH} does not contain loopback addresses, as in kube-proxy");
            self.warn(LOCALHOST, why);
        }
    }
}

fn contains_loopback(cidr: &str) -> bool {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    cidr.parse::<IpNet>().is_ok_and(|cidr| cidr.contains(&loopback))
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

/// The values of all fields that are set, by path.
fn flatten<'a>(document: &'a Map<String, Value>, prefix: &str, values: &mut Values<'a>) {
    for (name, value) in document {
        let path = format!("{prefix}{name}");
        let section = format!("{path}.");
        match value {
            Value::Null => {}
            Value::Object(fields) if Field::has_section(&section) => flatten(fields, &section, values),
            _ => drop(values.insert(path, value)),
        }
    }
}

/// Whether it is the zero value of its type in Go.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || duration(text) == Ok(Duration::ZERO),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}
