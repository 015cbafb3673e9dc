//! The objects that the Helm chart renders (`charts/fairlead/tests/golden`) have only fields of their Kubernetes types,
//! and the arguments of their containers are valid flags of `fairlead`. `.ci/charts` compares the golden files with
//! Helm's output.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::fairlead;
use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, core::v1 as core, networking::v1 as networking,
    policy::v1 as policy, rbac::v1 as rbac,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The custom resources in the chart with the fields that it may set, from the documentation of cert-manager
/// (`cert-manager.io/v1`) and the Prometheus Operator (`monitoring.coreos.com/v1`). `*` is any name.
const CUSTOM: &[(&str, &str, &[&str])] = &[
    ("cert-manager.io/v1", "Issuer", &["spec.selfSigned", "spec.ca.secretName"]),
    (
        "cert-manager.io/v1",
        "Certificate",
        &[
            "spec.isCA",
            "spec.commonName",
            "spec.secretName",
            "spec.dnsNames",
            "spec.duration",
            "spec.usages",
            "spec.privateKey.algorithm",
            "spec.privateKey.size",
            "spec.privateKey.rotationPolicy",
            "spec.issuerRef.name",
            "spec.issuerRef.kind",
            "spec.issuerRef.group",
        ],
    ),
    (
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        &["spec.selector.matchLabels.*", "spec.endpoints.port", "spec.endpoints.path", "spec.endpoints.interval"],
    ),
    (
        "monitoring.coreos.com/v1",
        "PodMonitor",
        &[
            "spec.selector.matchLabels.*",
            "spec.podMetricsEndpoints.port",
            "spec.podMetricsEndpoints.path",
            "spec.podMetricsEndpoints.interval",
            "spec.podMetricsEndpoints.honorLabels",
        ],
    ),
    (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        &[
            "spec.groups.name",
            "spec.groups.rules.alert",
            "spec.groups.rules.expr",
            "spec.groups.rules.for",
            "spec.groups.rules.labels.*",
            "spec.groups.rules.annotations.*",
        ],
    ),
];

fn golden() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/fairlead/tests/golden");
    let entries = fs::read_dir(&directory).expect("the golden files");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// All objects of all golden files, each with the file's name.
fn objects() -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    for path in golden() {
        let text = fs::read_to_string(&path).expect("a golden file");
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        objects.extend(documents.into_iter().filter(|object| !object.is_null()).map(|object| (name.clone(), object)));
    }
    assert!(objects.len() > 50, "only {} objects", objects.len());
    objects
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

// === Types ===

/// The differences between an object and its type.
fn problems(object: &Value) -> Vec<String> {
    match (text(object, "apiVersion"), text(object, "kind")) {
        ("v1", "ConfigMap") => of_type::<core::ConfigMap>(object),
        ("v1", "Pod") => of_type::<core::Pod>(object),
        ("v1", "Secret") => of_type::<core::Secret>(object),
        ("v1", "Service") => of_type::<core::Service>(object),
        ("v1", "ServiceAccount") => of_type::<core::ServiceAccount>(object),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            of_type::<admission::ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            of_type::<admission::ValidatingAdmissionPolicyBinding>(object)
        }
        ("apps/v1", "DaemonSet") => of_type::<apps::DaemonSet>(object),
        ("apps/v1", "Deployment") => of_type::<apps::Deployment>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => of_type::<networking::NetworkPolicy>(object),
        ("policy/v1", "PodDisruptionBudget") => of_type::<policy::PodDisruptionBudget>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => of_type::<rbac::ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => of_type::<rbac::ClusterRoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => of_type::<rbac::Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => of_type::<rbac::RoleBinding>(object),
        (version, kind) => match CUSTOM.iter().find(|custom| (custom.0, custom.1) == (version, kind)) {
            Some((.., known)) => leaves(&object["spec"], "spec")
                .into_iter()
                .filter(|path| !known.iter().any(|known| matches(known, path)))
                .map(|path| format!("{path}: unknown field"))
                .collect(),
            None => vec![format!("unknown type {version} {kind}")],
        },
    }
}

/// Deserializes an object into its type and serializes it again, which loses unknown fields.
fn of_type<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(object.clone()) {
        Ok(typed) => {
            let mut problems = Vec::new();
            let kept = serde_json::to_value(&typed).expect("JSON");
            lost(object, &kept, String::new(), &mut problems);
            problems
        }
        Err(error) => vec![error.to_string()],
    }
}

fn lost(object: &Value, kept: &Value, path: String, problems: &mut Vec<String>) {
    match (object, kept) {
        (Value::Object(object), Value::Object(kept)) => {
            for (key, value) in object {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => lost(value, kept, path, problems),
                    // Empty is the same as absent.
                    None if value.as_object().is_some_and(|map| map.is_empty())
                        || value.as_array().is_some_and(Vec::is_empty) => {}
                    None => problems.push(format!("{path}: no such field")),
                }
            }
        }
        (Value::Array(object), Value::Array(kept)) if object.len() == kept.len() => {
            for (index, (value, kept)) in object.iter().zip(kept).enumerate() {
                lost(value, kept, format!("{path}[{index}]"), problems);
            }
        }
        (object, kept) if object == kept => {}
        (object, kept) => problems.push(format!("{path}: {object} is read as {kept}")),
    }
}

/// The paths of all values that are not objects, without the indexes of lists.
fn leaves(value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().flat_map(|(key, value)| leaves(value, &format!("{path}.{key}"))).collect()
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().flat_map(|value| leaves(value, path)).collect()
        }
        _ => vec![path.to_owned()],
    }
}

fn matches(known: &str, path: &str) -> bool {
    known.strip_suffix('*').map_or(known == path, |prefix| path.starts_with(prefix))
}

#[test]
fn objects_match_their_kubernetes_types() {
    for (file, object) in objects() {
        let name = text(&object["metadata"], "name");
        assert_eq!(problems(&object), [""; 0], "{file}: {} {name}", text(&object, "kind"));
    }
}

#[test]
fn unknown_fields_are_found() {
    let (_, object) =
        objects().into_iter().find(|(_, object)| text(object, "kind") == "DaemonSet").expect("there is a DaemonSet");
    let changed = |pointer: &str, key: &str, value: Value| {
        let mut object = object.clone();
        object.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer).insert(key.into(), value);
        problems(&object)
    };
    let container = "/spec/template/spec/containers/0";
    assert_eq!(changed("/spec", "replicas", 3.into()), [".spec.replicas: no such field"]);
    let lost = changed(container, "readynessProbe", serde_json::json!({"periodSeconds": 1}));
    assert_eq!(lost, [".spec.template.spec.containers[0].readynessProbe: no such field"]);
    assert_eq!(changed(container, "name", 1.into()).len(), 1);
    assert_eq!(changed("", "apiVersion", "apps/v2".into()), ["unknown type apps/v2 DaemonSet"]);
}

// === Flags ===

/// The name and the arguments of each container.
fn command_lines() -> Vec<(String, Vec<String>)> {
    let mut lines = Vec::new();
    for (file, object) in objects() {
        let pod = match text(&object, "kind") {
            "Pod" => &object["spec"],
            "Deployment" | "DaemonSet" => &object["spec"]["template"]["spec"],
            _ => continue,
        };
        for container in pod["containers"].as_array().expect("containers") {
            let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).expect("a list of strings");
            lines.push((format!("{file}: {}", text(container, "name")), arguments));
        }
    }
    assert!(lines.len() > 9, "only {} containers", lines.len());
    lines
}

/// The error of `fairlead` for these arguments, if any. With `--help` at the end it parses them and does not start.
fn parse_error(arguments: &[String]) -> Option<String> {
    let output = fairlead().args(arguments).arg("--help").output().expect("start fairlead");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(stderr)
}

#[test]
fn arguments_are_valid() {
    for (container, arguments) in command_lines() {
        assert_eq!(parse_error(&arguments), None, "{container}: {arguments:?}");
    }
}

/// `fairlead` checks which flags need or exclude each other after it has parsed all, which it does not do with
/// `--help`. After that a frontend fails to read its TLS files, which do not exist; a backend would change the kernel.
#[test]
fn frontend_arguments_pass_validation() {
    for (container, arguments) in command_lines() {
        if arguments[0] == "frontend" {
            let output = fairlead().args(&arguments).output().expect("start fairlead");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{container}: {stderr}");
            assert!(stderr.contains("cannot load TLS files: --tls-"), "{container}: {stderr}");
        }
    }
}

#[test]
fn invalid_arguments_are_found() {
    let mut lines = command_lines().into_iter();
    let (_, arguments) = lines.find(|(_, arguments)| arguments[0] == "backend").expect("a backend");
    for wrong in ["--no-such-flag", "--listen=x", "--max-loss=101", "--log-format=xml"] {
        let arguments = [&arguments[..], &[wrong.to_owned()]].concat();
        let error = parse_error(&arguments).unwrap_or_else(|| panic!("{wrong} is accepted"));
        assert!(error.contains(wrong.split('=').next().expect("a flag")), "{error}");
    }
}
