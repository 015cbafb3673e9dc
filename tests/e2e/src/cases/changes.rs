//! Changes under traffic: unrelated traffic is not affected, and changes take effect at once.

use std::{net::SocketAddr, time::Duration};

use super::expect::{assert_closed, assert_pods};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy},
    plan::{self, IpFamily},
    traffic::{Churn, Stream},
    wire::{Failure, Protocol},
};

const PORT: u16 = 80;
const INTERVAL: Duration = Duration::from_millis(15);
const PER_SECOND: u32 = 100;
/// Enough to notice a gap, and to reach each of a few endpoints.
const ATTEMPTS: u64 = 60;

// === endpoints ===

/// An endpoint drains and is removed: no new connection fails and none is broken, including its own.
pub fn endpoint_drains_and_is_removed(backend: Backend) {
    let pods = ["pod-a-1", "pod-b-1", "pod-b-2"];
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &pods)]);
    let streams = streams_to_each(deployment.cluster(), &pods);
    let churns = churns(deployment.cluster());

    let cluster = deployment.cluster();
    let endpoints = pods.map(|name| Endpoint::of(cluster.pod(name)));
    let [a1, b1, b2] = endpoints;
    let draining = web(cluster, &[]).endpoints([a1.clone(), b1.state(EndpointState::Draining), b2.clone()]);
    let gone = web(cluster, &[]).endpoints([a1, b2]);
    deployment.apply(&draining);
    let before = churns.iter().map(|churn| churn.report().answered_by("pod-b-1")).collect::<Vec<_>>();
    wait(&churns);
    deployment.apply(&gone);
    wait(&churns);
    for (churn, before) in churns.into_iter().zip(before) {
        let report = churn.finish();
        assert_eq!(report.failures, [], "{:?}", report.pods);
        // One request may have been in flight when the endpoint was removed.
        assert!(report.answered_by("pod-b-1") <= before + 1, "{report:?}");
    }
    assert_clean(streams);
    let client = deployment.cluster().pod("pod-a-3").client();
    deployment.cluster().pod("pod-b-1").stop();
    assert_pods(&client, Protocol::Tcp, vip(IpFamily::V4), &["pod-a-1", "pod-b-2"]);
}

/// An added endpoint is used, and so is one that replaces another. Connections to other endpoints continue.
pub fn endpoints_are_added_and_replaced(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1", "pod-b-1"])]);
    let streams = streams_to_each(deployment.cluster(), &["pod-a-1", "pod-b-1"]);
    let churns = churns(deployment.cluster());
    let steps: [&[&str]; 4] = [
        &["pod-a-1", "pod-b-1", "pod-a-2"],
        &["pod-a-1", "pod-b-2", "pod-a-2"],
        &["pod-b-2", "pod-b-3"],
        &["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2", "pod-b-3"],
    ];
    for pods in steps {
        let service = web(deployment.cluster(), pods);
        deployment.apply(&service);
        let client = deployment.cluster().pod("pod-a-3").client();
        for family in IpFamily::ALL {
            Protocol::ALL.into_iter().for_each(|protocol| assert_pods(&client, protocol, vip(family), pods));
        }
    }
    wait(&churns);
    for churn in churns {
        assert_eq!(churn.finish().failures, []);
    }
    assert_clean(streams);
}

/// A service without endpoints rejects connections. With its first endpoint it answers, also on a flow that was
/// rejected.
pub fn first_endpoint_is_added_and_last_removed(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &[])]);
    let without = web(deployment.cluster(), &[]);
    let with = web(deployment.cluster(), &["pod-b-1"]);
    let client = deployment.cluster().pod("pod-a-3").client();
    for round in 0..3 {
        let flow = |family| client.clone().with_source_port(source(family, round));
        for family in IpFamily::ALL {
            for protocol in Protocol::ALL {
                assert_eq!(flow(family).ask(protocol, vip(family)), Err(Failure::Refused), "{protocol}");
            }
        }
        deployment.apply(&with);
        for family in IpFamily::ALL {
            for protocol in Protocol::ALL {
                let answer = flow(family).ask(protocol, vip(family)).map(|reply| reply.pod);
                assert_eq!(answer.as_deref(), Ok("pod-b-1"), "{protocol} {family}");
            }
        }
        let stream = client.stream(Protocol::Tcp, vip(IpFamily::V4), INTERVAL).expect("a connection");
        deployment.apply(&without);
        assert!(stream.wait_echoes(10, TIMEOUT), "the connection outlives the removal of its endpoint");
        assert!(stream.finish().is_clean());
    }
}

/// Under policy Local, a service without an endpoint on the node drops packets. With its first one there it answers,
/// also on a flow that was dropped.
pub fn first_local_endpoint_is_used_at_once(backend: Backend) {
    let local = |cluster: &Cluster, pods: &[&str]| web(cluster, pods).internal_policy(TrafficPolicy::Local);
    let mut deployment = Deployment::start(backend, |cluster| vec![local(cluster, &["pod-b-1"])]);
    let client = deployment.cluster().pod("pod-a-3").client();
    let flow = |family| client.clone().with_source_port(source(family, 0));
    for family in IpFamily::ALL {
        for protocol in Protocol::ALL {
            let answer = flow(family).with_deadline(Duration::from_millis(100)).ask(protocol, vip(family));
            assert_eq!(answer, Err(Failure::TimedOut), "{protocol} {family}");
        }
    }
    let service = local(deployment.cluster(), &["pod-b-1", "pod-a-1"]);
    deployment.apply(&service);
    for family in IpFamily::ALL {
        for protocol in Protocol::ALL {
            let answer = flow(family).ask(protocol, vip(family)).map(|reply| reply.pod);
            assert_eq!(answer.as_deref(), Ok("pod-a-1"), "{protocol} {family}");
        }
    }
}

// === services change ===

/// Creating and deleting a service does not affect another one.
pub fn services_are_created_and_deleted(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1", "pod-b-1"])]);
    let streams = streams_to_each(deployment.cluster(), &["pod-a-1", "pod-b-1"]);
    let churns = churns(deployment.cluster());
    let other = Service::new("other").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
    let other = other.pods([deployment.cluster().pod("pod-b-2")]);
    let client = deployment.cluster().pod("pod-a-3").client();
    let vip = |family| SocketAddr::new(plan::cluster_ip(2).ip(family), PORT);
    for _ in 0..2 {
        assert_closed(&client, IpFamily::ALL.map(vip));
        deployment.apply(&other);
        for family in IpFamily::ALL {
            Protocol::ALL.into_iter().for_each(|protocol| assert_pods(&client, protocol, vip(family), &["pod-b-2"]));
        }
        deployment.delete(&other);
    }
    assert_closed(&client, IpFamily::ALL.map(vip));
    wait(&churns);
    for churn in churns {
        assert_eq!(churn.finish().failures, []);
    }
    assert_clean(streams);
}

/// A service changes its port and its target port. The old port no longer answers.
pub fn port_changes_apply_at_once(backend: Backend) {
    let service = |cluster: &Cluster, port, target| {
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(port, target);
        service.pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-1")])
    };
    let cluster = Cluster::builder().ports(&[8080, 9090]);
    let mut deployment =
        Deployment::builder(backend).cluster(cluster).start(|cluster| vec![service(cluster, 80, 8080)]);
    let client = deployment.cluster().pod("pod-a-3").client();
    let vip = |port| move |family| SocketAddr::new(plan::cluster_ip(1).ip(family), port);
    for (port, target) in [(80, 9090), (81, 9090), (82, 8080)] {
        let changed = service(deployment.cluster(), port, target);
        deployment.apply(&changed);
        for family in IpFamily::ALL {
            for protocol in Protocol::ALL {
                let reply = client.ask(protocol, vip(port)(family)).expect("an answer");
                assert_eq!(reply.endpoint.port(), target, "{protocol} {family}");
            }
        }
        if port != 80 {
            assert_closed(&client, IpFamily::ALL.map(vip(port - 1)));
        }
    }
}

/// Both policies change in both directions, and take effect on both nodes.
pub fn policy_changes_apply_at_once(backend: Backend) {
    let pods = ["pod-a-1", "pod-b-1"];
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &pods)]);
    for (policy, expected) in [
        (TrafficPolicy::Local, [&["pod-a-1"][..], &["pod-b-1"]]),
        (TrafficPolicy::Cluster, [&pods[..], &pods]),
        (TrafficPolicy::Local, [&["pod-a-1"], &["pod-b-1"]]),
    ] {
        let service = web(deployment.cluster(), &pods).internal_policy(policy);
        deployment.apply(&service);
        for (node, expected) in deployment.cluster().nodes().iter().zip(expected) {
            for family in IpFamily::ALL {
                for protocol in Protocol::ALL {
                    assert_pods(&node.pod(3).client(), protocol, vip(family), expected);
                }
            }
        }
    }
}

// === what they share ===

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(pods.iter().map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}

/// A port of pod-a-3, so that each request from it is the same flow.
fn source(family: IpFamily, number: u16) -> SocketAddr {
    SocketAddr::new(plan::pod(1, 3).ip(family), 20_000 + number)
}

/// A TCP connection to each of `pods`, in each family.
#[track_caller]
fn streams_to_each(cluster: &Cluster, pods: &[&str]) -> Vec<Stream> {
    let client = cluster.pod("pod-a-3").client();
    let mut streams = Vec::new();
    for family in IpFamily::ALL {
        let mut missing = pods.to_vec();
        while !missing.is_empty() {
            let stream = client.stream(Protocol::Tcp, vip(family), INTERVAL).expect("a connection");
            assert!(stream.wait_echoes(1, TIMEOUT), "an echo");
            let pod = stream.report().pods.into_keys().next().expect("a pod answers");
            // A second connection to the same pod is closed.
            if let Some(at) = missing.iter().position(|missing| **missing == pod) {
                missing.remove(at);
                streams.push(stream);
            }
        }
    }
    streams
}

/// New connections from a pod and from outside.
fn churns(cluster: &Cluster) -> [Churn; 2] {
    [(cluster.pod("pod-b-3").client(), IpFamily::V4), (cluster.client(), IpFamily::V6)]
        .map(|(client, family)| client.churn(Protocol::Tcp, vip(family), PER_SECOND, TIMEOUT * 3))
}

#[track_caller]
fn wait(churns: &[Churn]) {
    Churn::wait_for_attempts(churns, ATTEMPTS, TIMEOUT);
}

#[track_caller]
fn assert_clean(streams: Vec<Stream>) {
    // The connections continue.
    Stream::wait_for_echoes(&streams, 3, TIMEOUT);
    for stream in streams {
        let report = stream.finish();
        assert!(report.is_clean(), "{report:?}");
    }
}
