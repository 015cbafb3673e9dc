//! What commits say of pods that end.

use proto::{
    convert::unpack_address,
    model::SourceVersion,
    v1::{DrainLevel, DrainState},
};

use crate::{
    Config,
    context::FrontendContext,
    object::{ClusterObject, ObjectKind, SliceEndpoint, SourceUpdate, VersionProgress},
    testing::{endpoint, initial, ip, put, service, slice, take_steps},
};

mod cost;

use super::{levels::ListedPod, *};

const NODE: &str = "node-9";

/// A slice of a Service with these pods; those that end are negative.
fn pods(name: &str, service: &str, pods: &[i8]) -> SourceUpdate {
    let endpoints = pods.iter().map(|pod| {
        let address = format!("10.0.0.{}", pod.unsigned_abs());
        SliceEndpoint { ready: *pod > 0, terminating: *pod < 0, ..endpoint(&address, NODE) }
    });
    put(slice(name, service, endpoints.collect()))
}

/// The Services `web` and `api` with pod 1, which ends, and a third one without it.
fn context() -> FrontendContext {
    let context = FrontendContext::new(Config::default());
    let services = [("web", "10.96.0.1"), ("api", "10.96.0.2"), ("other", "10.96.0.3")];
    let services = services.map(|(name, ip)| ClusterObject::from(service(name, ip)));
    initial(services).into_iter().for_each(|update| apply(&context, update));
    apply(&context, pods("x", "web", &[-1, 2]));
    apply(&context, pods("y", "api", &[-1, 2]));
    apply(&context, pods("z", "other", &[7]));
    commit(&context);
    context
}

fn apply(context: &FrontendContext, update: SourceUpdate) {
    context.cluster.index().apply(update);
}

fn commit(context: &FrontendContext) -> Revision {
    let commit = context.cluster.commit(|_| ()).unwrap();
    context.cluster.publish(commit.revision, commit.kind_versions);
    commit.revision
}

/// The revision since which pod 1 is not used.
fn unused_since(context: &FrontendContext) -> Option<Revision> {
    context.cluster.ending_pods().pods[&PodKey::Address(ip("10.0.0.1"))].unused_since
}

/// The levels of the node's pods: the address, the pod, and the state.
fn levels(context: &FrontendContext) -> Vec<(IpAddr, String, DrainState)> {
    let listed = ListedPod::of(context.cluster.index().entries_on(NODE));
    let pods = context.cluster.ending_pods();
    let message = context.streams.read(|fleet| pods.message(fleet, NODE, &listed, SourceVersion::default()).0);
    let address = |level: &DrainLevel| unpack_address(&level.address, "address").unwrap();
    message.levels.iter().map(|level| (address(level), level.pod_uid.clone(), level.state())).collect()
}

/// The attack: a tenant changes its own Services all the time.
#[test]
fn pod_is_not_decided_about_anew_while_others_change_without_a_pause() {
    let context = context();
    let since = unused_since(&context);
    assert!(since.is_some());
    for pod in [8, 9, 10, 11] {
        apply(&context, pods("z", "other", &[pod]));
        assert_eq!(unused_since(&context), since);
        commit(&context);
        assert_eq!(unused_since(&context), since);
    }
}

#[test]
fn later_use_begins_the_levels_again() {
    let context = context();
    let since = unused_since(&context);
    // The last endpoint of a Service is used although it ends.
    apply(&context, pods("x", "web", &[-1]));
    commit(&context);
    assert_eq!(unused_since(&context), None);

    apply(&context, pods("x", "web", &[-1, 3]));
    let revision = commit(&context);
    assert!(Some(revision) > since);
    assert_eq!(unused_since(&context), Some(revision));
}

#[test]
fn slice_of_another_service_that_drops_the_address_is_waited_for() {
    let context = context();
    apply(&context, pods("z", "other", &[-1]));
    commit(&context);
    assert_eq!(unused_since(&context), None);

    apply(&context, SourceUpdate::Delete(ObjectKind::EndpointSlice, ObjectName::new("ns", "z")));
    assert_eq!(unused_since(&context), None);
    let revision = commit(&context);
    assert_eq!(unused_since(&context), Some(revision));
}

/// A frontend that has just started: the version of its list says how new the objects of all kinds are, and the others
/// may not see a later one of slices for long.
#[test]
fn level_has_the_version_of_the_newest_slice() {
    let context = FrontendContext::new(Config::default());
    initial([service("web", "10.96.0.1").into()]).into_iter().for_each(|update| apply(&context, update));
    apply(&context, pods("x", "web", &[-1, 2]));
    for progress in [VersionProgress::Changed(SourceVersion(7)), VersionProgress::Confirmed(SourceVersion(100))] {
        apply(&context, SourceUpdate::Progress(ObjectKind::EndpointSlice, progress));
    }
    commit(&context);
    let pod = PodKey::Address(ip("10.0.0.1"));
    assert_eq!(context.cluster.ending_pods().pods[&pod].slices_version, SourceVersion(7));
}

/// An address that is used again within a second.
#[test]
fn next_pod_at_an_address_has_a_level_of_its_own() {
    let context = context();
    let uids = ["0f0e0d0c-0000-0000-0000-000000000001", "0f0e0d0c-0000-0000-0000-000000000002"];
    let [old, new] = uids.map(|uid| Some(PodId::new("ns", "web-0", Some(uid))));
    let other = || endpoint("10.0.0.9", "node-8");
    let ends = SliceEndpoint { ready: false, terminating: true, pod: old, ..endpoint("10.0.0.5", NODE) };
    apply(&context, put(slice("p", "web", vec![ends, other()])));
    commit(&context);
    let address = ip("10.0.0.5");
    let at_address = |context| levels(context).into_iter().filter(|(at, ..)| *at == address).collect::<Vec<_>>();
    assert_eq!(at_address(&context), [(address, uids[0].to_owned(), DrainState::Drained)]);

    let starts = SliceEndpoint { pod: new, ..endpoint("10.0.0.5", NODE) };
    apply(&context, put(slice("p", "web", vec![starts, other()])));
    commit(&context);
    let in_use = |uid: &str| (address, uid.to_owned(), DrainState::InUse);
    assert_eq!(at_address(&context), uids.map(in_use), "the old pod is gone, and its address in use");
}

#[test]
fn newer_follower_of_a_node_ends_the_one_before() {
    let mut pods = EndingPods::default();
    let first = pods.follow(&NODE.into());
    let second = pods.follow(&NODE.into());
    assert!(first.has_changed().is_err());
    assert!(second.has_changed().is_ok());

    drop(first);
    pods.unfollow(&NODE.into());
    assert!(second.has_changed().is_ok(), "the first one has ended, not this one");
    drop(second);
    pods.unfollow(&NODE.into());
    assert!(pods.followers.is_empty());
}

/// The attack: a tenant writes the name of another one's node into its slices.
#[test]
fn namespace_with_many_pods_on_a_node_gives_way() {
    let context = context();
    for number in 0..4_u8 {
        let entries = (0..250_u8).flat_map(|last| {
            let listed = endpoint(&format!("10.{number}.1.{last}"), NODE);
            let ends = SliceEndpoint { terminating: true, ..endpoint(&format!("10.{number}.2.{last}"), NODE) };
            [listed, ends]
        });
        let mut evil = slice(&format!("evil-{number}"), "web", entries.collect());
        evil.name.namespace = "evil".into();
        apply(&context, put(evil));
    }
    apply(&context, pods("w", "web", &[50, -51]));
    commit(&context);

    let levels = levels(&context);
    assert!(levels.len() <= 2 * 1_024, "{}", levels.len());
    for own in [1, 2, 7, 50, 51] {
        let address = ip(&format!("10.0.0.{own}"));
        assert!(levels.iter().any(|(at, ..)| *at == address), "pod {own} has no level");
    }
}

/// The attack: a tenant's pod ends, and entries in many slices name it, each with another address and the name of
/// another one's node.
#[test]
fn pod_with_many_addresses_has_one_of_each_family() {
    let context = context();
    let evil = Some(PodId::new("evil", "evil-0", Some("0f0e0d0c-0000-0000-0000-000000000003")));
    for number in 0..20_u8 {
        let ends = |last: u8| SliceEndpoint {
            terminating: true,
            pod: evil,
            ..endpoint(&format!("10.{number}.3.{last}"), NODE)
        };
        let mut many = slice(&format!("evil-{number}"), &format!("evil-{number}"), (0..=255).map(ends).collect());
        many.name.namespace = "evil".into();
        apply(&context, put(many));
    }
    commit(&context);

    assert_eq!(levels(&context).len(), 1 + 3, "one of the tenant's pod, and those of the others");
}

/// The attack: a tenant changes its own entries all the time, beside pods of others that end.
#[test]
fn changes_of_others_cost_the_same_beside_pods_that_end() {
    let changes_cost = |ending: u8| {
        let context = context();
        for number in 0..ending {
            let ends =
                |last: u8| SliceEndpoint { terminating: true, ..endpoint(&format!("10.1.{number}.{last}"), NODE) };
            apply(&context, put(slice(&format!("e-{number}"), "web", (0..=255).map(ends).collect())));
        }
        commit(&context);

        take_steps();
        for pod in 10..20 {
            apply(&context, pods("z", "other", &[pod]));
            commit(&context);
        }
        take_steps()
    };

    assert_eq!(changes_cost(40), changes_cost(0), "beside 10,240 pods that end");
}
