//! Topology hints count only for Nodes and zones that exist.

use super::*;

#[test]
fn hints_that_name_no_node_or_zone_are_ignored_until_it_exists() {
    let hinted = |last: u8, nodes: &[&str], zone: &str| SliceEndpoint {
        node_hints: nodes.iter().map(|&node| node.into()).collect(),
        zone_hints: vec![zone.into()],
        ..endpoint(&format!("10.0.0.{last}"), "node-3")
    };
    let endpoints = vec![hinted(1, &["node-1", "x-1"], "zone-a"), hinted(2, &["node-3", "x-2"], "zone-b")];
    let slice = slice("a", "web", endpoints);
    let (mut index, mut views) =
        indexed([put(node("node-1", "zone-a")), put(service("web", "10.96.0.1")), put(slice.clone())]);
    let names = |views: &Views| {
        let pools = &views[&key("web")].cluster.v4;
        let names = pools.nodes.keys().chain(pools.zones.keys());
        names.map(ToString::to_string).collect::<Vec<_>>()
    };
    let of_slice = |index: &Index| {
        let problems = problems(index).into_iter().filter(|(kind, ..)| *kind == ObjectKind::EndpointSlice);
        problems.flat_map(|(_, _, problems)| problems).collect::<Vec<_>>()
    };
    assert_eq!(names(&views), ["node-1", "zone-a"]);
    let [problem] = &of_slice(&index)[..] else { panic!("{:?}", of_slice(&index)) };
    assert_eq!(problem.field, "endpoints[0].hints.forNodes");
    assert!(problem.message.starts_with("2 hints") && problem.message.contains("x-1"), "{problem:?}");

    let mut after = |update| {
        index.apply(update);
        apply_changes(&mut index, &mut views);
        (names(&views), of_slice(&index).len())
    };
    let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let delete = |kind, name: ObjectName| SourceUpdate::Delete(kind, name);
    assert_eq!(after(put(node("x-1", "zone-b"))), (list(&["node-1", "x-1", "zone-a", "zone-b"]), 1));
    assert_eq!(after(put(node("x-2", ""))), (list(&["node-1", "x-1", "x-2", "zone-a", "zone-b"]), 0));
    assert_eq!(after(put(node("x-1", ""))).0, ["node-1", "x-1", "x-2", "zone-a"]);
    let gone = ObjectName::new("", "x-2");
    assert_eq!(after(delete(ObjectKind::Node, gone)), (list(&["node-1", "x-1", "zone-a"]), 1));
    index.apply(delete(ObjectKind::EndpointSlice, slice.name));
    apply_changes(&mut index, &mut views);
    assert_eq!(of_slice(&index), []);
}
