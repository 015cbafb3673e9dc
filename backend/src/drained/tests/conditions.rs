//! The order of decisions, as a table: what frontends say, and when a waiter learns what.

use super::*;
use crate::drained::decide::{Decision, Latest, View, Waiter};

/// Frontends at one time; the first one is the own one.
fn view(now: Instant, frontends: Vec<(&str, Option<DrainLevels>)>) -> View {
    let own = frontends.first().map(|(name, _)| frontend(name));
    let latest = |message: Option<DrainLevels>| match message {
        Some(message) => Latest::Levels { message: Arc::new(message), since: now },
        None => Latest::Failing { error: "connection refused".to_owned(), since: now },
    };
    let frontends = frontends.into_iter().map(|(name, message)| (frontend(name), latest(message))).collect();
    View { own, frontends, resolved: Some(now), ..View::default() }
}

/// What a waiter of 120 s learns while frontends say the same, and after how many seconds. Addresses are resolved again
/// whenever it wants that.
fn outcome(frontends: Vec<(&str, Option<DrainLevels>)>) -> (Drained, u64) {
    let begun = Instant::now();
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let mut view = view(begun, frontends);
    let mut now = begun;
    for _ in 0..1_000 {
        match waiter.decide(&view, now) {
            Decision::Done(drained) => return (drained, (now - begun).as_secs()),
            Decision::Wait(wait) if wait.list_since > view.resolved => view.resolved = Some(now),
            Decision::Wait(wait) => now = wait.until,
        }
    }
    panic!("it does not end: {waiter:?}");
}

fn yes(absent: u64, silent: &[&str]) -> Drained {
    Drained::Yes { absent, silent: silent.iter().map(ToString::to_string).collect() }
}

fn summary(drained: &Drained) -> &str {
    match drained {
        Drained::No(reason) => &reason.summary,
        drained => panic!("{drained:?}"),
    }
}

#[test]
fn all_frontends_together_must_speak_for_each_node_once() {
    let left = |nodes: &[&str]| DrainLevels { nodes_left: true, ..drained(nodes) };
    for (one, two, expected) in [
        (drained(&["a", "c"]), drained(&["b"]), (yes(0, &[]), 0)),
        // A node without a backend for long.
        (drained(&["a"]), drained(&["b"]), (yes(1, &[]), 0)),
        // One that may be on its way to another frontend.
        (left(&["a"]), drained(&["b"]), (yes(1, &[]), 10)),
        // Its stream is half open at the first one: counted by both, so that another one is missing.
        (left(&["a", "b"]), drained(&["b"]), (yes(1, &[]), 10)),
        (drained(&["a", "b"]), drained(&["b"]), (yes(1, &[]), 0)),
        (drained(&["a", "b"]), drained(&["b", "c"]), (yes(0, &[]), 0)),
        // It has arrived.
        (left(&["a"]), drained(&["b", "c"]), (yes(0, &[]), 0)),
    ] {
        assert_eq!(outcome(vec![("one", Some(one)), ("two", Some(two))]), expected);
    }
}

#[test]
fn own_level_comes_first_and_each_frontend_must_be_drained() {
    let whole = || Some(drained(&NODES));
    let other = |state| Some(message(&[], vec![level(state)]));
    for (frontends, expected) in [
        (vec![("own", other(DrainState::InUse)), ("two", whole())], "may get new connections of Services"),
        (vec![("own", other(DrainState::Behind)), ("two", whole())], "nodes that are behind (1)"),
        (vec![("own", whole()), ("two", other(DrainState::InUse))], "may get new connections of Services"),
        (vec![("own", whole()), ("two", other(DrainState::Behind))], "nodes that are behind (1)"),
        // A state of a later version of the protocol.
        (vec![("own", other(DrainState::Unspecified)), ("two", whole())], "may get new connections of Services"),
    ] {
        let (drained, seconds) = outcome(frontends);
        assert_eq!((summary(&drained), seconds), (expected, 120));
    }
}

/// Its slices are frozen: it may not have seen that the pod was ready.
#[test]
fn frontend_with_older_slices_is_not_drained_whatever_it_says() {
    let at = |slices_version| Some(DrainLevels { slices_version, ..drained(&["b", "c"]) });
    let own = || ("own", Some(drained(&["a"])));
    let (drained, seconds) = outcome(vec![own(), ("two", at(6))]);
    assert_eq!((summary(&drained), seconds), ("a frontend lags behind", 120));
    assert_eq!(outcome(vec![own(), ("two", at(7))]), (yes(0, &[]), 0));

    // A pod that it does not know is not "drained" there, and an old list is no silence.
    let unknown = Some(DrainLevels { slices_version: 6, levels: Vec::new(), ..super::drained(&["b", "c"]) });
    assert_eq!(outcome(vec![own(), ("two", unknown)]).1, 120);
}

/// A session of the node ends, and the next one is with another frontend.
#[test]
fn next_own_frontend_decides_for_itself() {
    let begun = Instant::now();
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let in_use = message(&["b", "c"], vec![level(DrainState::InUse)]);
    let mut view = view(begun, vec![("one", Some(drained(&["a"]))), ("two", Some(in_use))]);
    assert!(matches!(waiter.decide(&view, begun), Decision::Wait(_)));

    view.own = Some(frontend("two"));
    let Decision::Wait(wait) = waiter.decide(&view, begun) else { panic!("it is in use") };
    assert_eq!(wait.list_since, None, "others are not needed yet");

    // It has seen more than the one before: so must that one.
    let newer = DrainLevel { slices_version: 8, ..level(DrainState::Drained) };
    let newer = DrainLevels { slices_version: 8, ..message(&["b", "c"], vec![newer]) };
    let set = |view: &mut View, name, message| {
        view.frontends.insert(frontend(name), Latest::Levels { message: Arc::new(message), since: begun });
    };
    set(&mut view, "two", newer);
    assert!(matches!(waiter.decide(&view, begun), Decision::Wait(_)));
    set(&mut view, "one", DrainLevels { slices_version: 8, ..drained(&["a"]) });
    assert_eq!(waiter.decide(&view, begun), Decision::Done(yes(0, &[])));
}

/// Nothing arrives from a frontend whose nodes are behind.
#[test]
fn partition_while_nodes_are_behind_is_waited_for() {
    let begun = Instant::now();
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let behind = message(&["b", "c"], vec![level(DrainState::Behind)]);
    let mut view = view(begun, vec![("own", Some(drained(&["a"]))), ("two", Some(behind))]);
    view.resolved = Some(begun + Duration::from_secs(60));
    let Decision::Wait(wait) = waiter.decide(&view, begun + Duration::from_secs(59)) else { panic!("it is behind") };
    assert_eq!(wait.until, begun + Duration::from_secs(120), "its last word counts while the stream is open");

    // The connection has ended: that alone is no reason to stop waiting for its nodes.
    let failed = begun + Duration::from_secs(60);
    let refused = Latest::Failing { error: "connection refused".to_owned(), since: failed };
    view.frontends.insert(frontend("two"), refused);
    let Decision::Wait(wait) = waiter.decide(&view, failed) else { panic!("too early") };
    assert_eq!(wait.until, failed + Duration::from_secs(10));
    view.resolved = Some(wait.until);
    assert_eq!(waiter.decide(&view, wait.until), Decision::Done(yes(2, &["two: connection refused"])));
}

#[test]
fn silent_frontend_delays_the_answer_less_if_others_speak_for_all_nodes() {
    let refused = ("two", None);
    let text = &["two: connection refused"][..];
    assert_eq!(outcome(vec![("own", Some(drained(&NODES))), refused.clone()]), (yes(0, text), 2));
    assert_eq!(outcome(vec![("own", Some(drained(&["a", "b"]))), refused]), (yes(1, text), 10));

    // One that has just begun lists no pod that is gone.
    let new = ("two", Some(message(&["c"], Vec::new())));
    let text = &["two: does not know the pod"][..];
    assert_eq!(outcome(vec![("own", Some(drained(&["a", "b"]))), new]), (yes(1, text), 10));
    let empty = DrainLevels { cluster: set(&[]), programmed: set(&[]), ..drained(&[]) };
    assert_eq!(outcome(vec![("own", Some(empty))]), (yes(0, &["own: knows no node"]), 10));
}

/// A frontend that ends leaves the list at once, and its nodes are connected to no other one yet.
#[test]
fn nodes_of_a_frontend_that_has_left_the_list_are_waited_for() {
    let begun = Instant::now();
    let decide = |own: DrainLevels, removed| {
        let mut view = view(begun, vec![("own", Some(own))]);
        view.last_removed = removed;
        Waiter::new(pod(), begun + Duration::from_secs(120)).decide(&view, begun)
    };
    let Decision::Wait(wait) = decide(drained(&["a"]), Some(begun)) else { panic!("two nodes are on their way") };
    assert_eq!(wait.until, begun + Duration::from_secs(1), "it is asked again whether there are other frontends");
    assert_eq!(decide(drained(&NODES), Some(begun)), Decision::Done(yes(0, &[])));
    let long_ago = begun.checked_sub(Duration::from_secs(10));
    assert_eq!(decide(drained(&["a"]), long_ago), Decision::Done(yes(2, &[])));
}

/// Its Service was deleted, or selects it no more.
#[test]
fn pod_that_is_gone_before_it_is_drained_is_waited_for() {
    let begun = Instant::now();
    let later = begun + Duration::from_secs(50);
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let mut decide =
        |level: DrainLevel, now| waiter.decide(&view(now, vec![("own", Some(message(&NODES, vec![level])))]), now);
    let gone = |state| DrainLevel { gone: true, ..level(state) };
    assert!(matches!(decide(level(DrainState::InUse), begun), Decision::Wait(_)));
    let Decision::Wait(wait) = decide(gone(DrainState::Behind), later) else { panic!("nodes are behind") };
    assert_eq!(wait.until, begun + Duration::from_secs(120));
    assert_eq!(decide(gone(DrainState::Drained), later), Decision::Done(yes(0, &[])));
}

#[test]
fn failure_counts_from_the_beginning_of_this_drain() {
    let begun = Instant::now();
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let in_use = message(&["a"], vec![level(DrainState::InUse)]);
    let mut view = view(begun, vec![("own", Some(in_use)), ("two", None)]);
    waiter.decide(&view, begun);
    let later = begun + Duration::from_secs(60);
    let own = Latest::Levels { message: Arc::new(drained(&["a", "b"])), since: begun };
    view.frontends.insert(frontend("own"), own);
    view.resolved = Some(later);

    let Decision::Wait(wait) = waiter.decide(&view, later) else { panic!("too early") };
    assert_eq!(wait.until, later + Duration::from_secs(10));
}

#[test]
fn node_that_is_given_up_counts_as_absent() {
    let given_up = DrainLevel { not_programmed: set(&["c"]), ..level(DrainState::Drained) };
    assert_eq!(outcome(vec![("own", Some(message(&NODES, vec![given_up])))]), (yes(1, &[]), 0));
}

/// Its frontend has an old list of Nodes.
#[test]
fn backends_without_a_node_object_are_waited_for() {
    let unlisted =
        |nodes: &[&str], unlisted| message(nodes, vec![DrainLevel { unlisted, ..level(DrainState::Drained) }]);
    assert_eq!(outcome(vec![("own", Some(unlisted(&["a", "b"], 1)))]), (yes(1, &[]), 60));
    assert_eq!(outcome(vec![("own", Some(unlisted(&NODES, 1)))]), (yes(0, &[]), 60));
    assert_eq!(outcome(vec![("own", Some(unlisted(&NODES, 0)))]), (yes(0, &[]), 0));

    // Only the other frontend has the Node object of "c", which follows this one, or has followed it before.
    let old_list = |unlisted_count| DrainLevels { cluster: set(&["a", "b"]), ..unlisted(&["a"], unlisted_count) };
    let new_list = || DrainLevels { nodes_left: true, ..drained(&["b"]) };
    for (unlisted_count, seconds) in [(1, 60), (0, 10)] {
        let frontends = vec![("own", Some(old_list(unlisted_count))), ("two", Some(new_list()))];
        assert_eq!(outcome(frontends), (yes(1, &[]), seconds));
    }
    // It follows the other one, which has its object.
    let both = vec![("own", Some(old_list(0))), ("two", Some(drained(&["b", "c"])))];
    assert_eq!(outcome(both), (yes(0, &[]), 0));
}

#[test]
fn address_in_no_slice_is_unknown_after_five_seconds() {
    assert_eq!(outcome(vec![("own", Some(message(&NODES, Vec::new())))]), (Drained::Unknown, 5));
    let gone = DrainLevel { gone: true, ..level(DrainState::Drained) };
    assert_eq!(outcome(vec![("own", Some(message(&NODES, vec![gone])))]), (Drained::Unknown, 5), "of an earlier pod");
}

#[test]
fn waiter_is_bound_to_the_pod_that_it_has_seen() {
    let begun = Instant::now();
    let decide = |waiter: &mut Waiter, levels: Vec<DrainLevel>| {
        waiter.decide(&view(begun, vec![("own", Some(message(&NODES, levels)))]), begun)
    };
    let gone = DrainLevel { gone: true, ..level(DrainState::Drained) };
    let next = DrainLevel { pod_uid: "next".to_owned(), ..level(DrainState::InUse) };
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(20));
    assert!(matches!(decide(&mut waiter, vec![level(DrainState::Behind)]), Decision::Wait(_)));

    // The address is used again within a second: the worst level counts.
    let mut early = Waiter::new(pod(), begun + Duration::from_secs(20));
    assert!(matches!(decide(&mut early, vec![next.clone(), gone.clone()]), Decision::Wait(_)));
    assert!(matches!(decide(&mut waiter, vec![next.clone(), gone.clone()]), Decision::Wait(_)));
    assert_eq!(decide(&mut waiter, vec![gone.clone()]), Decision::Done(yes(0, &[])));
    // That of the earlier pod is none of the later one, which is gone without having been seen to end.
    let Decision::Wait(wait) = decide(&mut early, vec![gone]) else { panic!("it is drained by another pod") };
    assert_eq!(wait.until, begun + Duration::from_secs(20));
}

/// Its node has followed a frontend with old slices since, or one that has just started.
#[test]
fn pod_that_was_known_does_not_become_unknown() {
    let begun = Instant::now();
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(120));
    let behind = message(&["b"], vec![level(DrainState::Behind)]);
    let mut view = view(begun, vec![("one", Some(behind)), ("two", Some(message(&["a"], Vec::new())))]);
    assert!(matches!(waiter.decide(&view, begun), Decision::Wait(_)));

    view.own = Some(frontend("two"));
    for seconds in [0, 6, 119] {
        let decision = waiter.decide(&view, begun + Duration::from_secs(seconds));
        assert!(matches!(decision, Decision::Wait(_)), "{seconds}: {decision:?}");
    }
    let decision = waiter.decide(&view, begun + Duration::from_secs(120));
    assert!(matches!(decision, Decision::Done(Drained::No(_))), "{decision:?}");
}

#[test]
fn deadline_says_what_was_missing() {
    let begun = Instant::now();
    let at_deadline = |frontends: Vec<_>| {
        let mut waiter = Waiter::new(pod(), begun);
        match waiter.decide(&view(begun, frontends), begun) {
            Decision::Done(Drained::No(reason) | Drained::NoAnswer(reason)) => reason.to_string(),
            decision => panic!("{decision:?}"),
        }
    };
    let refused = "two: connection refused";
    for (own, expected) in [
        (drained(&["a", "b"]), format!("1 nodes are connected to no frontend that answers: {refused}")),
        (drained(&NODES), format!("frontends do not answer, or nodes change their frontend: {refused}")),
    ] {
        assert_eq!(at_deadline(vec![("own", Some(own)), ("two", None)]), expected);
    }
    assert_eq!(at_deadline(vec![("two", None)]), format!("no frontend answers: {refused}"));

    // A frontend that ends hides nothing.
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(1));
    waiter.decide(&view(begun, vec![("two", Some(message(&[], vec![level(DrainState::InUse)])))]), begun);
    let decision = waiter.decide(&view(begun, vec![("two", None)]), begun + Duration::from_secs(1));
    let Decision::Done(Drained::No(NotDrained { summary, details })) = decision else { panic!("{decision:?}") };
    assert_eq!(summary, "may get new connections of Services");
    assert_eq!(details, format!("shop/web; then no frontend answers: {refused}"));
}

#[test]
fn list_that_cannot_be_resolved_is_like_a_silent_frontend() {
    let begun = Instant::now();
    let mut view = view(begun, vec![("own", Some(drained(&["a", "b"])))]);
    view.resolved = None;
    let mut waiter = Waiter::new(pod(), begun + Duration::from_secs(60));
    let Decision::Wait(wait) = waiter.decide(&view, begun) else { panic!("the list is old") };
    assert!(wait.list_since.is_some());
    view.resolve_failure = Some((begun, "no DNS".to_owned()));
    let Decision::Wait(wait) = waiter.decide(&view, begun) else { panic!("too early") };
    assert_eq!(wait.until, begun + Duration::from_secs(10));
    assert_eq!(waiter.decide(&view, wait.until), Decision::Done(yes(1, &["no DNS"])));
}
