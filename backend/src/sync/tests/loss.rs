//! Losses that exceed the limit: withheld, while everything else is applied, until a second snapshot confirms or voids
//! them.

use std::collections::BTreeSet;

use super::*;
use crate::loss::CONFIRM_DELAY;

/// The number of Services before a loss.
const ALL: usize = 20;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("default/s{number}")).collect()
}

fn services(count: usize) -> NodeState {
    let names = names(count);
    mk_services(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A number of Services in each of these namespaces.
fn in_namespaces(counts: &[(&str, usize)]) -> NodeState {
    let names: Vec<_> = counts
        .iter()
        .flat_map(|(namespace, count)| (0..*count).map(move |number| format!("{namespace}/s{number}")))
        .collect();
    mk_services(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A backend process that withholds the loss of all Services but `left`.
async fn withheld_loss(kernel: &FakeKernel, left: usize) -> (Fixture, Peer) {
    let mut fixture = start(kernel, None);
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(left))).await;
    let ack = peer.ack().await;
    assert_eq!(ack.digest, Some(total(&services(left))), "the frontend's state is committed");
    assert_eq!((ack.received, ack.programmed), (Revision(2), Revision(1)), "pods that end wait for it");
    assert_eq!(fixture.keys().len(), ALL, "the kernel is unchanged");
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.losses.rejected, progress.losses.withheld_service_ports), (1, ALL - left));
    (fixture, peer)
}

#[tokio::test(start_paused = true)]
async fn large_loss_is_applied_when_a_second_snapshot_confirms_it() {
    let kernel = FakeKernel::default();
    let (mut fixture, _first) = withheld_loss(&kernel, 3).await;
    let withheld = Instant::now();
    let mut peer = fixture.session().await;
    assert_eq!((peer.hello.resume, peer.hello.digests.is_none()), (None, true), "a snapshot is requested");
    assert_eq!(withheld.elapsed(), CONFIRM_DELAY);
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 9, everything(&services(3))).await;
    let ack = peer.ack().await;
    assert_eq!((ack.digest, ack.programmed), (Some(total(&services(3))), Revision(9)));
    assert_eq!(fixture.keys().len(), 3);
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, 0);

    // The next large loss is withheld again.
    peer.commit(9, 10, operations_between(&services(3), &services(ALL))).await;
    peer.ack().await;
    peer.commit(10, 11, operations_between(&services(ALL), &services(1))).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), ALL);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn large_loss_that_is_not_confirmed_changes_nothing() {
    let kernel = FakeKernel::default();
    let (mut fixture, _first) = withheld_loss(&kernel, 0).await;
    let calls = kernel.calls().len();
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 3, everything(&services(ALL))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(ALL))));
    assert_eq!(kernel.calls().len(), calls, "nothing changed");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_that_return_are_not_withheld_and_need_no_snapshot() {
    let kernel = FakeKernel::default();
    let (mut fixture, mut peer) = withheld_loss(&kernel, 2).await;
    peer.commit(2, 3, operations_between(&services(2), &services(ALL))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(ALL))));
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, 0);
    for revision in 4..30 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        peer.bookmark(revision, total(&services(ALL))).await;
        peer.ack().await;
    }
    assert_eq!(fixture.kernel.service_ports(), *services(ALL).service_ports());
    assert!(fixture.sessions.try_recv().is_err(), "the session continues");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_changes_are_applied_while_a_loss_is_withheld() {
    let kernel = FakeKernel::default();
    let (mut fixture, mut peer) = withheld_loss(&kernel, 3).await;
    let with_new = |count| {
        let mut all = names(count);
        all.push("default/web".to_owned());
        mk_services(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    peer.commit(2, 3, operations_between(&services(3), &with_new(3))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&with_new(3))));
    assert_eq!(fixture.keys().len(), ALL + 1);
    assert!(fixture.keys().contains(&mk_key("default/web")));

    // A session that begins meanwhile resumes the committed state.
    drop(peer);
    let peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(3))));
    assert_eq!(peer.hello.digests.as_deref(), Some(with_new(3).digests()));
    fixture.stop().await;
}

/// Revisions of another frontend are not those that the kernel lacks.
#[tokio::test(start_paused = true)]
async fn nothing_is_programmed_for_another_frontend_while_a_loss_is_withheld() {
    let (mut fixture, first) = withheld_loss(&FakeKernel::default(), 3).await;
    drop(first);
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(7), SyncMode::Repair).await;
    peer.commit(0, 9, Vec::new()).await;
    let ack = peer.ack().await;
    assert_eq!((ack.received, ack.programmed), (Revision(9), Revision(0)));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn new_service_gets_the_vip_and_node_port_of_a_withheld_one_at_once() {
    let services = |count: usize, new_endpoint: Option<&str>| {
        let state = (0..count).fold(mk_state(), |state, number| {
            let cluster_ip = format!("10.96.0.{}", number + 1);
            let port = 30000 + u16::try_from(number).unwrap();
            state.service(&format!("default/s{number}"), |service| {
                let service = service.cluster_ip(&cluster_ip).external_ip("192.0.2.1").port(port);
                service.node_port(port).endpoints(["10.244.1.1:8080"])
            })
        });
        // The node port of one, and the VIP of another.
        let Some(endpoint) = new_endpoint else { return state.build() };
        let new = state.service("default/web", |service| {
            let service = service.cluster_ip("10.96.0.99").external_ip("192.0.2.1").port(30007);
            service.node_port(30009).endpoints([endpoint])
        });
        new.build()
    };
    let (before, after) = (services(ALL, None), services(0, Some("10.244.1.9:8080")));
    let later = services(0, Some("10.244.1.8:8080"));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&before).await;
    peer.commit(1, 2, operations_between(&before, &after)).await;
    let ack = peer.ack().await;
    assert_eq!((ack.digest, ack.programmed), (Some(total(&after)), Revision(1)));
    let (new, s7, s9) = (mk_key("default/web"), mk_key("default/s7"), mk_key("default/s9"));
    let programmed = fixture.kernel.service_ports();
    let of = |key: &ServicePortKey| programmed.get(key).unwrap();
    assert_eq!(of(&new), after.service_port(&new).unwrap());
    assert!(of(&s7).port.external_ips.is_empty() && of(&s7).port.node_port.is_some());
    assert!(of(&s9).port.node_port.is_none() && !of(&s9).port.external_ips.is_empty());
    let untouched = programmed.iter().filter(|(key, service)| before.service_ports().get(key) == Some(*service));
    assert_eq!(untouched.count(), ALL - 2);
    // The others are still withheld, and further commits write only what they change.
    let calls = fixture.kernel.calls().len();
    peer.commit(2, 3, operations_between(&after, &later)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&later)));
    assert_eq!((fixture.keys().len(), fixture.kernel.calls().len()), (ALL + 1, calls + 1));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn new_service_gets_the_cluster_ip_of_a_withheld_one_for_all_ports() {
    let after = mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").port(81).endpoints(["10.244.1.9:8080"]))
        // A withheld Service keeps its own cluster IP.
        .service("default/s1:admin", |admin| admin.cluster_ip("10.96.0.2").port(81))
        .build();
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &after)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&after)));
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, ALL);
    let programmed = fixture.kernel.service_ports();
    let cluster_ip = |key| programmed.get(&mk_key(key)).unwrap().port.cluster_ips.v4.map(|ip| ip.to_string());
    assert_eq!(cluster_ip("default/web").as_deref(), Some("10.96.0.1"));
    assert_eq!(cluster_ip("default/s0"), None);
    assert_eq!(cluster_ip("default/s1").as_deref(), Some("10.96.0.2"));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_that_come_and_go_are_not_withheld() {
    let lasting = mk_services(&["default/lasting"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&lasting).await;
    for number in 0..2 * ALL as u64 {
        let short = format!("tenant-{}/short-{number}", number % 3);
        let both = mk_services(&["default/lasting", &*short]);
        let revision = 2 * number + 1;
        peer.commit(revision, revision + 1, operations_between(&lasting, &both)).await;
        peer.ack().await;
        assert_eq!(fixture.keys().len(), 2);
        peer.commit(revision + 1, revision + 2, operations_between(&both, &lasting)).await;
        peer.ack().await;
        assert_eq!(fixture.keys(), [mk_key("default/lasting")], "{short}");
    }
    assert_eq!(fixture.progress.borrow().losses.rejected, 0);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_count_as_lost_a_minute_after_they_appeared() {
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(0)).await;
    peer.commit(1, 2, operations_between(&services(0), &services(ALL))).await;
    peer.ack().await;
    for revision in 3..10 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        peer.bookmark(revision, total(&services(ALL))).await;
        peer.ack().await;
    }
    peer.commit(9, 10, operations_between(&services(ALL), &services(0))).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), ALL);
    assert_eq!(fixture.progress.borrow().losses.rejected, 1);
    fixture.stop().await;
}

/// The source of the frontends is repaired minutes later, and fails again.
#[tokio::test(start_paused = true)]
async fn services_that_return_after_a_confirmed_loss_count_as_lost() {
    let (mut fixture, _first) = withheld_loss(&FakeKernel::default(), 0).await;
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 9, everything(&services(0))).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), 0);
    for revision in 10..40 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        peer.bookmark(revision, total(&services(0))).await;
        peer.ack().await;
    }
    peer.commit(39, 40, operations_between(&services(0), &services(ALL))).await;
    peer.ack().await;
    peer.commit(40, 41, operations_between(&services(ALL), &services(0))).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), ALL);
    assert_eq!(fixture.progress.borrow().losses.rejected, 2);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_that_lose_their_endpoints_count_as_lost() {
    let empty = (0..ALL).fold(mk_state(), |state, number| {
        state.service(&format!("default/s{number}"), |service| service.cluster_ip(&format!("10.96.0.{}", number + 1)))
    });
    let empty = empty.build();
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &empty)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&empty)));
    assert_eq!(fixture.kernel.service_ports(), *services(ALL).service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn losses_within_the_limit_are_applied() {
    for (before, after) in [(ALL, ALL / 2), (9, 0)] {
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&services(before)).await;
        peer.commit(1, 2, operations_between(&services(before), &services(after))).await;
        assert_eq!(peer.ack().await.received, Revision(2));
        assert_eq!(fixture.keys().len(), after);
        fixture.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn commits_that_together_empty_the_cluster_are_withheld() {
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(ALL)).await;
    for left in (0..ALL).rev() {
        let revision = (ALL - left) as u64;
        peer.commit(revision, revision + 1, operations_between(&services(left + 1), &services(left))).await;
        assert_eq!(peer.ack().await.digest, Some(total(&services(left))));
    }
    assert_eq!(fixture.keys().len(), ALL / 2, "half of them");
    assert_eq!(fixture.progress.borrow().losses.rejected, 1);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slow_losses_are_applied() {
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(ALL)).await;
    for left in (0..ALL).rev() {
        let revision = (ALL - left) as u64;
        peer.commit(revision, revision + 1, operations_between(&services(left + 1), &services(left))).await;
        peer.ack().await;
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    assert_eq!(fixture.keys(), []);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn service_with_many_ports_that_flaps_delays_nothing_and_requests_no_snapshot() {
    let state = |has_endpoint: bool| {
        let ports = (0..200).fold(mk_state(), |state, port| {
            state.service(&format!("tenant/many:p{port}"), |service| {
                let service = service.cluster_ip("10.96.9.9").port(1000 + port);
                if has_endpoint { service.endpoints(["10.244.1.9:8080"]) } else { service }
            })
        });
        let other =
            |service: crate::testing::ServiceBuilder| service.cluster_ip("10.96.0.1").endpoints(["10.244.1.1:8080"]);
        ports.service("default/a", other).build()
    };
    let (up, down) = (state(true), state(false));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&up).await;
    let begun = Instant::now();
    for revision in 1..50 {
        let (from, to) = if revision % 2 == 1 { (&up, &down) } else { (&down, &up) };
        peer.commit(revision, revision + 1, operations_between(from, to)).await;
        assert_eq!(peer.ack().await.digest, Some(total(to)));
        assert_eq!(fixture.kernel.service_ports(), *to.service_ports(), "revision {revision}");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(fixture.progress.borrow().losses.rejected, 0);
    assert!(fixture.sessions.try_recv().is_err(), "the session continues");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_namespace_cannot_cause_a_loss_to_be_withheld() {
    let before = in_namespaces(&[("tenant", 100), ("default", 1), ("kube-system", 2)]);
    let after = in_namespaces(&[("default", 1), ("kube-system", 2)]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&before).await;
    let without_tenant: Vec<_> = before.service_ports().keys().filter(|key| &*key.namespace == "tenant").collect();
    let removals = without_tenant.into_iter().cloned().map(Operation::RemoveServicePort).collect();
    peer.commit(1, 2, removals).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), after.service_ports().len());
    assert_eq!(fixture.progress.borrow().losses.rejected, 0);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_of_a_frontend_without_objects_is_withheld_with_the_facts() {
    let state = in_namespaces(&[("tenant", 100), ("default", 1), ("kube-system", 2)]);
    let mut fixture = start(&FakeKernel::default(), None);
    drop(fixture.following(&state).await);
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Snapshot).await;
    peer.commit(0, 1, vec![]).await;
    peer.ack().await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.losses.withheld_service_ports, progress.node.eligible), (103, state.node().eligible));
    assert_eq!(fixture.kernel.calls().len(), 1, "nothing is written");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn withheld_loss_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(ALL - 1))).await;
    peer.ack().await;
    peer.commit(2, 3, operations_between(&services(ALL - 1), &services(0))).await;
    peer.ack().await;
    fixture.stop().await;
    drop(peer);
    let mut fixture = start(&kernel, Some(&file));
    let peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(2))));
    assert_eq!(peer.hello.digests.as_deref(), Some(services(ALL - 1).digests()));
    fixture.stop().await;
}

/// A process that commits these states, and withholds the loss of the last one. It ends, and the next one resumes the
/// stream at the state before that.
async fn restarted_while_withholding(kernel: &FakeKernel, file: &Path, states: &[NodeState]) -> (Fixture, Peer) {
    let mut fixture = start(kernel, Some(file));
    let mut peer = fixture.following(&states[0]).await;
    for (revision, states) in (1..).zip(states.windows(2)) {
        peer.commit(revision, revision + 1, operations_between(&states[0], &states[1])).await;
        peer.ack().await;
    }
    assert!(fixture.progress.borrow().losses.withheld_service_ports > 0);
    fixture.stop().await;
    drop(peer);
    let mut fixture = start(kernel, Some(file));
    let peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(states.len() as u64 - 1))));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    (fixture, peer)
}

/// The losses that led to the limit are applied, and the rest alone is within it.
#[tokio::test(start_paused = true)]
async fn rest_of_a_withheld_loss_is_withheld_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let states = [services(14), services(5), services(0)];
    let [_, before, after] = &states;
    let kernel = FakeKernel::default();
    let (mut fixture, mut first) = restarted_while_withholding(&kernel, &directory.path().join("state"), &states).await;
    first.commit(2, 3, operations_between(before, after)).await;
    assert_eq!(first.ack().await.digest, Some(total(after)));
    assert_eq!(kernel.service_ports(), *before.service_ports());
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, 5);
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, None, "a snapshot is requested");
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 9, everything(after)).await;
    peer.ack().await;
    assert_eq!(fixture.keys(), []);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn loss_is_limited_as_usual_once_a_frontend_has_confirmed_the_state_before_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let states = [services(ALL), services(0)];
    let kernel = FakeKernel::default();
    let (fixture, mut peer) = restarted_while_withholding(&kernel, &directory.path().join("state"), &states).await;
    peer.bookmark(4, total(&services(ALL))).await;
    peer.ack().await;
    peer.commit(4, 5, operations_between(&services(ALL), &services(ALL - 1))).await;
    peer.ack().await;
    assert_eq!(fixture.keys().len(), ALL - 1);
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, 0);
    fixture.stop().await;
}

/// The file may be older otherwise: its endpoints may be gone, or a Service that has returned may be missing.
#[tokio::test(start_paused = true)]
async fn process_that_is_killed_while_it_withholds_a_loss_leaves_the_state_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, of_killed) = (directory.path().join("state"), directory.path().join("state-of-killed"));
    let before = (0..ALL).fold(mk_state(), |state, number| {
        state.service(&format!("default/s{number}"), |service| {
            service.cluster_ip(&format!("10.96.0.{}", number + 1)).endpoints(["10.244.1.2:8080"])
        })
    });
    let (before, after) = (before.build(), services(0));
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &before)).await;
    peer.ack().await;
    peer.commit(2, 3, operations_between(&before, &after)).await;
    peer.ack().await;
    let is_stored = || crate::StoredState::read(&file, NODE_NAME).is_ok_and(|stored| stored.is_outdated);
    let stored = tokio::time::timeout(Duration::from_secs(9), async {
        while !is_stored() {
            // The clock of the test does not wait for a disk that takes longer than a second.
            std::thread::sleep(Duration::from_millis(20));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    stored.await.expect("it does not wait for the interval between two writes");
    std::fs::copy(&file, &of_killed).unwrap();
    fixture.stop().await;
    drop(peer);

    let mut fixture = start(&kernel, Some(&of_killed));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(2))));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.commit(2, 3, operations_between(&before, &after)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&after)));
    assert_eq!(kernel.service_ports(), *before.service_ports());
    fixture.stop().await;
}

/// Services with one endpoint each: on this node, and on another one.
fn on_nodes(here: usize, elsewhere: usize) -> NodeState {
    let state = (0..here).fold(mk_state(), |state, number| {
        let endpoint = format!("10.244.1.{}:80", number + 1);
        state.service(&format!("default/here-{number}"), |service| {
            service.cluster_ip("10.96.0.1").endpoints([&*endpoint]).local_endpoints([&*endpoint])
        })
    });
    let state = (0..elsewhere).fold(state, |state, number| {
        let endpoint = format!("10.244.2.{}:80", number + 1);
        state.service(&format!("kube-system/elsewhere-{number}"), |service| {
            service.cluster_ip("10.96.0.2").endpoints([&*endpoint])
        })
    });
    state.build()
}

/// The same Services without endpoints.
fn without_endpoints(state: &NodeState) -> NodeState {
    let mut empty = state.clone();
    for (key, service) in state.service_ports().iter() {
        let service = crate::ServicePortState::new(service.port.clone());
        empty.set_service_port(key, Some(service));
    }
    empty
}

/// A backend on a node that has restarted with this stored state.
async fn restarted(state: &NodeState) -> (tempfile::TempDir, Fixture) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    drop(fixture.following(state).await);
    fixture.stop().await;
    crate::testing::set_boot(&file, "an-earlier-boot");
    let fixture = start(&FakeKernel::default(), Some(&file));
    fixture.ready.wait().await;
    (directory, fixture)
}

#[tokio::test(start_paused = true)]
async fn cluster_of_one_node_that_restarts_does_not_wait_for_a_confirmation() {
    let state = on_nodes(ALL, 1);
    let (_directory, mut fixture) = restarted(&state).await;
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.digests.as_deref(), Some(state.digests()));
    // The API server does not know yet that the endpoints are gone.
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.commit(0, 1, vec![]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let empty = without_endpoints(&state);
    peer.commit(1, 2, operations_between(&state, &empty)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&empty)));
    assert_eq!(fixture.kernel.service_ports(), *empty.service_ports());
    assert_eq!(fixture.progress.borrow().losses.rejected, 0);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn loss_of_other_nodes_is_withheld_on_a_restarted_node() {
    let state = on_nodes(ALL, ALL);
    let (_directory, mut fixture) = restarted(&state).await;
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    let empty = without_endpoints(&state);
    peer.commit(0, 1, operations_between(&state, &empty)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&empty)));
    let programmed = fixture.kernel.service_ports();
    let with_endpoints = programmed.values().filter(|service| service.has_endpoints());
    let names: BTreeSet<_> = with_endpoints.map(|service| &*service.port.key.namespace).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["kube-system"]);
    assert_eq!(fixture.progress.borrow().losses.withheld_service_ports, ALL);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn former_endpoints_count_again_some_time_after_a_restart() {
    let state = on_nodes(ALL, 1);
    let (_directory, mut fixture) = restarted(&state).await;
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.commit(0, 1, vec![]).await;
    peer.ack().await;
    for revision in 2..90 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        peer.bookmark(revision, total(&state)).await;
        peer.ack().await;
    }
    peer.commit(89, 90, operations_between(&state, &without_endpoints(&state))).await;
    peer.ack().await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    assert_eq!(fixture.progress.borrow().losses.rejected, 1);
    fixture.stop().await;
}
