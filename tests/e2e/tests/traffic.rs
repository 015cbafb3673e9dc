//! Background traffic counts losses and resets: a stream that did not would hide an interruption in every case.

use std::{net::SocketAddr, time::Duration};

use e2e::{Cluster, Failure, Protocol, StreamReport, patience, tools};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a lost message is waited for.
const SHORT: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_millis(15);

#[test]
fn stream_counts_resets_and_losses() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let pod = cluster.pod("pod-a-1");
    let to = SocketAddr::new(pod.address.v6.into(), 8080);
    // The kernel repeats segments at intervals that double, so the stream recovers as long after the loss as that took.
    let client = cluster.client().with_deadline(patience(5 * SHORT));
    let open = |protocol| client.stream(protocol, to, INTERVAL).expect("a stream");
    let (tcp, udp) = (open(Protocol::Tcp), open(Protocol::Udp));
    assert!(tcp.wait_echoes(1, TIMEOUT) && udp.wait_echoes(1, TIMEOUT));

    let drop_all = "table inet by-hand { chain forward { type filter hook forward priority filter; policy drop; }\n}\n";
    tools::nft(&cluster.node('a').netns, drop_all);
    let lost = |report: &StreamReport| report.lost > 0;
    assert!(tcp.wait_until(TIMEOUT, lost) && udp.wait_until(TIMEOUT, lost));
    tools::nft(&cluster.node('a').netns, "delete table inet by-hand\n");
    assert!(tcp.wait_echoes(1, TIMEOUT) && udp.wait_echoes(1, TIMEOUT), "both streams recover");

    pod.stop();
    let churn = cluster.client().churn(Protocol::Tcp, to, 200, TIMEOUT);
    assert!(churn.wait_attempts(5, TIMEOUT));
    assert!(!tcp.wait_echoes(1, TIMEOUT), "the wait ends with the connection");
    assert_eq!(tcp.finish().resets, 1);
    let report = churn.finish();
    assert!(report.failures.iter().all(|(_, failure)| *failure == Failure::Refused));
    assert_eq!(report.failures.len() as u64, report.attempts);

    assert!(udp.wait_until(TIMEOUT, |report| report.resets > 0));
    pod.serve(&[8080]);
    assert!(udp.wait_echoes(1, TIMEOUT), "a UDP flow survives a restart of its server");
}
