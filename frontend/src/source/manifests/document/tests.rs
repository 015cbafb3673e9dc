//! The objects and problems that a text is parsed into.

use super::*;
use crate::object::ObjectName;

#[track_caller]
fn read(text: &str) -> FileContents {
    FileContents::read(text, ManifestFormat::Yaml).unwrap()
}

fn names(contents: &FileContents) -> Vec<String> {
    contents.objects.keys().map(|(kind, name)| format!("{kind} {name}")).collect()
}

#[test]
fn format_by_file_name() {
    for (name, format) in [
        ("a.yaml", Some(ManifestFormat::Yaml)),
        ("a.b.yml", Some(ManifestFormat::Yaml)),
        ("a.json", Some(ManifestFormat::Json)),
        (".a.yaml", None),
        (".yaml", None),
        (".a.yaml.swp", None),
        ("a.yaml~", None),
        ("a.yaml.bak", None),
        ("..data", None),
        ("README", None),
        ("yaml", None),
    ] {
        assert_eq!(ManifestFormat::of(name.as_ref()), format, "{name}");
    }
}

#[test]
fn many_documents() {
    let contents = read(
        "---\n# first\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\n\
         spec: {clusterIP: 10.0.0.1}\n\
         ---\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1}\naddressType: IPv4\n\
         ---\n# nothing\n",
    );
    assert_eq!(names(&contents), ["Service shop/a", "EndpointSlice default/a-1", "Node n1"]);
    assert_eq!(contents.problems, Vec::<String>::new());
    assert_eq!(read(""), FileContents::default());
    assert_eq!(read("# only a comment\n"), FileContents::default());
}

#[test]
fn lists() {
    let contents = read(
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Node, metadata: {name: n1}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}\n\
         - {metadata: {name: lost}}\n\
         ---\napiVersion: v1\nkind: List\n",
    );
    assert_eq!(names(&contents), ["Service default/a", "Node n1"]);
    assert_eq!(
        contents.problems,
        [
            "document 1 (line 1), item 3: apiVersion or kind is missing; ignored",
            "document 2 (line 8): the list has no items; ignored",
        ]
    );
}

#[test]
fn json() {
    let node = |name: &str| format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}}}"#);
    let text = format!("\u{feff}{}\n{} []", node("n1"), node("n2"));
    let contents = FileContents::read(&text, ManifestFormat::Json).unwrap();
    assert_eq!(names(&contents), ["Node n1", "Node n2"]);
    assert_eq!(contents.problems, ["document 3: apiVersion or kind is missing; ignored"]);
    assert!(FileContents::read("{", ManifestFormat::Json).unwrap_err().contains("line 1"));
}

/// YAML reads words such as `on` as another type.
#[test]
fn namespace_of_another_type_is_a_problem_of_the_object() {
    for (namespace, is_used) in [("true", false), ("123", false), ("[]", false), ("null", true), ("''", true)] {
        let contents = read(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: {namespace}}}\n\
             spec: {{clusterIP: 10.0.0.1}}"
        ));
        let [parsed] = &contents.objects.values().collect::<Vec<_>>()[..] else { panic!("{contents:?}") };
        let fields: Vec<_> = parsed.problems.iter().map(|problem| problem.field.as_str()).collect();
        let name = if is_used { "default/a" } else { "a" };
        assert_eq!((parsed.name.to_string().as_str(), parsed.object.is_some()), (name, is_used), "{namespace}");
        assert_eq!(fields, ["metadata.namespace"][..usize::from(!is_used)], "{parsed:?}");
    }
}

#[test]
fn unsupported_documents() {
    for (document, problem) in [
        ("apiVersion: apps/v1\nkind: Deployment", "Deployment of apps/v1 is not supported; ignored"),
        ("apiVersion: v1\nkind: Servcie", "Servcie of v1 is not supported; ignored"),
        ("apiVersion: v1\nkind: Endpoints", "Endpoints of v1 is not supported; ignored"),
        ("apiVersion: v1\nkind: EndpointSlice", "EndpointSlice of v1 is not supported; ignored"),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice",
            "EndpointSlice of discovery.k8s.io/v1beta1 is not supported; ignored",
        ),
        ("apiVersion: v2\nkind: Service", "Service of v2 is not supported; ignored"),
        (
            "apiVersion: serving.knative.dev/v1\nkind: Service",
            "Service of serving.knative.dev/v1 is not supported; ignored",
        ),
        ("apiVersion: v1", "apiVersion or kind is missing; ignored"),
        ("kind: Service", "apiVersion or kind is missing; ignored"),
        ("kind: 5\napiVersion: v1", "apiVersion or kind is missing; ignored"),
        ("just text", "apiVersion or kind is missing; ignored"),
        ("apiVersion: v1\nkind: Service\nmetadata: {}", "metadata.name is missing; ignored"),
        ("apiVersion: v1\nkind: Service", "metadata.name is missing; ignored"),
        ("apiVersion: v1\nkind: Service\nmetadata: text", "metadata.name is missing; ignored"),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: 123}", "metadata.name is not a string; ignored"),
    ] {
        let contents = read(&format!("{document}\n---\napiVersion: v1\nkind: Node\nmetadata: {{name: good}}\n"));
        assert_eq!(names(&contents), ["Node good"], "{document}");
        assert_eq!(contents.problems, [format!("document 1 (line 1): {problem}")], "{document}");
    }
}

#[test]
fn document_of_the_wrong_type_is_a_problem_of_its_object() {
    let contents = read("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: http}]}\n");
    let parsed = contents.objects.values().next().unwrap();
    assert_eq!(parsed.name, ObjectName::new("default", "a"));
    assert_eq!((parsed.object.as_ref(), parsed.problems[0].field.as_str()), (None, "spec.ports[0].port"));
}

#[test]
fn service_without_a_cluster_ip() {
    let service = |spec: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {spec}\n");
    for (spec, problems) in [
        ("{clusterIP: 10.0.0.1}", 0),
        ("{clusterIPs: [10.0.0.1]}", 0),
        ("{clusterIP: None}", 0),
        ("{type: ExternalName}", 0),
        ("{type: NodePort}", 1),
        ("{clusterIP: ''}", 1),
    ] {
        let contents = read(&service(spec));
        assert_eq!(contents.problems.len(), problems, "{spec}: {:?}", contents.problems);
        assert_eq!(contents.objects.len(), 1);
    }
}

#[test]
fn first_of_two_documents_is_used() {
    let service =
        |ip: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{clusterIP: {ip}}}\n");
    let contents = read(&format!("{}---\n{}", service("10.0.0.1"), service("10.0.0.2")));
    assert_eq!(contents.objects, read(&service("10.0.0.1")).objects);
    assert_eq!(
        contents.problems,
        ["document 2 (line 6): Service default/a is in an earlier document, which is used instead"]
    );
}

#[test]
fn port_name_of_a_slice_is_optional() {
    let contents = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{port: 80}]\n\
         metadata: {name: s, labels: {kubernetes.io/service-name: a}}\n",
    );
    let parsed = contents.objects.values().next().unwrap();
    assert_eq!(parsed.problems, []);
    assert!(
        matches!(&parsed.object, Some(crate::object::ClusterObject::EndpointSlice(slice)) if slice.ports.len() == 1)
    );
}

#[test]
fn aliases_work_within_limits() {
    let contents = read(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: &name n1\n  labels: {topology.kubernetes.io/zone: *name}\n",
    );
    assert_eq!(names(&contents), ["Node n1"]);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let last = format!("*a{}, ", n - 1).repeat(9);
        bomb.push_str(&format!("a{n}: &a{n} [{last}]\n"));
    }
    FileContents::read(&bomb, ManifestFormat::Yaml).unwrap_err();
}

#[test]
fn invalid_yaml() {
    for text in ["a: [", "a: b: c", "a: 1\n b: 2\n", "a: 1\na: 2\n"] {
        let error = FileContents::read(text, ManifestFormat::Yaml).expect_err(text);
        assert!(error.contains("line "), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn large_file() {
    let documents: String = (0..5_000)
        .map(|n| {
            format!("---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{n}}}\nspec: {{podCIDRs: [10.0.0.0/24]}}\n")
        })
        .collect();
    assert_eq!(read(&documents).objects.len(), 5_000);
}

#[test]
fn unknown_fields_are_problems_of_the_object() {
    let contents = read(
        "{apiVersion: v1, kind: Service, metadata: {name: web, label: {a: b}}, spec: {clusterIP: 10.0.0.1, \
         externalIPS: [198.51.100.1], ports: [{port: 80, targetPort: http, node_port: 30080}], selector: null}}",
    );
    let [web] = contents.objects.values().collect::<Vec<_>>()[..] else { panic!("{contents:?}") };
    let fields: Vec<_> = web.problems.iter().map(|problem| &*problem.field).collect();
    assert_eq!(fields, ["metadata.label", "spec.externalIPS", "spec.ports[0].node_port"]);
    assert!(web.object.is_some() && web.problems[0].message.contains("is not a field"), "{web:?}");
}
