//! Configurations of kube-proxy as installers write them, and the effect of each field.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    fields::{FIELDS, Field},
    *,
};
use crate::{
    cli::check_document,
    config::{Document, field_of},
};

/// As kubeadm writes it: unset fields are null, zero or empty.
const KUBEADM: &str = r#"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
"#;

/// As kind writes it for two IP families, through kubeadm.
const KIND: &str = r"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: '::'
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
conntrack:
  maxPerCore: 0
  tcpCloseWaitTimeout: 0s
  tcpEstablishedTimeout: 0s
iptables:
  minSyncPeriod: 1s
mode: nftables
";

/// All fields of the API, with values that are neither zero nor defaults.
fn everything() -> Value {
    json!({
        "featureGates": {"AllowServiceExternalIPs": false},
        "clientConnection": {"kubeconfig": "/k", "acceptContentTypes": "a", "contentType": "c", "qps": 2.5, "burst": 7},
        "logging": {
            "format": "json", "flushFrequency": "5s", "verbosity": 5, "vmodule": [{"filePattern": "a", "verbosity": 3}],
            "options": {"text": {"splitStream": true, "infoBufferSize": "1Ki"}, "json": {"splitStream": true, "infoBufferSize": "1Ki"}},
        },
        "hostnameOverride": "node-b",
        "bindAddress": "192.0.2.7", "healthzBindAddress": "192.0.2.7:1", "metricsBindAddress": "192.0.2.7:2",
        "bindAddressHardFail": true, "enableProfiling": true, "showHiddenMetricsForVersion": "1.30",
        "mode": "ipvs",
        "iptables": {
            "masqueradeBit": 5, "masqueradeAll": true, "localhostNodePorts": true, "syncPeriod": "40s", "minSyncPeriod": "2s",
        },
        "ipvs": {
            "syncPeriod": "40s", "minSyncPeriod": "2s", "scheduler": "wlc", "excludeCIDRs": ["192.0.2.0/24"], "strictARP": true,
            "tcpTimeout": "1h", "tcpFinTimeout": "2m", "udpTimeout": "90s",
        },
        "nftables": {"masqueradeBit": 6, "masqueradeAll": true, "syncPeriod": "40s", "minSyncPeriod": "2s"},
        "winkernel": {
            "networkName": "n", "sourceVip": "v", "enableDSR": true, "rootHnsEndpointName": "e", "forwardHealthCheckVip": true,
        },
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": "cbr0", "interfaceNamePrefix": "veth"},
        "clusterCIDR": "10.0.0.0/8",
        "nodePortAddresses": ["192.0.2.0/24"],
        "oomScoreAdj": -500,
        "conntrack": {
            "maxPerCore": 1, "min": 2, "tcpEstablishedTimeout": "3s", "tcpCloseWaitTimeout": "4s", "tcpBeLiberal": true,
            "udpTimeout": "5s", "udpStreamTimeout": "6s",
        },
        "configSyncPeriod": "1m", "portRange": "1-2", "windowsRunAsService": true,
    })
}

fn fields(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn paths(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if prefix != "featureGates" => fields.iter().for_each(|(name, value)| {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            paths(value, &path, into);
        }),
        _ => drop(into.insert(prefix.to_owned())),
    }
}

fn converted(value: Value) -> Conversion {
    convert(&fields(value), TargetRole::Local).unwrap()
}

/// The settings as `field=value`.
fn settings(conversion: &Conversion) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let value = |value: &Value| match value {
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        value => text(value),
    };
    conversion.settings.iter().map(|setting| format!("{}={}", setting.field, value(&setting.value))).collect()
}

/// `max-loss=5` as `maxLoss=5`, and `shadow` as `shadow=true`.
fn as_field(flag: &&str) -> String {
    let (flag, value) = flag.split_once('=').unwrap_or((flag, "true"));
    format!("{}={value}", field_of(flag))
}

fn expect(conversion: &Conversion, flags: &[&str]) {
    assert_eq!(settings(conversion), flags.iter().map(as_field).collect());
}

fn of_file(text: &str) -> Conversion {
    converted(Document::parse(text).unwrap().fields.into())
}

#[test]
fn each_field_has_an_effect_or_a_warning() {
    let mut all = BTreeSet::new();
    paths(&everything(), "", &mut all);
    let known: BTreeSet<_> = all.iter().map(|path| Field::at(path).unwrap_or_else(|| panic!("{path}")).path).collect();
    let paths = FIELDS.iter().map(|field| field.path);
    assert_eq!(known, paths.collect(), "the table, and the type");
    for mode in ["iptables", "ipvs", "nftables"] {
        let mut document = fields(everything());
        document.insert("mode".to_owned(), mode.into());
        let Conversion { settings, warnings } = converted(document.into());
        for path in &all {
            let is_warned = |warning: &String| warning.starts_with(path) && !warning.ends_with(": ");
            let has_effect = settings.iter().any(|setting| setting.path.starts_with(path));
            assert!(has_effect || warnings.iter().any(is_warned), "{path} in mode {mode}");
        }
    }
}

#[test]
fn each_setting_has_a_flag() {
    let mut command = crate::cli::command();
    command.build();
    let local = command.find_subcommand("local").unwrap();
    let backend = command.find_subcommand("backend").unwrap().find_subcommand("configured").unwrap();
    for (role, command) in [(TargetRole::Local, local), (TargetRole::Backend, backend)] {
        for mode in ["iptables", "ipvs", "nftables"] {
            let mut document = fields(everything());
            document.insert("mode".to_owned(), mode.into());
            for setting in convert(&document, role).unwrap().settings {
                let found = command
                    .get_arguments()
                    .any(|arg| arg.get_long().is_some_and(|long| field_of(long) == setting.field));
                assert!(found, "{setting:?}");
            }
        }
    }
}

#[test]
fn defaults_are_those_of_kube_proxy() {
    let kubeadm = of_file(KUBEADM);
    assert_eq!(kubeadm.warnings, [""; 0]);
    let everywhere = "nodeport-addresses=0.0.0.0/0,::/0";
    expect(
        &kubeadm,
        &[
            "backend=iptables",
            "kubeconfig=/var/lib/kube-proxy/kubeconfig.conf",
            "cluster-cidr=10.244.0.0/16",
            "detect-local-mode=ClusterCIDR",
            everywhere,
            "iptables-localhost-nodeports",
            "oom-score-adj=-999",
        ],
    );
    let bare = ["oom-score-adj=-999"];
    expect(
        &converted(json!({})),
        &[&bare[..], &["backend=iptables", everywhere, "iptables-localhost-nodeports"]].concat(),
    );
    expect(&converted(json!({"mode": "ipvs"})), &[&bare[..], &["backend=ipvs", everywhere]].concat());
    expect(
        &converted(json!({"mode": "nftables"})),
        &[&bare[..], &["backend=nftables", "nodeport-addresses=primary"]].concat(),
    );
}

#[test]
fn configuration_of_kind_is_translated() {
    let kind = of_file(KIND);
    expect(
        &kind,
        &[
            "backend=nftables",
            "cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
            "detect-local-mode=ClusterCIDR",
            "nodeport-addresses=primary",
            "metrics=::1",
            "conntrack-max-per-core=0",
            "conntrack-tcp-timeout-close-wait=0s",
            "conntrack-tcp-timeout-established=0s",
            "oom-score-adj=-999",
        ],
    );
    let warned = ["iptables.minSyncPeriod: kube-proxy reads it only in mode iptables, and this is nftables"];
    assert_eq!(kind.warnings, warned);
}

#[test]
fn pods_and_node_ports_depend_on_several_fields() {
    let cbr0 = json!({"bridgeInterface": "cbr0"});
    for (document, flags, warned) in [
        (
            json!({"detectLocalMode": "NodeCIDR", "clusterCIDR": "10.0.0.0/8"}),
            &["detect-local-mode=NodeCIDR"][..],
            &["clusterCIDR"][..],
        ),
        (
            json!({"detectLocalMode": "BridgeInterface", "detectLocal": cbr0}),
            &["detect-local-mode=BridgeInterface", "pod-bridge-interface=cbr0"],
            &[],
        ),
        (json!({"detectLocalMode": "ClusterCIDR"}), &[], &["detectLocalMode"]),
        (json!({"detectLocal": cbr0}), &[], &["detectLocal.bridgeInterface"]),
        (json!({"bindAddress": "192.0.2.7"}), &[], &["bindAddress"]),
        (
            json!({"bindAddress": "::", "healthzBindAddress": "127.0.0.1", "metricsBindAddress": "[::]:9000"}),
            &["healthz=127.0.0.1", "metrics=[::]:9000"],
            &[],
        ),
        (json!({"bindAddressHardFail": true}), &["bind-address-hard-fail"], &[]),
        (json!({"unknown": {"field": 1}}), &[], &["unknown"]),
        (json!({"iptables": {"unknown": 1}}), &[], &["iptables.unknown"]),
        (json!({"featureGates": {"AllowServiceExternalIPs": true, "Other": true}}), &[], &["featureGates.Other"]),
        (json!({"featureGates": {"AllowServiceExternalIPs": false}}), &["external-ips=none"], &[]),
        (json!({"iptables": {"syncPeriod": "30s"}}), &[], &["iptables.syncPeriod"]),
        (json!({"nftables": {"masqueradeBit": 0}}), &["masquerade-bit=0"], &[]),
    ] {
        let mut with_mode = fields(document.clone());
        with_mode
            .insert("mode".to_owned(), if document["iptables"].is_object() { "iptables" } else { "nftables" }.into());
        let conversion = converted(with_mode.into());
        let settings = settings(&conversion);
        let always = ["backend=", "nodePortAddresses=", "oomScoreAdj=", "iptablesLocalhostNodePorts"];
        let special: Vec<_> =
            settings.iter().filter(|flag| !always.iter().any(|prefix| flag.starts_with(prefix))).collect();
        assert_eq!(special, flags.iter().map(as_field).collect::<Vec<_>>().iter().collect::<Vec<_>>());
        let fields: Vec<_> = conversion.warnings.iter().map(|warning| warning.split(':').next().unwrap()).collect();
        assert_eq!(fields, warned, "{document}");
    }
    let localhost = "iptablesLocalhostNodePorts=true";
    for (addresses, localhost_node_ports, expected, opens) in [
        (json!(["primary"]), json!(null), "primary", false),
        (json!(["192.168.0.7/16"]), json!(null), "192.168.0.7/16,::/0", false),
        (json!(["fd00::/8"]), json!(null), "fd00::/8,0.0.0.0/0", true),
        (json!(["127.0.0.0/8", "192.168.0.0/16"]), json!(true), "127.0.0.0/8,192.168.0.0/16,::/0", true),
        (json!([]), json!(false), "0.0.0.0/0,::/0", false),
    ] {
        let conversion = converted(json!({
            "nodePortAddresses": addresses, "iptables": {"localhostNodePorts": localhost_node_ports},
        }));
        let settings = settings(&conversion);
        assert!(settings.contains(&format!("nodePortAddresses={expected}")), "{settings:?}");
        assert_eq!(settings.contains(localhost), opens, "{addresses}");
    }
}

#[test]
fn keywords_of_node_port_addresses_are_read() {
    for (mode, addresses, expected, opens) in [
        ("nftables", json!(["localhost"]), "127.0.0.0/8,::1/128", false),
        ("nftables", json!(["primary", "localhost"]), "primary", false),
        ("ipvs", json!(["localhost", "192.168.0.0/16"]), "127.0.0.0/8,::1/128,192.168.0.0/16", false),
        ("iptables", json!(["localhost"]), "127.0.0.0/8,::1/128", true),
        ("iptables", json!(["all"]), "0.0.0.0/0,::/0", true),
    ] {
        let conversion = converted(json!({"mode": mode, "nodePortAddresses": addresses}));
        let settings = settings(&conversion);
        assert!(settings.contains(&format!("nodePortAddresses={expected}")), "{addresses}: {settings:?}");
        assert_eq!(settings.contains("iptablesLocalhostNodePorts=true"), opens, "{mode} {addresses}");
        let warned = conversion.warnings.iter().any(|warning| warning.contains("127.0.0.0/8 only with"));
        assert_eq!(warned, addresses.to_string().contains("localhost"), "{addresses}: {:?}", conversion.warnings);
    }
}

#[test]
fn values_of_another_type_are_named() {
    for (document, field) in [
        (json!({"logging": {"verbosity": "4"}}), "logging.verbosity"),
        (json!({"featureGates": "AllowServiceExternalIPs=false"}), "featureGates"),
        (json!({"featureGates": {"AllowServiceExternalIPs": "false"}}), "featureGates.AllowServiceExternalIPs"),
        (json!({"bindAddress": 7}), "bindAddress"),
        (json!({"nodePortAddresses": "primary"}), "nodePortAddresses"),
        (json!({"iptables": {"localhostNodePorts": "true"}}), "iptables.localhostNodePorts"),
        (json!({"iptables": 7}), "iptables"),
    ] {
        let warned = converted(document).warnings;
        let is_named =
            |warned: &String| warned.starts_with(&format!("{field}: ")) && warned.ends_with("unexpected type, ignored");
        assert!(warned.len() == 1 && warned.iter().all(is_named), "{field}: {warned:?}");
    }
}

#[test]
fn invalid_values_are_rejected_by_field() {
    let error = |document: &Value| {
        let document = Document { kind: Kind::KubeProxy, fields: fields(document.clone()) };
        check_document(document, Some(TargetRole::Local)).unwrap_err().to_string()
    };
    for (document, expected) in [
        (json!({"mode": "userspace"}), "mode: \"userspace\": expected one of iptables, ipvs, nftables"),
        (json!({"mode": "kernelspace"}), "mode: \"kernelspace\""),
        (json!({"mode": 7}), "mode: 7: expected one of iptables, ipvs, nftables"),
        (json!({"iptables": {"masqueradeBit": 32}}), "iptables.masqueradeBit: invalid value '32': 32 is not in 0..=31"),
        (json!({"iptables": {"masqueradeAll": "x"}}), "iptables.masqueradeAll: \"x\": expected true or false"),
        (json!({"oomScoreAdj": -1001}), "oomScoreAdj: invalid value '-1001': -1001 is not in -1000..=1000"),
        (json!({"clusterCIDR": "10.0.0.0"}), "clusterCIDR: invalid value '10.0.0.0'"),
        (json!({"clusterCIDR": true}), "clusterCIDR: true: expected text"),
        (json!({"clusterCIDR": ["10.0.0.0/8"]}), "clusterCIDR: [\"10.0.0.0/8\"]: expected text, with commas"),
        (json!({"nodePortAddresses": ["primary", "10.0.0.0/8"]}), "nodePortAddresses: invalid value 'primary,"),
        (json!({"nodePortAddresses": ["10.0.0.1"]}), "nodePortAddresses: invalid value '10.0.0.1,"),
        (json!({"nodePortAddresses": [7]}), "nodePortAddresses: invalid value '7,"),
        (json!({"detectLocalMode": "Bridge"}), "detectLocalMode: invalid value 'Bridge'"),
        (json!({"detectLocalMode": "BridgeInterface"}), "--detect-local-mode BridgeInterface needs --pod-bridge"),
        (json!({"detectLocalMode": "InterfaceNamePrefix"}), "--detect-local-mode InterfaceNamePrefix needs --pod-int"),
        (json!({"conntrack": {"maxPerCore": -1}}), "conntrack.maxPerCore: invalid value '-1'"),
        (json!({"conntrack": {"udpTimeout": "-1s"}}), "conntrack.udpTimeout: invalid value '-1s'"),
        (json!({"conntrack": {"udpTimeout": 30}}), "conntrack.udpTimeout: invalid value '30'"),
        (json!({"healthzBindAddress": "node-a:10256"}), "healthzBindAddress: invalid value 'node-a:10256'"),
    ] {
        let found = error(&document);
        assert!(found.starts_with(expected), "{document}: {found}");
    }
    let two = json!({"oomScoreAdj": 1001, "healthzBindAddress": "a"});
    assert_eq!(error(&two).matches("; ").count(), 1, "{}", error(&two));
}

#[test]
fn zero_values_are_recognized() {
    for zero in [json!(null), json!(""), json!(0), json!("0s"), json!(false), json!([]), json!({"a": {"b": "0"}})] {
        assert!(is_zero(&zero), "{zero}");
    }
    for value in [json!("a"), json!(1), json!("1s"), json!(true), json!(["a"]), json!({"a": 1}), json!(-1)] {
        assert!(!is_zero(&value), "{value}");
    }
}
