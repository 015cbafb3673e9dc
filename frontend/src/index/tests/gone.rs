//! Endpoints that do not serve are gone while their Node is.

use super::*;
use crate::object::ConnectionResets;

#[test]
fn endpoints_are_gone_while_their_node_is_and_others_exist() {
    let unserving = SliceEndpoint { ready: false, serving: false, ..endpoint("10.0.0.9", "node-9") };
    let slice = slice("a", "web", vec![endpoint("10.0.0.1", "node-1"), unserving]);
    let policy = ServicePolicy { connection_resets: ConnectionResets::NodeGone, ..ServicePolicy::default() };
    let (mut index, mut views) = (Index::new(UNIX_EPOCH, ClusterInfo::default(), policy), Views::new());
    [put(service("web", "10.96.0.1")), put(slice)].into_iter().for_each(|update| index.apply(update));
    let mut gone_after = |update: SourceUpdate| {
        index.apply(update);
        apply_changes(&mut index, &mut views);
        views[&key("web")].gone.v4.default.len()
    };
    let delete = |name: &str| SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", name));
    for (update, gone) in [
        (delete("node-9"), 0),
        (put(node("node-1", "")), 1),
        (put(node("node-9", "")), 0),
        (delete("node-9"), 1),
        (delete("node-1"), 0),
    ] {
        let what = format!("{update:?}");
        assert_eq!(gone_after(update), gone, "{what}");
    }
}
