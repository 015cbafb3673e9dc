//! The test cluster without a backend: all hosts reach each other, and clients distinguish the kinds of failure.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use e2e::{Client, Cluster, Failure, IpFamily, Protocol, Reply, plan};

/// Sends a request to `pod`, and checks which pod answers, at which address, and which source it saw.
#[track_caller]
fn assert_reaches(client: &Client, source: IpAddr, protocol: Protocol, pod: &str, endpoint: SocketAddr) {
    let reply = client.ask(protocol, endpoint);
    let Ok(Reply { pod: answered, seen_source, endpoint: delivered }) = reply else {
        panic!("{source} to {pod} {endpoint} over {protocol}: {reply:?}");
    };
    assert_eq!((answered.as_str(), seen_source.ip(), delivered), (pod, source, endpoint), "{protocol}");
}

#[test]
fn every_client_reaches_every_pod_untranslated() {
    let start = Instant::now();
    let cluster = Cluster::start();
    println!("cluster up in {:?}", start.elapsed());
    let mut clients = vec![(cluster.client(), plan::OUTSIDE)];
    clients.extend(cluster.pods().map(|pod| (pod.client(), pod.address)));
    let start = Instant::now();
    for (client, source) in &clients {
        for to in cluster.pods() {
            for family in IpFamily::ALL {
                let endpoint = SocketAddr::new(to.address.ip(family), 8080);
                for protocol in Protocol::ALL {
                    assert_reaches(client, source.ip(family), protocol, &to.name, endpoint);
                }
            }
        }
    }
    println!("252 requests in {:?}", start.elapsed());
}

#[test]
fn a_node_reaches_pods_everywhere() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        for pod in cluster.pods() {
            for ip in pod.address.both() {
                let reply = node.client().tcp(SocketAddr::new(ip, 8080)).expect("node to pod");
                assert_eq!(reply.pod, pod.name);
            }
        }
    }
}

#[test]
fn outside_client_has_many_addresses() {
    let cluster = Cluster::builder().pods_per_node(1).start();
    for number in 1..=plan::CLIENT_SOURCES {
        for family in IpFamily::ALL {
            let source = plan::client_source(number).ip(family);
            let pod = cluster.pod("pod-b-1");
            let endpoint = SocketAddr::new(pod.address.ip(family), 8080);
            for protocol in Protocol::ALL {
                assert_reaches(&cluster.client().with_source(source), source, protocol, &pod.name, endpoint);
            }
        }
    }
    let source = SocketAddr::new(plan::client_source(1).v4.into(), 4_242);
    let client = cluster.client().with_source_port(source);
    for protocol in Protocol::ALL {
        // A closed connection frees the port immediately.
        for _ in 0..5 {
            let to = SocketAddr::new(cluster.pod("pod-a-1").address.v4.into(), 8080);
            assert_eq!(client.ask(protocol, to).expect("a fixed port").seen_source, source, "{protocol}");
        }
    }
}

#[test]
fn closed_port_rejects() {
    let cluster = Cluster::builder().pods_per_node(1).start();
    let pod = cluster.pod("pod-a-1");
    // More requests than the kernel's default rate limit of ICMP errors allows.
    for ip in pod.address.both().repeat(10) {
        for protocol in Protocol::ALL {
            let answer = cluster.client().ask(protocol, SocketAddr::new(ip, 9));
            assert_eq!(answer, Err(Failure::Refused), "{protocol} {ip}");
        }
    }
}

#[test]
fn request_without_an_answer_times_out() {
    let cluster = Cluster::builder().pods_per_node(1).start();
    let clients = [cluster.client(), cluster.pod("pod-b-1").client(), cluster.node('a').client()];
    for client in clients {
        let client = client.with_deadline(Duration::from_millis(100));
        for ip in plan::cluster_ip(1).both() {
            for protocol in Protocol::ALL {
                let start = Instant::now();
                assert_eq!(client.ask(protocol, SocketAddr::new(ip, 80)), Err(Failure::TimedOut), "{protocol} {ip}");
                assert!(start.elapsed() >= Duration::from_millis(90));
            }
        }
    }
}

#[test]
fn missing_route_is_unreachable() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let node = cluster.node('a');
    node.netns.ip("route add unreachable 10.96.0.0/16\nroute add unreachable fd00:10:96::/112\n");
    for ip in plan::cluster_ip(1).both() {
        for client in [node.client(), node.pod(1).client()] {
            for protocol in Protocol::ALL {
                let answer = client.ask(protocol, SocketAddr::new(ip, 80));
                assert_eq!(answer, Err(Failure::Unreachable), "{protocol} {ip}");
            }
        }
    }
}

#[test]
fn server_can_change_its_ports() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let pod = cluster.pod("pod-a-1");
    let ask = |port| cluster.client().tcp(SocketAddr::new(pod.address.v4.into(), port)).map(|reply| reply.pod);
    assert_eq!(ask(8080).as_deref(), Ok("pod-a-1"));
    pod.serve(&[9090, 9091]);
    assert_eq!(ask(8080), Err(Failure::Refused));
    assert_eq!(ask(9091).as_deref(), Ok("pod-a-1"));
    pod.stop();
    assert_eq!(ask(9091), Err(Failure::Refused));
}
