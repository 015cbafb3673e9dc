//! Of the nodes without a Node object, a limited number has local pools.

use super::*;

/// A slice of the Service `web`, with an endpoint on each of 300 nodes.
fn on_missing_nodes(prefix: &str, port: &str) -> SliceObject {
    let on_node = |at: usize| endpoint(&format!("10.0.{}.{}", at / 250, at % 250), &format!("{prefix}-{at:03}"));
    let mut slice = slice(prefix, "web", (0..300).map(on_node).collect());
    slice.ports[0].name = port.into();
    slice
}

fn local_nodes(views: &Views) -> BTreeSet<Arc<str>> {
    views.values().flat_map(|view| view.local.v4.nodes.keys()).cloned().collect()
}

#[test]
fn local_pools_of_missing_nodes_are_bounded_until_these_exist() {
    let objects = || {
        let known = slice("known", "web", vec![endpoint("10.1.0.1", "node-0")]);
        let others = put(on_missing_nodes("made-up", "http"));
        let web = ServiceObject { external_policy: TrafficPolicy::Local, ..service("web", "10.96.0.1") };
        [put(node("node-0", "")), put(web), put(known), others]
    };
    let (mut index, mut views) = indexed(objects());
    let has = |views: &Views, name: &str| local_nodes(views).contains(name);
    assert_eq!((local_nodes(&views).len(), has(&views, "node-0")), (257, true));
    assert!(has(&views, "made-up-255") && !has(&views, "made-up-256"));
    assert_eq!(views[&key("web")].cluster.v4.default.len(), 301, "all are used by policy Cluster");
    assert_eq!(index.problems.counts().limited_services, 1);
    assert!(messages(&index, "web")[0].contains("more than 256 nodes"), "{:?}", messages(&index, "web"));
    let explained = index.explain(&ObjectName::new("ns", "web"), "made-up-299", |_| true).unwrap();
    let local = explained[0].endpoints.iter().filter(|one| one.endpoint.node.as_deref() == Some("made-up-299"));
    assert_eq!(local.map(|one| one.local.describe().0).collect::<Vec<_>>(), ["missing-node"]);

    let mut after = |update| {
        index.apply(update);
        apply_changes(&mut index, &mut views);
        (local_nodes(&views), messages(&index, "web").len())
    };
    let delete = |name: &str| SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", name));
    let (nodes, _) = after(put(node("made-up-299", "")));
    assert!(nodes.contains("made-up-299") && nodes.len() == 258);
    let (nodes, _) = after(put(node("made-up-000", "")));
    assert!(nodes.contains("made-up-256") && nodes.len() == 259, "it leaves its place to another one");
    after(delete("made-up-299"));
    assert_eq!(after(delete("made-up-000")), (local_nodes(&indexed(objects()).1), 1));
    let (nodes, problems) = after(delete("node-0"));
    assert_eq!((nodes.len(), problems), (301, 0), "without any Node nothing is known about nodes");
    after(put(node("node-0", "")));
    assert_eq!(views, indexed(objects()).1);
}

#[test]
fn missing_nodes_of_all_ports_are_bounded_together() {
    let mut web = service("web", "10.96.0.1");
    web.ports.push(ServiceObjectPort { name: "other".into(), port: number(81), ..web.ports[0].clone() });
    let objects = [put(node("node-0", "")), put(web), put(on_missing_nodes("b", "http"))];
    let (mut index, mut views) = indexed(objects.clone());
    let alone = views.clone();
    assert!(local_nodes(&views).contains("b-255") && local_nodes(&views).len() == 256);
    index.apply(put(on_missing_nodes("a", "other")));
    apply_changes(&mut index, &mut views);
    assert!(local_nodes(&views).contains("a-255") && local_nodes(&views).len() == 256);
    assert_eq!(views, indexed(objects.into_iter().chain([put(on_missing_nodes("a", "other"))])).1);
    index.apply(SourceUpdate::Delete(ObjectKind::EndpointSlice, ObjectName::new("ns", "a")));
    apply_changes(&mut index, &mut views);
    assert_eq!(views, alone);
}
