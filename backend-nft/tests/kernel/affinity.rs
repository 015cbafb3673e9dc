//! The clients that rules store: reconciles keep them, nft can list them, and the map may be full.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
    ops::Range,
    process::Command,
    time::Duration,
};

use backend::{
    Backend, NodeState,
    testing::{mk_state, transition},
};
use netlink::nft::{Element, Fields, NftBatch, NftHandle};

use super::support::{assert_readable, backend, nft, reconcile, run};

/// A service with affinity of this many seconds; 0: none.
fn state(seconds: u32) -> NodeState {
    mk_state()
        .service("default/web/udp", |web| {
            let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30080);
            let web = web.endpoints(["10.244.1.1:8080", "10.244.1.1:9090", "[fd00:244:1::1]:8080"]);
            if seconds == 0 { web } else { web.affinity(seconds) }
        })
        .build()
}

const CLIENTS: [(&str, &str); 4] = [
    ("ip fairlead affinity", "10.96.0.1 . udp . 80 . 192.0.2.7 timeout 1h : 0 . 10.244.1.1 . 8080"),
    ("ip fairlead nodeport-affinity", "udp . 30080 . 192.0.2.7 timeout 1h : 0 . 10.244.1.1 . 8080"),
    ("ip6 fairlead affinity", "fd00:96::1 . udp . 80 . fd00:2::7 timeout 1h : 0 . fd00:244:1::1 . 8080"),
    ("ip6 fairlead nodeport-affinity", "udp . 30080 . fd00:2::7 timeout 1h : 0 . fd00:244:1::1 . 8080"),
];

fn add_clients() {
    for (map, client) in CLIENTS {
        nft(&format!("add element {map} {{ {client} }}"));
    }
}

#[track_caller]
fn assert_clients_are_kept() {
    for (map, client) in CLIENTS {
        let (key, _) = client.split_once(" timeout").unwrap();
        let listed = nft(&format!("list map {map}"));
        assert!(listed.contains(&format!("{key} timeout 1h")), "{listed}");
    }
    assert_readable();
}

#[test]
fn clients_are_kept_by_changes_and_restarts() {
    run(|| async {
        let mut backend = backend();
        let mut current = state(60);
        backend.reconcile(&current).await.unwrap();
        add_clients();
        assert_clients_are_kept();
        assert_eq!(reconcile(&current).await.writes, 0);
        for seconds in [70, 0, 60] {
            let changes = transition(&mut current, &state(seconds));
            assert_eq!(backend.apply(&current, &changes).await.unwrap().failures, []);
            assert_clients_are_kept();
            assert_eq!(reconcile(&current).await.writes, 0, "{seconds}");
        }
        nft("flush chain ip fairlead services");
        assert!(reconcile(&current).await.writes > 0);
        assert_clients_are_kept();
    });
}

#[test]
fn changes_of_pools_by_others_are_repaired() {
    run(|| async {
        reconcile(&state(60)).await;
        for (change, writes) in [
            ("delete element ip fairlead live { 10.244.1.1 . 9090 . 10.96.0.1 . udp . 80 }", 1),
            ("add element ip fairlead live { 10.244.1.7 . 9090 . 10.96.0.1 . udp . 80 }", 1),
            ("delete element ip6 fairlead affine-endpoints { fd00:96::1 . udp . 80 . 0 }", 1),
            ("add element ip fairlead nodeport-affine-endpoints { udp . 30080 . 2 : 1 . 10.244.1.1 . 1 }", 1),
            // Fairlead never writes a padding other than zero.
            (
                "delete element ip fairlead affine-endpoints { 10.96.0.1 . udp . 80 . 1 } ; \
                 add element ip fairlead affine-endpoints { 10.96.0.1 . udp . 80 . 1 : 1 . 10.244.1.1 . 9090 }",
                2,
            ),
            ("flush chain ip fairlead affine-pool-2-60s", 4),
        ] {
            let before = nft("list table ip fairlead") + &nft("list table ip6 fairlead");
            nft(change);
            assert_ne!(nft("list table ip fairlead") + &nft("list table ip6 fairlead"), before, "{change}");
            assert_eq!(reconcile(&state(60)).await.writes, writes, "{change}");
            assert_eq!(reconcile(&state(60)).await.writes, 0, "{change}");
        }
    });
}

/// New clients are served by any endpoint, and stored again when the map is no longer full.
#[test]
fn clients_are_served_when_the_map_is_full() {
    run(|| async {
        reconcile(&state(60)).await;
        for arguments in ["link set lo up", "address add 10.244.1.1/32 dev lo", "route add 10.96.0.0/16 dev lo"] {
            assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
        }
        let servers = [8080, 9090].map(|port| UdpSocket::bind(("10.244.1.1", port)).unwrap());
        let _servers = servers.map(|server| std::thread::spawn(move || serve(&server)));

        fill();
        assert_eq!(responders(20_000..20_040), BTreeSet::from([8080, 9090]));
        nft("flush map ip fairlead affinity");
        assert_eq!(responders(21_000..21_040).len(), 1);
        let listed = nft("list map ip fairlead affinity");
        assert!(listed.contains("10.96.0.1 . udp . 80 . 10.244.1.1 timeout 1m"), "{listed}");
    });
}

/// Answers with its port until no packet has arrived for ten seconds.
fn serve(server: &UdpSocket) {
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = server.local_addr().unwrap().port();
    let mut buffer = [0; 16];
    while let Ok((_, client)) = server.recv_from(&mut buffer) {
        server.send_to(&port.to_be_bytes(), client).unwrap();
    }
}

/// The ports that answer one client. Each source port is used once: to conntrack a second packet is the same flow.
fn responders(from: Range<u16>) -> BTreeSet<u16> {
    from.map(|port| {
        let socket = UdpSocket::bind(("10.244.1.1", port)).unwrap();
        socket.connect("10.96.0.1:80").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send(b"?").unwrap();
        let mut answer = [0; 2];
        socket.recv(&mut answer).unwrap();
        u16::from_be_bytes(answer)
    })
    .collect()
}

/// Fills the map with clients of another VIP.
fn fill() {
    let mut handle = NftHandle::open().unwrap();
    let table = handle.tables(netlink::nft::TableFamily::Ip).unwrap().remove(0);
    let affinity = handle.sets(&table).unwrap().into_iter().find(|set| set.name == "affinity").unwrap();
    let key = |client| Fields::new().addr([10, 96, 0, 9]).proto(17).port(80).addr(Ipv4Addr::from_bits(client));
    let keys: Vec<Fields> = (1..=affinity.size.unwrap()).map(key).collect();
    let endpoint = Fields::new().mark(0).addr([10, 244, 1, 1]).port(8080);
    let timeout = Some(Duration::from_secs(3600));
    for keys in keys.chunks(4096) {
        let mut batch = NftBatch::new();
        let elements = keys.iter().map(|key| Element { timeout, ..Element::value(key, &endpoint) });
        batch.add_elements(&table, &affinity, elements);
        handle.commit(&batch).unwrap();
    }
}
