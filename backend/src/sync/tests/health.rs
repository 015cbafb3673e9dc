//! Health-check node ports report what is programmed, and whether syncs succeed. In a network namespace.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::Command,
};

use netlink::testing::block_on_in_netns;

use super::*;
use crate::testing::StateBuilder;

const PORT: u16 = 32_000;

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    block_on_in_netns(|| async move {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let minute = Duration::from_secs(60);
        tokio::time::timeout(minute, test()).await.expect("in time");
    });
}

/// The status that a load balancer receives; `None` when the port is closed.
async fn status() -> Option<u16> {
    let ask = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        Some(answer.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap())
    };
    // The thread inherits the network namespace.
    tokio::task::spawn_blocking(ask).await.unwrap()
}

async fn until(expected: Option<u16>) {
    while status().await != expected {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn mk_web(local: &'static [&'static str]) -> NodeState {
    let web = |web: crate::testing::ServiceBuilder| {
        web.cluster_ip("10.96.0.1").health_check_node_port(PORT).local_endpoints(local.iter().copied())
    };
    mk_state().service("default/web", web).build()
}

#[test]
fn health_checks_follow_the_programmed_state() {
    run(follow);
}

async fn follow() {
    let states = [mk_web(&["10.244.1.1:80"]), mk_web(&[]), mk_state().build()];
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&states[0]).await;
    until(Some(200)).await;

    // Neither the unprogrammed commit nor one failure counts.
    fixture.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&states[0], &states[2])).await;
    fixture.progress.wait_for(|progress| progress.kernel.error.is_some()).await.unwrap();
    assert_eq!(status().await, Some(200));
    peer.commit(2, 3, operations_between(&states[2], &states[0])).await;
    peer.barrier().await;
    fixture.kernel.recover();
    peer.ack().await;
    assert_eq!(status().await, Some(200));

    peer.commit(3, 4, operations_between(&states[0], &states[1])).await;
    peer.ack().await;
    assert_eq!(status().await, Some(503));
    peer.commit(4, 5, operations_between(&states[1], &states[2])).await;
    peer.ack().await;
    until(None).await;
    fixture.stop().await;
}

/// A load balancer sends connections to all ports of a node that it finds healthy.
#[test]
fn service_is_healthy_when_all_its_ports_are_programmed() {
    run(|| async {
        let web = |local: &'static [&'static str]| {
            let ports = [("default/web:http", 80), ("default/web:https", 443)];
            let with_port = |state: StateBuilder, (key, port)| {
                state.service(key, |web| {
                    let web = web.port(port).cluster_ip("10.96.0.1").health_check_node_port(PORT);
                    web.local_endpoints(local.iter().copied())
                })
            };
            ports.into_iter().fold(mk_state(), with_port).build()
        };
        let states = [web(&[]), web(&["10.244.1.1:80"])];
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&states[0]).await;
        until(Some(503)).await;

        fixture.kernel.limit(1);
        fixture.kernel.slow(Duration::from_secs(3));
        peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
        assert_eq!(peer.ack().await.programmed, Revision(1));
        assert_eq!(status().await, Some(503), "one port of two is programmed");
        assert_eq!(peer.ack().await.programmed, Revision(2));
        until(Some(200)).await;
        fixture.stop().await;
    });
}

#[test]
fn health_checks_end_with_the_process() {
    run(|| async {
        let mut fixture = start(&FakeKernel::default(), None);
        let _peer = fixture.following(&mk_web(&["10.244.1.1:80"])).await;
        until(Some(200)).await;
        fixture.stop().await;
        until(None).await;
    });
}

#[test]
fn port_that_cannot_be_opened_is_in_each_ack_until_it_can() {
    run(|| async {
        let taken = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        let mut fixture = start(&FakeKernel::default(), None);
        let state = mk_web(&["10.244.1.1:80"]);
        let mut peer = fixture.following(&state).await;
        let failing = fixture.progress.wait_for(|progress| progress.failures.len() == 1).await.unwrap().clone();
        // The frontend need not send anything.
        let failures = peer.ack().await.failures;
        assert_eq!(failures, failing.failures);
        let digest = peer.barrier().await;
        peer.bookmark(2, digest).await;
        assert_eq!(peer.ack().await.failures, failures);
        let in_use = "health-check node port 32000 (IPv4) cannot be opened: Address already in use (os error 98)";
        assert_eq!(failures[0].key, mk_key("default/web"));
        assert_eq!((failures[0].kind, failures[0].reason.as_str()), (FailureKind::HealthCheck, in_use));
        assert_eq!(fixture.keys().len(), 1, "traffic is served");

        drop(taken);
        fixture.progress.wait_for(|progress| progress.failures.is_empty()).await.unwrap();
        assert_eq!(peer.ack().await.failures, []);
        peer.bookmark(3, digest).await;
        assert_eq!(peer.ack().await.failures, []);
        fixture.stop().await;
    });
}
