//! What the text of a file turns into.

use super::*;

#[track_caller]
fn read(text: &str) -> Contents {
    Contents::read(text, Format::Yaml).unwrap()
}

fn names(contents: &Contents) -> Vec<String> {
    contents.objects.keys().map(|(kind, name)| format!("{kind} {name}")).collect()
}

#[test]
fn names_of_manifests() {
    for (name, format) in [
        ("a.yaml", Some(Format::Yaml)),
        ("a.b.yml", Some(Format::Yaml)),
        ("a.json", Some(Format::Json)),
        (".a.yaml", None),
        (".yaml", None),
        (".a.yaml.swp", None),
        ("a.yaml~", None),
        ("a.yaml.bak", None),
        ("..data", None),
        ("README", None),
        ("yaml", None),
    ] {
        assert_eq!(Format::of(name), format, "{name}");
    }
}

#[test]
fn many_documents() {
    let contents = read(
        "---\n# first\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {clusterIP: 10.0.0.1}\n\
         ---\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1}\naddressType: IPv4\n\
         ---\n# nothing\n",
    );
    assert_eq!(names(&contents), ["Service shop/a", "EndpointSlice default/a-1", "Node n1"]);
    assert_eq!(contents.complaints, Vec::<String>::new());
    assert_eq!(read(""), Contents::default());
    assert_eq!(read("# only a comment\n"), Contents::default());
}

#[test]
fn lists() {
    let contents = read(
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Node, metadata: {name: n1}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}\n\
         - {metadata: {name: lost}}\n\
         ---\napiVersion: v1\nkind: NodeList\nitems: [{metadata: {name: n2}}]\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: [{metadata: {name: s}, addressType: IPv4}]\n\
         ---\napiVersion: v1\nkind: List\n",
    );
    assert_eq!(names(&contents), ["Service default/a", "EndpointSlice default/s", "Node n1", "Node n2"]);
    assert_eq!(
        contents.complaints,
        [
            "document 1 (line 1), item 3: apiVersion or kind is missing",
            "document 4 (line 16): items of the list are missing",
        ]
    );
}

#[test]
fn json() {
    let node = |name: &str| format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}"}}}}"#);
    let text = format!("\u{feff}{}\n{} []", node("n1"), node("n2"));
    let contents = Contents::read(&text, Format::Json).unwrap();
    assert_eq!(names(&contents), ["Node n1", "Node n2"]);
    assert_eq!(contents.complaints, ["document 3: apiVersion or kind is missing"]);
    assert!(Contents::read("{", Format::Json).unwrap_err().contains("line 1"));
}

#[test]
fn documents_that_are_of_no_use() {
    for (document, complaint) in [
        ("apiVersion: v1\nkind: ConfigMap", None),
        ("apiVersion: apps/v1\nkind: Deployment", None),
        ("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute", None),
        ("apiVersion: v1\nkind: Servcie", Some("Servcie of v1 is not read")),
        ("apiVersion: v1\nkind: Endpoints", Some("Endpoints of v1 is not read")),
        ("apiVersion: v1\nkind: EndpointSlice", Some("EndpointSlice of v1 is not read")),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice",
            Some("EndpointSlice of discovery.k8s.io/v1beta1 is not read"),
        ),
        ("apiVersion: v2\nkind: Service", Some("Service of v2 is not known")),
        ("apiVersion: serving.knative.dev/v1\nkind: Service", Some("Service of serving.knative.dev/v1 is not known")),
        ("apiVersion: v1", Some("apiVersion or kind is missing")),
        ("kind: Service", Some("apiVersion or kind is missing")),
        ("kind: 5\napiVersion: v1", Some("apiVersion or kind is missing")),
        ("just text", Some("apiVersion or kind is missing")),
        ("apiVersion: v1\nkind: Service\nmetadata: {}", Some("metadata.name is missing")),
        ("apiVersion: v1\nkind: Service", Some("metadata.name is missing")),
        ("apiVersion: v1\nkind: Service\nmetadata: text", Some("metadata.name is missing")),
    ] {
        let contents = read(&format!("{document}\n---\napiVersion: v1\nkind: Node\nmetadata: {{name: good}}\n"));
        assert_eq!(names(&contents), ["Node good"], "{document}");
        let expected: Vec<_> = complaint.iter().map(|complaint| format!("document 1 (line 1): {complaint}")).collect();
        assert_eq!(contents.complaints, expected, "{document}");
    }
}

#[test]
fn document_of_the_wrong_shape_is_a_problem_of_its_object() {
    let contents = read("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: http}]}\n");
    let parsed = contents.objects.values().next().unwrap();
    assert_eq!(parsed.name, ObjectName::new("default", "a"));
    assert_eq!((parsed.object.as_ref(), parsed.problems[0].field.as_str()), (None, "spec.ports[0].port"));
}

#[test]
fn service_without_a_cluster_ip() {
    let service = |spec: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {spec}\n");
    for (spec, complaints) in [
        ("{clusterIP: 10.0.0.1}", 0),
        ("{clusterIPs: [10.0.0.1]}", 0),
        ("{clusterIP: None}", 0),
        ("{type: ExternalName}", 0),
        ("{type: NodePort}", 1),
        ("{clusterIP: ''}", 1),
    ] {
        let contents = read(&service(spec));
        assert_eq!(contents.complaints.len(), complaints, "{spec}: {:?}", contents.complaints);
        assert_eq!(contents.objects.len(), 1);
    }
}

#[test]
fn first_of_two_documents_wins() {
    let service =
        |ip: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{clusterIP: {ip}}}\n");
    let contents = read(&format!("{}---\n{}", service("10.0.0.1"), service("10.0.0.2")));
    assert_eq!(contents.objects, read(&service("10.0.0.1")).objects);
    assert_eq!(
        contents.complaints,
        ["document 2 (line 6): Service default/a is in an earlier document, which is used"]
    );
}

#[test]
fn port_of_a_slice_needs_no_name() {
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
fn anchors_work_and_do_not_explode() {
    let contents = read(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: &name n1\n  labels: {topology.kubernetes.io/zone: *name}\n",
    );
    assert_eq!(names(&contents), ["Node n1"]);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let last = format!("*a{}, ", n - 1).repeat(9);
        bomb.push_str(&format!("a{n}: &a{n} [{last}]\n"));
    }
    Contents::read(&bomb, Format::Yaml).unwrap_err();
}

#[test]
fn text_that_is_no_yaml() {
    for text in ["a: [", "a: b: c", "a: 1\n b: 2\n", "a: 1\na: 2\n"] {
        let error = Contents::read(text, Format::Yaml).expect_err(text);
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
