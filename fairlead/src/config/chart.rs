//! The settings of a process as values of the Helm chart.

use serde_json::{Map, Value, json};

use super::{Setting, duration};
use crate::cli::HttpAddress;

/// Where the chart has a setting.
#[derive(Clone, Copy, Debug)]
enum ChartValue {
    /// In the value at this path.
    At(&'static [&'static str]),
    /// In the list at this path.
    List(&'static [&'static str]),
    /// In the section at this path: its port, and whether it listens at all addresses.
    Listener(&'static [&'static str]),
    /// In a sysctl that an init container writes: a time in seconds, or a switch.
    Sysctl(&'static str),
    /// In the flags of the backend.
    ExtraArgument(&'static str),
    /// Nowhere, for this reason.
    Nothing(&'static str),
}

use ChartValue::{At, ExtraArgument, List, Listener, Nothing, Sysctl};

const SYSCTLS: [&str; 3] = ["backend", "prepareNode", "sysctls"];
const EXTRA_ARGUMENTS: [&str; 2] = ["backend", "extraArgs"];

/// Where the chart has each field that `fairlead config convert` may set.
const VALUES: &[(&str, ChartValue)] = &[
    ("backend", At(&["mode"])),
    ("bindAddressHardFail", ExtraArgument("--bind-address-hard-fail")),
    ("clusterCIDR", List(&["traffic", "clusterCIDR"])),
    ("conntrackMaxPerCore", At(&["backend", "prepareNode", "conntrack", "maxPerCore"])),
    ("conntrackMin", At(&["backend", "prepareNode", "conntrack", "min"])),
    ("conntrackTcpBeLiberal", Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")),
    ("conntrackTcpTimeoutCloseWait", Sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait")),
    ("conntrackTcpTimeoutEstablished", Sysctl("net.netfilter.nf_conntrack_tcp_timeout_established")),
    ("conntrackUdpTimeout", Sysctl("net.netfilter.nf_conntrack_udp_timeout")),
    ("conntrackUdpTimeoutStream", Sysctl("net.netfilter.nf_conntrack_udp_timeout_stream")),
    ("detectLocalMode", At(&["traffic", "detectLocalMode"])),
    ("externalIPs", List(&["services", "externalIPs"])),
    ("healthz", Listener(&["backend", "healthz"])),
    ("iptablesLocalhostNodePorts", At(&["iptables", "localhostNodePorts"])),
    ("ipvsExcludeCIDRs", List(&["ipvs", "excludeCIDRs"])),
    ("ipvsScheduler", At(&["ipvs", "scheduler"])),
    ("ipvsStrictARP", At(&["ipvs", "strictARP"])),
    ("ipvsTcpTimeout", At(&["ipvs", "tcpTimeout"])),
    ("ipvsTcpfinTimeout", At(&["ipvs", "tcpFinTimeout"])),
    ("ipvsUdpTimeout", At(&["ipvs", "udpTimeout"])),
    (
        "kubeconfig",
        Nothing("the pods have credentials of their own; set apiServer.host to the address of the API server"),
    ),
    ("log", At(&["log", "filter"])),
    ("logFormat", At(&["log", "format"])),
    ("masqueradeAll", At(&["traffic", "masqueradeAll"])),
    ("masqueradeBit", At(&["traffic", "masqueradeBit"])),
    ("metrics", Listener(&["backend", "metrics"])),
    ("nodeName", Nothing("each pod runs as the Node that it is on")),
    ("nodePortAddresses", List(&["traffic", "nodePortAddresses"])),
    ("oomScoreAdj", At(&["backend", "oomScoreAdj"])),
    ("podBridgeInterface", At(&["traffic", "podBridgeInterface"])),
    ("podInterfaceNamePrefix", At(&["traffic", "podInterfaceNamePrefix"])),
];

/// The values that differ from the chart's defaults, and a warning for each setting without a value.
pub(crate) fn values(settings: &[Setting]) -> (Value, Vec<String>) {
    let mut values = Value::Object(Map::new());
    let mut warnings = Vec::new();
    for Setting { field, value, path } in settings {
        let known = VALUES.iter().find(|(name, _)| name == field).map(|(_, chart)| *chart);
        match known {
            Some(At(at)) => *value_at(&mut values, at) = value.clone(),
            Some(List(at)) => *value_at(&mut values, at) = list(value),
            Some(Listener(at)) => warnings.extend(listener(&mut values, at, path, value)),
            Some(Sysctl(name)) => value_at(&mut values, &SYSCTLS)[name] = sysctl(value),
            Some(ExtraArgument(flag)) if value == true => *value_at(&mut values, &EXTRA_ARGUMENTS) = json!([flag]),
            Some(ExtraArgument(_)) => {}
            Some(Nothing(why)) => warnings.push(format!("{path}: {value} has no effect in the chart: {why}")),
            None => warnings.push(format!("{path}: the chart has no value for it: use backend.extraArgs")),
        }
    }
    (values, warnings)
}

/// The value at a path; null if there is none yet.
fn value_at<'a>(values: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(values, |value, name| &mut value[*name])
}

/// A list, which a setting may have as one text with commas.
fn list(value: &Value) -> Value {
    match value.as_str() {
        Some(text) => text.split(',').map(str::trim).collect(),
        None => value.clone(),
    }
}

/// A sysctl. A time of 0 leaves it unchanged.
fn sysctl(value: &Value) -> Value {
    if let Value::Bool(on) = value {
        return u8::from(*on).to_string().into();
    }
    match value.as_str().and_then(|text| duration(text).ok()) {
        Some(time) if !time.is_zero() => time.as_secs().to_string().into(),
        _ => Value::Null,
    }
}

/// Sets the port of a listener. Returns a warning if the chart cannot express its address.
fn listener(values: &mut Value, at: &[&str], path: &str, value: &Value) -> Option<String> {
    let default_port = if at.ends_with(&["healthz"]) { 10256 } else { 10249 };
    let text = value.as_str().unwrap_or_default();
    let address = text.parse::<HttpAddress<10249>>().ok().and_then(|HttpAddress(address)| address);
    let Some(address) = address else {
        return Some(format!("{path}: {value} has no effect in the chart, which always has this listener"));
    };

    // kube-proxy accepts an address without a port, too.
    let port = if text.ends_with(&format!(":{}", address.port())) { address.port() } else { default_port };
    let section = value_at(values, at);
    section["port"] = port.into();

    let is_metrics = default_port == 10249;
    let ip = address.ip();
    if is_metrics {
        section["exposed"] = ip.is_unspecified().into();
    }
    let is_expressed = ip.is_unspecified() || is_metrics && ip.is_loopback();
    if is_expressed {
        None
    } else {
        Some(format!("{path}: {value}: the chart listens at all addresses, or metrics at 127.0.0.1"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{
        Document, Effect, FIELDS,
        kube_proxy::{TargetRole, convert},
    };

    const KUBE_PROXYS: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    /// The values of a file of kube-proxy, and the warnings.
    fn converted(fields: &str) -> (Value, Vec<String>) {
        let document = Document::parse(&format!("{KUBE_PROXYS}{fields}")).unwrap();
        values(&convert(&document.fields, TargetRole::Chart).unwrap().settings)
    }

    #[test]
    fn configuration_of_kubeadm_becomes_values() {
        let (values, warnings) = converted(
            "bindAddress: 0.0.0.0\nclusterCIDR: 10.244.0.0/16,fd00:10:244::/56\nmode: ipvs\n\
             clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}\nmetricsBindAddress: 0.0.0.0:9100\n\
             healthzBindAddress: 0.0.0.0:9256\nipvs: {strictARP: true, excludeCIDRs: [192.0.2.0/24]}\n\
             conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true}\n\
             featureGates: {AllowServiceExternalIPs: false}\nbindAddressHardFail: true\n",
        );
        let expected = json!({
            "mode": "ipvs",
            "services": { "externalIPs": ["none"] },
            "traffic": {
                "detectLocalMode": "ClusterCIDR", "clusterCIDR": ["10.244.0.0/16", "fd00:10:244::/56"],
                "nodePortAddresses": ["0.0.0.0/0", "::/0"],
            },
            "ipvs": { "strictARP": true, "excludeCIDRs": ["192.0.2.0/24"] },
            "backend": {
                "healthz": { "port": 9256 },
                "metrics": { "port": 9100, "exposed": true },
                "extraArgs": ["--bind-address-hard-fail"],
                "prepareNode": {
                    "conntrack": { "maxPerCore": 0 },
                    "sysctls": {
                        "net.netfilter.nf_conntrack_tcp_timeout_established": "7200",
                        "net.netfilter.nf_conntrack_tcp_timeout_close_wait": null,
                        "net.netfilter.nf_conntrack_tcp_be_liberal": "1",
                    },
                },
            },
        });
        assert_eq!(values, expected, "{values:#}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("clientConnection.kubeconfig: ") && warnings[0].contains("apiServer.host"));
    }

    #[test]
    fn listeners_that_the_chart_cannot_have_are_named() {
        let (values, warnings) = converted("healthzBindAddress: 192.0.2.1\nmetricsBindAddress: 127.0.0.1\n");
        assert_eq!(values["backend"]["healthz"]["port"], 10256);
        assert_eq!(values["backend"]["metrics"], json!({ "port": 10249, "exposed": false }));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    /// A value that the chart does not have would be rejected by its schema.
    #[test]
    fn chart_has_each_value() {
        let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/fairlead/values.yaml")).unwrap();
        let chart: Value = serde_saphyr::from_str(&text).unwrap();
        for (field, value) in VALUES {
            let path = match value {
                At(path) | List(path) | Listener(path) => path.join("/"),
                Sysctl(_) => SYSCTLS.join("/"),
                ExtraArgument(_) => EXTRA_ARGUMENTS.join("/"),
                Nothing(_) => continue,
            };
            assert!(chart.pointer(&format!("/{path}")).is_some(), "{field}: {path}");
        }
    }

    #[test]
    fn each_field_of_kube_proxy_has_a_value_or_a_reason() {
        for field in FIELDS {
            if let Effect::Becomes(ours) = field.effect {
                assert!(VALUES.iter().any(|(name, _)| *name == ours), "{ours}");
            }
        }
    }
}
