//! Each rule for the fields of a Service, as a table of objects and their usable fields.

use std::time::{Duration, UNIX_EPOCH};

use proto::model::Protocol;
use serde_json::{Value, json};

use super::*;
use crate::{
    index::ServicePolicy,
    object::{ConnectionResets, ObjectName, ParsedObject, ServiceLimits},
    source::parse::from_json,
};

/// A valid Service with `fields` merged into its spec.
fn with_spec(fields: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    });
    for (field, value) in fields.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

/// A valid dual-stack Service with `fields` merged into its spec.
fn with_dual_spec(fields: Value) -> Value {
    let mut service = with_spec(fields);
    service["spec"]["clusterIPs"] = json!(["10.96.0.10", "fd00::10"]);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    service
}

fn with_ingress(ingress: Value, fields: Value) -> Value {
    let mut service = with_dual_spec(fields);
    service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    service
}

fn parsed(service: &Value) -> ParsedObject {
    let parsed = from_json::<Service>(service);
    assert_eq!((parsed.kind, &parsed.name), (ObjectKind::Service, &ObjectName::new("shop", "web")));
    parsed
}

/// The Service and its invalid fields.
#[track_caller]
fn parse_valid(service: &Value) -> (ServiceObject, Vec<String>) {
    let parsed = parsed(service);
    let fields = parsed.problems.into_iter().map(|problem| problem.field).collect();
    match parsed.object {
        Some(ClusterObject::Service(service)) => (service, fields),
        other => panic!("{other:?}, {fields:?}"),
    }
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

#[test]
fn whole_service() {
    let mut service = with_ingress(
        json!([{"ip": "203.0.113.9", "ipMode": "VIP"}]),
        json!({
            "type": "LoadBalancer",
            "externalIPs": ["198.51.100.2", "198.51.100.1", "198.51.100.2"],
            "loadBalancerSourceRanges": ["203.0.113.000/025 ", "10.0.0.0/8"],
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ports": [
                {"name": "https", "port": 443, "nodePort": 30443, "targetPort": "tls"},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353},
                {"name": "dns", "port": 53, "protocol": "TCP"},
                {"name": "sig", "port": 2905, "protocol": "SCTP", "nodePort": 0},
            ],
        }),
    );
    service["metadata"]["creationTimestamp"] = json!("1970-01-02T00:00:00Z");
    service["metadata"]["annotations"] = json!({ "fairlead.io/reset-connections": "removed", "a/b": "c" });
    let port = |name: &str, protocol, port, node_port| ServiceObjectPort {
        name: name.into(),
        protocol,
        port: NonZeroU16::new(port).unwrap(),
        node_port: NonZeroU16::new(node_port),
    };
    let expected = ServiceObject {
        name: ObjectName::new("shop", "web"),
        created: Some(UNIX_EPOCH + Duration::from_secs(86_400)),
        cluster_ips: proto::model::PerFamily {
            v4: Some("10.96.0.10".parse().unwrap()),
            v6: Some("fd00::10".parse().unwrap()),
        },
        external_ips: vec!["198.51.100.1".parse().unwrap(), "198.51.100.2".parse().unwrap()],
        closed_ips: vec![],
        load_balancer_ips: vec!["203.0.113.9".parse().unwrap()],
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "203.0.113.0/25".parse().unwrap()],
        internal_policy: TrafficPolicy::Local,
        external_policy: TrafficPolicy::Local,
        affinity_seconds: NonZeroU32::new(60),
        health_check_node_port: NonZeroU16::new(32000),
        connection_resets: Some(ConnectionResets::Removed),
        ports: vec![
            port("dns", Protocol::Tcp, 53, 0),
            port("dns", Protocol::Udp, 53, 0),
            port("https", Protocol::Tcp, 443, 30443),
            port("sig", Protocol::Sctp, 2905, 0),
        ],
    };
    assert_eq!(parse_valid(&service), (expected, vec![]));
}

#[test]
fn cluster_ips_of_a_service_of_another_proxy_are_read() {
    for spec in [json!({}), json!({"externalIPs": ["not an address"]})] {
        let mut service = with_spec(spec);
        service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
        let ParsedObject { object, problems, .. } = parsed(&service);
        let Some(ClusterObject::ForeignService(cluster_ips)) = object else { panic!("{object:?}") };
        assert!(cluster_ips.iter().any(|(_, ip)| ip.is_some()) && problems.is_empty(), "{cluster_ips:?}");
    }
}

#[test]
fn services_that_are_not_programmed() {
    let mut headless = with_spec(json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    headless["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    let mut without_spec = with_spec(json!({}));
    without_spec["spec"] = Value::Null;
    for service in [
        with_spec(json!({"clusterIP": "None", "clusterIPs": ["None"]})),
        with_spec(json!({"clusterIP": "None", "clusterIPs": null})),
        with_spec(json!({"clusterIP": "", "clusterIPs": []})),
        with_spec(json!({"clusterIP": null, "clusterIPs": null})),
        with_spec(json!({"type": "ExternalName", "externalName": "example.com"})),
        headless,
        without_spec,
    ] {
        let ParsedObject { object, problems, .. } = parsed(&service);
        assert_eq!((object, problems), (None, vec![]), "{service}");
    }
}

#[test]
fn cluster_ips() {
    let cases = [
        // Leading zeros.
        (json!({"clusterIP": "172.30.0.041", "clusterIPs": ["172.30.0.041"]}), "172.30.0.41", "", vec![]),
        // By family, in either order.
        (
            json!({"clusterIPs": ["fd00::10", "10.96.0.10"], "ipFamilies": ["IPv6", "IPv4"]}),
            "10.96.0.10",
            "fd00::10",
            vec![],
        ),
        // The legacy field alone.
        (json!({"clusterIPs": null, "ipFamilies": null}), "10.96.0.10", "", vec![]),
        (json!({"clusterIP": "fd00::1", "clusterIPs": null, "ipFamilies": null}), "", "fd00::1", vec![]),
        (json!({"clusterIPs": null, "ipFamilies": ["IPv4"]}), "10.96.0.10", "", vec![]),
        // The list alone.
        (json!({"clusterIP": null, "ipFamilies": null}), "10.96.0.10", "", vec![]),
        // An invalid entry does not affect the other.
        (
            json!({"clusterIPs": ["10.96.0.10", "nonsense"], "ipFamilies": ["IPv4", "IPv6"]}),
            "10.96.0.10",
            "",
            vec!["spec.clusterIPs[1]"],
        ),
        (
            json!({"clusterIPs": ["10.96.0.10", "10.96.0.11"], "ipFamilies": ["IPv4", "IPv6"]}),
            "10.96.0.10",
            "",
            vec!["spec.clusterIPs[1]"],
        ),
        (
            json!({"clusterIPs": ["10.96.0.10", "10.96.0.11"], "ipFamilies": null}),
            "10.96.0.10",
            "",
            vec!["spec.clusterIPs[1]"],
        ),
        (
            json!({"clusterIPs": ["::ffff:10.96.0.9", "10.96.0.10"], "ipFamilies": null}),
            "10.96.0.10",
            "",
            vec!["spec.clusterIPs[0]"],
        ),
        // Link-local, by the choice of the cluster.
        (json!({"clusterIPs": ["169.254.64.1"]}), "169.254.64.1", "", vec![]),
    ];
    for (fields, v4, v6, problems) in cases {
        let (service, fields) = parse_valid(&with_spec(fields));
        let text = |ip: Option<std::net::IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
        let found = (text(service.cluster_ips.v4), text(service.cluster_ips.v6));
        assert_eq!((found.0.as_str(), found.1.as_str(), texts(&fields)), (v4, v6, texts(&problems)));
    }
}

#[test]
fn service_without_valid_cluster_ip_is_unusable() {
    for ip in ["10.96.0", "0.0.0.0", "127.0.0.1", "224.0.0.1", "::ffff:10.96.0.10"] {
        let ParsedObject { object, problems, .. } = parsed(&with_spec(json!({"clusterIP": ip, "clusterIPs": [ip]})));
        assert_eq!(object, None);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].field, "spec.clusterIPs[0]");
        assert!(problems[0].message.contains(ip), "{problems:?}");
    }
}

#[test]
fn invalid_external_ips_are_ignored() {
    let bad = [
        "nonsense",
        "127.0.0.2",
        "::1",
        "169.254.169.254",
        "fe80::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:198.51.100.1",
        "",
    ];
    for ip in bad {
        let (service, problems) = parse_valid(&with_dual_spec(json!({"externalIPs": ["198.51.100.07", ip]})));
        assert_eq!(texts(&service.external_ips), ["198.51.100.7"], "{ip}");
        assert_eq!(problems, ["spec.externalIPs[1]"], "{ip}");
        let ingress = json!([{"ip": ip}, {"ip": "198.51.100.7"}]);
        let (service, problems) = parse_valid(&with_ingress(ingress, json!({})));
        assert_eq!(texts(&service.load_balancer_ips), ["198.51.100.7"], "{ip}");
        let expected: &[&str] = if ip.is_empty() { &[] } else { &["status.loadBalancer.ingress[0].ip"] };
        assert_eq!(problems, expected, "{ip}");
    }
}

#[test]
fn external_ip_without_cluster_ip_of_its_family_is_ignored() {
    let (service, problems) = parse_valid(&with_spec(json!({"externalIPs": ["2001:db8::1", "198.51.100.1"]})));
    assert_eq!(
        (texts(&service.external_ips), texts(&problems)),
        (texts(&["198.51.100.1"]), texts(&["spec.externalIPs[0]"]))
    );
}

#[test]
fn load_balancer_modes() {
    let ingress = json!([
        {"ip": "203.0.113.3"},
        {"ip": "203.0.113.2", "ipMode": "VIP"},
        {"ip": "203.0.113.1", "ipMode": "Proxy"},
        {"ip": "203.0.113.4", "ipMode": "Other"},
        {"hostname": "lb.example.com"},
        {"ip": "2001:db8::1"},
        {"ip": "203.0.113.3"},
    ]);
    let (service, problems) = parse_valid(&with_ingress(ingress, json!({})));
    assert_eq!(texts(&service.load_balancer_ips), ["203.0.113.2", "203.0.113.3", "2001:db8::1"]);
    assert_eq!(problems, ["status.loadBalancer.ingress[3].ipMode"]);
}

#[test]
fn invalid_source_range_never_opens_a_vip() {
    let ingress = json!([{"ip": "203.0.113.3"}, {"ip": "2001:db8::1"}]);
    let cases = [
        (json!(["10.0.0.0/8", "2001:db8::/32"]), vec!["203.0.113.3", "2001:db8::1"], vec![]),
        (json!(["10.0.0.0/8"]), vec!["203.0.113.3", "2001:db8::1"], vec![]),
        (json!([]), vec!["203.0.113.3", "2001:db8::1"], vec![]),
        (
            json!(["10.0.0.0/8", "10.1.0.0/99"]),
            vec!["203.0.113.3"],
            vec!["spec.loadBalancerSourceRanges[1]", "spec.loadBalancerSourceRanges"],
        ),
        (
            json!(["all"]),
            vec![],
            vec!["spec.loadBalancerSourceRanges[0]", "spec.loadBalancerSourceRanges", "spec.loadBalancerSourceRanges"],
        ),
    ];
    for (ranges, ips, problems) in cases {
        let service = with_ingress(ingress.clone(), json!({"loadBalancerSourceRanges": ranges}));
        let (service, found) = parse_valid(&service);
        assert_eq!((texts(&service.load_balancer_ips), found), (texts(&ips), texts(&problems)), "{ranges}");
    }
}

#[test]
fn source_ranges_that_others_contain_or_complete_do_not_count() {
    let mut ranges: Vec<_> = (0..8192).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
    ranges.push("10.0.7.0/25".to_owned());
    let fields = json!({ "loadBalancerSourceRanges": ranges });
    let (service, problems) = parse_valid(&with_ingress(json!([{"ip": "203.0.113.9"}]), fields));
    assert_eq!((texts(&service.source_ranges), problems), (vec!["10.0.0.0/11".to_owned()], vec![]));
    let (service, problems) = ServicePolicy::default().apply(service);
    assert_eq!((service.load_balancer_ips.len(), problems.len()), (1, 0));
}

#[test]
fn service_of_any_size_fits_into_a_message() {
    let many = |prefix: &str| (1..=30_000).map(|n| format!("{prefix}{n:x}")).collect::<Vec<_>>();
    let ingress: Vec<_> = many("2001:db8:1::").into_iter().map(|ip| json!({"ip": ip})).collect();
    // Every second one, so that none completes another one.
    let ranges: Vec<_> = (10..).step_by(2).take(4096).map(|n| format!("::{n:x}/128")).collect();
    let fields = json!({ "externalIPs": many("2001:db8::"), "loadBalancerSourceRanges": ranges });
    let (service, problems) = parse_valid(&with_ingress(json!(ingress), fields));
    assert_eq!(problems, [""; 0]);
    // The largest that an operator can set.
    let limits = ServiceLimits { vips: ServiceLimits::MAX_LIST, ..ServiceLimits::default() };
    let (service, problems) = ServicePolicy { limits, ..ServicePolicy::default() }.apply(service);
    assert_eq!((service.source_ranges.len(), problems.len()), (4096, 2));
    let mut port =
        proto::model::ServicePort::new(proto::model::ServicePortKey::new("n", "s", "", Protocol::Tcp), NonZeroU16::MIN);
    port.external_ips = service.external_ips;
    port.load_balancer_ips = service.load_balancer_ips;
    port.source_ranges = service.source_ranges;
    let operation = proto::encoded::EncodedOperation::new(&proto::model::Operation::PutServicePort(port));
    assert!(operation.size() < proto::MAX_MESSAGE_BYTES / 2, "{}", operation.size());
}

#[test]
fn policies() {
    use TrafficPolicy::{Cluster, Local};
    let cases = [
        (json!({}), Cluster, Cluster, vec![]),
        (json!({"internalTrafficPolicy": "Local"}), Local, Cluster, vec![]),
        (json!({"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster"}), Cluster, Cluster, vec![]),
        (json!({"type": "NodePort", "externalTrafficPolicy": "Local"}), Cluster, Local, vec![]),
        (json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}), Cluster, Local, vec![]),
        (json!({"type": "ClusterIP", "externalTrafficPolicy": "Local"}), Cluster, Cluster, vec![]),
        (json!({"externalTrafficPolicy": "Local"}), Cluster, Cluster, vec![]),
        (json!({"externalTrafficPolicy": "Local", "externalIPs": ["198.51.100.1"]}), Cluster, Local, vec![]),
        (json!({"internalTrafficPolicy": "local"}), Cluster, Cluster, vec!["spec.internalTrafficPolicy"]),
        (
            json!({"type": "NodePort", "externalTrafficPolicy": "Zone"}),
            Cluster,
            Cluster,
            vec!["spec.externalTrafficPolicy"],
        ),
    ];
    for (fields, internal, external, problems) in cases {
        let (service, found) = parse_valid(&with_spec(fields.clone()));
        assert_eq!((service.internal_policy, service.external_policy), (internal, external), "{fields}");
        assert_eq!(found, problems, "{fields}");
    }
}

#[test]
fn health_check_node_ports() {
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000});
    let with = |field: &str, value: Value| {
        let mut fields = local.clone();
        fields[field] = value;
        fields
    };
    for (fields, port, problems) in [
        (local.clone(), Some(32000), 0),
        (with("type", json!("NodePort")), None, 0),
        (with("externalTrafficPolicy", json!("Cluster")), None, 0),
        (with("healthCheckNodePort", json!(0)), None, 0),
        (with("healthCheckNodePort", Value::Null), None, 0),
        (with("healthCheckNodePort", json!(70_000)), None, 1),
    ] {
        let (service, found) = parse_valid(&with_spec(fields.clone()));
        assert_eq!(service.health_check_node_port.map(NonZeroU16::get), port, "{fields}");
        assert_eq!(found, vec!["spec.healthCheckNodePort"; problems], "{fields}");
    }
}

#[test]
fn session_affinity() {
    let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let client_ip = |seconds: i32| {
        json!({
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}},
        })
    };
    for (fields, seconds, problems) in [
        (json!({}), None, vec![]),
        (json!({"sessionAffinity": "None"}), None, vec![]),
        (json!({"sessionAffinity": "Cookie"}), None, vec!["spec.sessionAffinity"]),
        (json!({"sessionAffinity": "ClientIP"}), Some(10_800), vec![]),
        (json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {}}}), Some(10_800), vec![]),
        (client_ip(1), Some(1), vec![]),
        (client_ip(86_400), Some(86_400), vec![]),
        (client_ip(86_401), Some(10_800), vec![timeout]),
        (client_ip(0), Some(10_800), vec![timeout]),
        (client_ip(-1), Some(10_800), vec![timeout]),
    ] {
        let (service, found) = parse_valid(&with_spec(fields.clone()));
        assert_eq!(service.affinity_seconds.map(NonZeroU32::get), seconds, "{fields}");
        assert_eq!(found, problems, "{fields}");
    }
}

#[test]
fn invalid_ports_do_not_affect_the_others() {
    let good = json!({"name": "good", "port": 80});
    for (bad, field) in [
        (json!({"name": "bad", "port": 0}), "spec.ports[0].port"),
        (json!({"name": "bad", "port": -1}), "spec.ports[0].port"),
        (json!({"name": "bad", "port": 65_536}), "spec.ports[0].port"),
        (json!({"name": "bad"}), "spec.ports[0].port"),
        (json!({"name": "bad", "port": 80, "protocol": "ICMP"}), "spec.ports[0].protocol"),
        (json!({"name": "bad", "port": 80, "protocol": "tcp"}), "spec.ports[0].protocol"),
    ] {
        let (service, problems) = parse_valid(&with_spec(json!({"ports": [bad, good]})));
        assert_eq!(service.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["good"], "{bad}");
        assert_eq!(problems, [field], "{bad}");
    }
}

#[test]
fn invalid_node_port_does_not_affect_its_port() {
    for node_port in [-1, 65_536] {
        let ports = json!({"ports": [{"port": 80, "nodePort": node_port}]});
        let (service, problems) = parse_valid(&with_spec(ports));
        assert_eq!((service.ports.len(), service.ports[0].node_port), (1, None));
        assert_eq!(problems, ["spec.ports[0].nodePort"]);
    }
}

#[test]
fn first_port_of_a_name_and_protocol_wins() {
    let ports = json!({"ports": [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns", "port": 53, "protocol": "TCP"},
        {"name": "dns", "port": 5353, "protocol": "UDP"},
        {"port": 1},
        {"port": 2},
    ]});
    let (service, problems) = parse_valid(&with_spec(ports));
    let numbers: Vec<_> = service.ports.iter().map(|port| (&*port.name, port.protocol, port.port.get())).collect();
    assert_eq!(numbers, [("", Protocol::Tcp, 1), ("dns", Protocol::Tcp, 53), ("dns", Protocol::Udp, 53)]);
    assert_eq!(problems, ["spec.ports[2]", "spec.ports[4]"]);
}

#[test]
fn object_of_the_wrong_type_is_reported_with_its_field() {
    let ParsedObject { object, problems, .. } = parsed(&with_spec(json!({"ports": [{"port": 80}, {"port": "http"}]})));
    assert_eq!((object, problems.len()), (None, 1));
    assert_eq!(problems[0].field, "spec.ports[1].port");
    assert!(problems[0].message.contains("\"http\""), "{problems:?}");
}

#[test]
fn unknown_fields_are_tolerated() {
    let (_, problems) = parse_valid(&with_spec(json!({"fieldOfTheFuture": {"a": [1]}})));
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn long_values_are_shortened_in_problems() {
    let mut service = with_dual_spec(json!({}));
    service["metadata"]["annotations"] = json!({RESET_CONNECTIONS_ANNOTATION: "\u{1}".repeat(255 << 10)});
    let [problem] = &parsed(&service).problems[..] else { panic!("{:?}", parsed(&service).problems.len()) };
    assert_eq!(problem.message.chars().count(), 256);
    assert!(problem.message.contains("\\u{1}") && problem.message.contains('…'), "{}", problem.message);
}
