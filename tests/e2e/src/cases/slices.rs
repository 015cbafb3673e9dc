//! Endpoints of a Service from EndpointSlices, in every valid form.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::expect::{assert_answers, assert_closed, assert_pods};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready, Terminating};

const PORT: u16 = 80;

// === the cases ===

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
