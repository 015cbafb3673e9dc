//! Endpoints of a Service from EndpointSlices, in every valid form.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::expect::{assert_answers, assert_closed, assert_pods};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
    traffic::Churn,
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready, Terminating};

const PORT: u16 = 80;
const PER_SECOND: u32 = 100;
/// Enough to notice a gap.
const ATTEMPTS: u64 = 60;

// === several slices ===

/// The endpoints of a service are those of all its slices. One that moves to another slice is served throughout.
pub fn endpoints_of_all_slices_are_used(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let [a1, a2, b1] = ["pod-a-1", "pod-a-2", "pod-b-1"].map(|name| Endpoint::of(cluster.pod(name)));
    let client = cluster.pod("pod-a-3").client();
    let mut apply = |slices: &[&[&Endpoint]]| apply_slices(&mut deployment, slices);
    apply(&[&[&a1], &[&a2], &[&b1]]);
    assert_answers(&client, vips(), &["pod-a-1", "pod-a-2", "pod-b-1"]);
    apply(&[&[&a1], &[]]);
    assert_answers(&client, vips(), &["pod-a-1"]);
    let churns = vips().map(|vip| client.churn(Protocol::Tcp, vip, PER_SECOND, TIMEOUT * 3));
    let moves: [&[&[&Endpoint]]; 4] = [&[&[&a1], &[&a1]], &[&[], &[&a1]], &[&[&a1], &[]], &[&[], &[], &[&a1]]];
    for slices in moves {
        apply(slices);
        Churn::wait_for_attempts(&churns, ATTEMPTS, TIMEOUT);
    }
    for churn in churns {
        let report = churn.finish();
        assert_eq!(report.failures, []);
        assert_eq!(report.answered_by("pod-a-1"), report.attempts);
    }
}

/// A slice that is labelled for another Service takes its endpoints there: the former Service loses them.
pub fn relabelled_slice_moves_its_endpoints(backend: Backend) {
    let other = Service::new("other").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
    let mut deployment = Deployment::start(backend, |_| vec![other]);
    let cluster = deployment.cluster();
    let client = cluster.pod("pod-a-3").client();
    let slices = ["pod-a-1", "pod-b-1"].map(|name| (vec![Endpoint::of(cluster.pod(name))], 8080));
    let vips_of_other = IpFamily::ALL.map(|family| SocketAddr::new(plan::cluster_ip(2).ip(family), PORT));

    for (owner, pods, pods_of_other) in [
        ("web", &["pod-a-1", "pod-b-1"][..], &[][..]),
        ("other", &["pod-a-1"], &["pod-b-1"]),
        ("web", &["pod-a-1", "pod-b-1"], &[]),
    ] {
        deployment.apply_changed(&web(), |objects| {
            replace_slices(objects, &slices);
            // Those of the second pod, one for each family.
            for slice in &mut objects[3..] {
                slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(owner);
            }
        });

        assert_answers(&client, vips(), pods);
        if pods_of_other.is_empty() {
            assert_closed(&client, vips_of_other);
        } else {
            assert_answers(&client, vips_of_other, pods_of_other);
        }
    }
}

/// If two slices have the same address, because a new pod has the address of a terminating one, the live pod is used,
/// whichever slice it is in.
pub fn duplicate_address_is_that_of_the_live_pod(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let in_state = |state| Endpoint::of(cluster.pod("pod-b-1")).state(state);
    let (ready, draining, gone, unready) =
        (in_state(Ready), in_state(Draining), in_state(Terminating), in_state(NotReady));
    let other = Endpoint::of(cluster.pod("pod-b-2")).state(Draining);
    let client = cluster.pod("pod-a-3").client();
    for slices in [[&ready, &gone], [&gone, &ready], [&ready, &draining], [&draining, &ready], [&ready, &ready]] {
        apply_slices(&mut deployment, &[&[slices[0], &other], &[slices[1]]]);
        // It is ready, so terminating endpoints are not used.
        assert_answers(&client, vips(), &["pod-b-1"]);
    }
    apply_slices(&mut deployment, &[&[&unready, &other], &[&draining]]);
    assert_answers(&client, vips(), &["pod-b-2"]);
}

/// Pods of one service serve different port numbers, with one slice for each number.
pub fn pods_may_differ_in_target_ports(backend: Backend) {
    let builder = Deployment::builder(backend).cluster(Cluster::builder().ports(&[8080, 9090]));
    let mut deployment = builder.start(|_| Vec::new());
    let cluster = deployment.cluster();
    let expected = [("pod-a-1", 8080), ("pod-a-2", 9090), ("pod-b-1", 9090)];
    let slices = expected.map(|(name, port)| (vec![Endpoint::of(cluster.pod(name))], port));
    let service = web();
    deployment.apply_changed(&service, |objects| replace_slices(objects, &slices));
    let client = deployment.cluster().pod("pod-a-3").client();
    for to in vips() {
        for protocol in Protocol::ALL {
            assert_pods(&client, protocol, to, &expected.map(|(pod, _)| pod));
            for _ in 0..10 {
                let reply = client.ask(protocol, to).expect("an answer");
                let port = expected.iter().find(|(pod, _)| *pod == reply.pod).map(|(_, port)| *port);
                assert_eq!(Some(reply.endpoint.port()), port, "{protocol} {to}: {reply}");
            }
        }
    }
}

// === conditions ===

/// A missing `ready` or `serving` counts as true, a missing `terminating` as false. `ready` alone decides, as Services
/// with `publishNotReadyAddresses` require.
pub fn conditions_select_endpoints(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let client = deployment.cluster().pod("pod-a-3").client();
    let subject = Endpoint::of(deployment.cluster().pod("pod-b-1"));
    let drains = Endpoint::of(deployment.cluster().pod("pod-b-2")).state(Draining);
    let (ready, last_resort, out) = (&["pod-b-1"][..], &["pod-b-1", "pod-b-2"][..], &["pod-b-2"][..]);
    for (conditions, expected) in [
        (json!(null), ready),
        (json!({}), ready),
        (json!({ "ready": true }), ready),
        (json!({ "terminating": false }), ready),
        (json!({ "ready": null, "serving": null, "terminating": null }), ready),
        (json!({ "ready": true, "serving": false, "terminating": false }), ready),
        (json!({ "ready": true, "serving": false, "terminating": true }), ready),
        (json!({ "ready": false }), out),
        (json!({ "ready": false, "serving": true, "terminating": false }), out),
        (json!({ "ready": false, "serving": false, "terminating": true }), out),
        (json!({ "ready": false, "terminating": true }), last_resort),
        (json!({ "ready": false, "serving": true, "terminating": true }), last_resort),
    ] {
        let service = web().endpoints([subject.clone(), drains.clone()]);
        deployment.apply_changed(&service, |objects| {
            objects[1..].iter_mut().for_each(|slice| slice["endpoints"][0]["conditions"] = conditions.clone());
        });
        let [v4, v6] = vips();
        assert_pods(&client, Protocol::Tcp, v4, expected);
        assert_pods(&client, Protocol::Udp, v6, expected);
    }
}

// === what is ignored ===

/// Ignored are slices of other address types and Services, ports without a number or a name, and all but the first
/// address of an endpoint.
pub fn unusable_slices_are_ignored(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let client = cluster.pod("pod-a-3").client();
    let (good, bad) = (web().pods([cluster.pod("pod-a-1")]), web().pods([cluster.pod("pod-b-1")]));
    let [further4, further6] = cluster.pod("pod-b-2").address.both().map(|address| json!(address));
    let changes: [&dyn Fn(&mut Value); 9] = [
        &|slice| slice["addressType"] = json!("FQDN"),
        &|slice| {
            let other = if slice["addressType"] == "IPv4" { "IPv6" } else { "IPv4" };
            slice["addressType"] = json!(other);
        },
        &|slice| slice["metadata"]["labels"]["service.kubernetes.io/headless"] = json!(""),
        &|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!("another"),
        &|slice| slice["metadata"]["labels"] = json!({}),
        &|slice| slice["metadata"]["namespace"] = json!("another"),
        &|slice| each(&mut slice["ports"], |port| port["port"] = json!(null)),
        &|slice| each(&mut slice["ports"], |port| port["name"] = json!(null)),
        &|slice| slice["endpoints"][0]["addresses"] = json!([]),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut extra = bad.objects().split_off(1);
        for slice in &mut extra {
            slice["metadata"]["name"] = json!(format!("bad-{number}-{}", slice["addressType"]));
            change(slice);
        }
        deployment.apply_changed(&good, |objects| {
            // Only the first address of an endpoint is used.
            for (slice, further) in objects[1..].iter_mut().zip([&further4, &further6]) {
                slice["endpoints"][0]["addresses"].as_array_mut().expect("a list").push(further.clone());
            }
            objects.extend(extra);
        });
        assert_answers(&client, vips(), &["pod-a-1"]);
    }
    deployment.apply_changed(&good, |objects| objects.truncate(1));
    assert_closed(&client, vips());
}

/// Changes of labels, annotations and the order of endpoints write nothing to a kernel.
pub fn irrelevant_changes_write_nothing(backend: Backend) {
    let pods = ["pod-a-1", "pod-b-1", "pod-b-2"];
    let web = |cluster: &Cluster| web().pods(pods.map(|name| cluster.pod(name)));
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let service = web(deployment.cluster());
    let nodes = deployment.cluster().nodes();
    let mut monitors = nodes.iter().map(|node| deployment.monitor(node)).collect::<Vec<_>>();
    let changes: [fn(&mut Value); 4] = [
        |object| object["metadata"]["annotations"]["example.org/note"] = json!("1"),
        |object| object["metadata"]["labels"]["example.org/team"] = json!("1"),
        |object| object["metadata"]["resourceVersion"] = json!("77"),
        |object| {
            for field in ["/endpoints", "/ports", "/spec/ports"] {
                if let Some(list) = object.pointer_mut(field).and_then(Value::as_array_mut) {
                    list.reverse();
                }
            }
        },
    ];
    for change in changes {
        deployment.apply_changed(&service, |objects| objects.iter_mut().for_each(change));
    }
    for monitor in &mut monitors {
        let (fence, others): (Vec<_>, Vec<_>) =
            monitor.changes().into_iter().partition(|line| Deployment::is_fence(line));
        assert_eq!(others, [""; 0]);
        assert!(!fence.is_empty(), "the monitor sees what is written");
    }
    let client = deployment.cluster().pod("pod-a-3").client();
    assert_answers(&client, vips(), &pods);
}

// === what they share ===

fn web() -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080)
}

fn vips() -> [SocketAddr; 2] {
    IpFamily::ALL.map(|family| SocketAddr::new(plan::cluster_ip(1).ip(family), PORT))
}

/// Writes the service with these slices in each family, all for port 8080.
#[track_caller]
fn apply_slices(deployment: &mut Deployment, slices: &[&[&Endpoint]]) {
    let slices = slices.iter().map(|endpoints| (endpoints.iter().copied().cloned().collect(), 8080));
    let slices = slices.collect::<Vec<_>>();
    deployment.apply_changed(&web(), |objects| replace_slices(objects, &slices));
}

/// Replaces the slices of the service by these: endpoints, and their port.
fn replace_slices(objects: &mut Vec<Value>, slices: &[(Vec<Endpoint>, u16)]) {
    objects.truncate(1);
    for (number, (endpoints, port)) in slices.iter().enumerate() {
        for mut slice in web().endpoints(endpoints.clone()).objects().split_off(1) {
            slice["metadata"]["name"] = json!(format!("web-{number}-{}", slice["addressType"]));
            each(&mut slice["ports"], |entry| entry["port"] = json!(port));
            objects.push(slice);
        }
    }
}

fn each(list: &mut Value, change: impl FnMut(&mut Value)) {
    list.as_array_mut().expect("a list").iter_mut().for_each(change);
}
