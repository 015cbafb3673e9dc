//! The call `Changes`: the last changes of service ports.

use std::sync::Arc;

use proto::{convert::unix_micros, v1};
use tonic::Status;

use super::require_ready;
use crate::{cluster::ClusterState, context::MAX_ANSWER_ENTRIES, identity::Identity, log::LoggedChange};

/// To clients that see the cluster: with the objects that changes come from, and summaries. If there are more than
/// [`MAX_ANSWER_ENTRIES`], the list is complete since a later time.
pub(super) fn response(
    cluster: &ClusterState,
    request: &v1::ChangesRequest,
    client: &Identity,
) -> Result<v1::ChangesResponse, Status> {
    let v1::ChangesRequest { node, namespace, name, since_micros } = request;
    require_ready(cluster)?;

    // Commits need the log, which is locked only to collect what the answer follows from.
    let log = cluster.log();
    let since = log.changes_while(node, |at| unix_micros(at) > *since_micros);
    let complete_since = log.changes.complete_since(namespace, node);
    drop(log);
    // Rounded up, since the time of a change is rounded down.
    let mut complete_since_micros = unix_micros(complete_since) + 1;

    let is_named = |change: &&Arc<LoggedChange>| {
        let key = &change.key;
        (namespace.is_empty() || *key.namespace == **namespace) && (name.is_empty() || *key.name == **name)
    };
    let concerns = |change: &&Arc<LoggedChange>| node.is_empty() || since.concerns(node, change);
    let mut named = since.changes.iter().filter(is_named).filter(concerns);
    let changes: Vec<_> = named.by_ref().take(MAX_ANSWER_ENTRIES).map(|change| wire(change, client)).collect();
    if let (Some(_), Some(oldest)) = (named.next(), changes.last()) {
        // Others of the same time may have been left out.
        complete_since_micros = complete_since_micros.max(oldest.at_micros + 1);
    }
    Ok(v1::ChangesResponse { complete_since_micros, changes })
}

fn wire(change: &LoggedChange, client: &Identity) -> v1::Change {
    let LoggedChange { at, revision, key, summary, cause, recipients: _ } = change;
    let mut wire = v1::Change {
        at_micros: unix_micros(*at),
        revision: revision.0,
        service_port: key.to_string(),
        ..v1::Change::default()
    };
    if !client.sees_cluster() {
        // The summary may name endpoints that only other nodes use.
        return wire;
    }

    wire.summary.clone_from(summary);
    if let Some(cause) = cause {
        wire.object = format!("{} {}", cause.kind, cause.name);
        wire.version = cause.origin.version.0;
        wire.manager = cause.origin.manager.as_deref().unwrap_or_default().to_owned();
    }
    wire
}

#[cfg(test)]
mod tests {
    use proto::model::{Epoch, SourceVersion};

    use crate::{
        Config,
        index::{Index, ServicePolicy},
        log::ChangeLog,
        object::{ClusterObject, Origin, ParsedObject, SourceUpdate},
        testing::{endpoint, initial, node, parsed, service, slice, time},
    };

    use super::*;

    fn commit(cluster: &ClusterState, updates: impl IntoIterator<Item = SourceUpdate>) {
        updates.into_iter().for_each(|update| cluster.index().apply(update));
        let commit = cluster.commit(|_| ()).unwrap();
        cluster.publish(commit.revision, commit.kind_versions);
    }

    fn written(object: impl Into<ClusterObject>, version: u64, manager: &str) -> SourceUpdate {
        let origin = Origin { version: SourceVersion(version), manager: Some(manager.into()) };
        SourceUpdate::Apply(ParsedObject { origin, ..parsed(object) })
    }

    /// A Service whose slice loses an endpoint, and then moves the other one.
    fn cluster() -> ClusterState {
        let index = Index::new(time(0), Default::default(), ServicePolicy::default());
        let cluster = ClusterState::new(Epoch(1), index, ChangeLog::new(Config::default().history));
        let two = slice("x", "web", vec![endpoint("10.0.0.1", "node-0"), endpoint("10.0.0.2", "node-0")]);
        let nodes = ["node-0", "node-1"].map(|name| ClusterObject::from(node(name, "zone-a")));
        commit(&cluster, initial(nodes.into_iter().chain([service("web", "10.96.0.1").into(), two.into()])));
        let one = slice("x", "web", vec![endpoint("10.0.0.1", "node-0")]);
        commit(&cluster, [written(one, 7, "endpointslice-controller")]);
        commit(&cluster, [written(slice("y", "web", vec![]), 8, "kubectl")]);
        commit(&cluster, [written(slice("x", "web", vec![endpoint("10.0.0.1", "node-1")]), 9, "kubectl")]);
        cluster
    }

    fn changes(cluster: &ClusterState, request: v1::ChangesRequest, client: &Identity) -> Vec<v1::Change> {
        response(cluster, &request, client).unwrap().changes
    }

    #[test]
    fn changes_name_their_object_and_manager() {
        let cluster = cluster();
        let all = changes(&cluster, v1::ChangesRequest::default(), &Identity::Trusted);
        let [moved, lost] = &all[..] else { panic!("{all:?}") };
        assert_eq!(lost.summary, "endpoints 2 -> 1: -10.0.0.2:8080");
        let cause = (&*lost.object, lost.version, &*lost.manager);
        assert_eq!(cause, ("EndpointSlice ns/x", 7, "endpointslice-controller"));
        assert_eq!((&*moved.service_port, moved.version), ("ns/web:http/tcp", 9));
        assert!(moved.revision > lost.revision);
        let of_node = v1::ChangesRequest { node: "node-1".to_owned(), ..v1::ChangesRequest::default() };
        let own = changes(&cluster, of_node.clone(), &Identity::Node("node-1".into()));
        assert_eq!(own.len(), 2);
        let told = (&*own[0].summary, &*own[0].object, &*own[0].manager);
        assert_eq!(told, ("", "", ""), "a node is not told");
        let later = v1::ChangesRequest { since_micros: lost.at_micros, ..v1::ChangesRequest::default() };
        assert!(changes(&cluster, later, &Identity::Trusted).len() <= 1);
        let other = v1::ChangesRequest { namespace: "other".to_owned(), ..v1::ChangesRequest::default() };
        assert!(changes(&cluster, other, &Identity::Trusted).is_empty());
    }

    #[test]
    fn a_list_that_is_cut_is_complete_since_a_later_time() {
        let cluster = cluster();
        for number in 0..=MAX_ANSWER_ENTRIES as u64 {
            let address = if number % 2 == 0 { "10.0.0.2" } else { "10.0.0.1" };
            commit(&cluster, [written(slice("x", "web", vec![endpoint(address, "node-1")]), 10 + number, "kubectl")]);
        }
        let list = |since_micros| {
            let request = v1::ChangesRequest { since_micros, ..v1::ChangesRequest::default() };
            response(&cluster, &request, &Identity::Trusted).unwrap()
        };
        let cut = list(0);
        let oldest = cut.changes.last().unwrap().at_micros;
        assert_eq!((cut.changes.len(), cut.complete_since_micros), (MAX_ANSWER_ENTRIES, oldest + 1));
        let complete = list(oldest);
        assert!(complete.changes.len() < MAX_ANSWER_ENTRIES && complete.complete_since_micros <= oldest);
    }
}
