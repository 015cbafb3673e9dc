//! The clients that rules store: reconciles keep them, nft can list them, and the map may be full.

use backend::testing::ProgramAll as _;
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
    ops::Range,
    process::Command,
    time::Duration,
};

use backend::{
    Backend as _, NodeState,
    testing::{ServiceBuilder, StateBuilder, mk_state, transition},
};
use netlink::nft::{Element, Fields, NftBatch, NftHandle};

use tokio::time::timeout;

use super::support::{assert_readable, backend, nft, reconcile, run};

/// The cluster IP.
const VIP: &str = "10.96.0.1:80";

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

const CLIENTS: [(&str, &str); 2] = [
    ("ip fairlead1 affine-clients", "10.96.0.1 . udp . 80 . 0x00000007 timeout 1h : 0 . 10.244.1.1 . 8080"),
    ("ip6 fairlead1 affine-clients", "fd00:96::1 . udp . 80 . 0x00000007 timeout 1h : 0 . fd00:244:1::1 . 8080"),
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
        backend.reconcile_all(&current).await.unwrap();
        add_clients();
        assert_clients_are_kept();
        assert_eq!(reconcile(&current).await.writes, 0);
        let changes = transition(&mut current, &state(70));
        assert_eq!(backend.apply_all(&current, &changes).await.unwrap().failures, []);
        assert_clients_are_kept();
        assert_eq!(reconcile(&current).await.writes, 0);
        nft("flush chain ip fairlead1 services");
        assert!(reconcile(&current).await.writes > 0);
        assert_clients_are_kept();
    });
}

/// However few clients are stored.
#[test]
fn clients_go_with_their_service_and_its_affinity() {
    run(|| async {
        let mut backend = backend();
        let mut current = state(60);
        backend.reconcile_all(&current).await.unwrap();
        for without in [mk_state().build(), state(0)] {
            add_clients();

            for to in [without, state(60)] {
                let changes = transition(&mut current, &to);
                assert_eq!(backend.apply_all(&current, &changes).await.unwrap().failures, []);
            }

            for (map, _) in CLIENTS {
                let listed = nft(&format!("list map {map}"));
                assert!(!listed.contains("10.244.1.1") && !listed.contains("fd00:244:1::1"), "{listed}");
            }
        }
    });
}

#[test]
fn changes_of_pools_by_others_are_repaired() {
    run(|| async {
        reconcile(&state(60)).await;
        for (change, writes) in [
            ("delete element ip fairlead1 live { 10.244.1.1 . 9090 . 10.96.0.1 . udp . 80 }", 1),
            ("add element ip fairlead1 live { 10.244.1.7 . 9090 . 10.96.0.1 . udp . 80 }", 1),
            ("delete element ip6 fairlead1 affine-endpoints { fd00:96::1 . udp . 80 . 0 }", 1),
            ("add element ip fairlead1 affine-endpoints { 10.96.0.1 . udp . 80 . 2 : 1 . 10.244.1.1 . 1 }", 1),
            ("delete element ip fairlead1 nodeport-aliases { udp . 30080 }", 1),
            (
                "delete element ip fairlead1 nodeport-aliases { udp . 30080 } ; \
                 add element ip fairlead1 nodeport-aliases { udp . 30080 : 0 . 10.96.0.9 . udp . 80 }",
                2,
            ),
            // Fairlead never writes a padding other than zero.
            (
                "delete element ip fairlead1 affine-endpoints { 10.96.0.1 . udp . 80 . 1 } ; \
                 add element ip fairlead1 affine-endpoints { 10.96.0.1 . udp . 80 . 1 : 1 . 10.244.1.1 . 9090 }",
                2,
            ),
            ("flush chain ip fairlead1 affine-pool-2-60s", 4),
        ] {
            let before = nft("list table ip fairlead1") + &nft("list table ip6 fairlead1");
            nft(change);
            assert_ne!(nft("list table ip fairlead1") + &nft("list table ip6 fairlead1"), before, "{change}");
            assert_eq!(reconcile(&state(60)).await.writes, writes, "{change}");
            assert_eq!(reconcile(&state(60)).await.writes, 0, "{change}");
        }
    });
}

/// Endpoints on this node that answer with their port, and routes to the VIPs.
fn serve_endpoints() {
    for arguments in [
        "link set lo up",
        "address add 10.244.1.1/32 dev lo",
        "route add 10.96.0.0/16 dev lo",
        "route add 203.0.113.0/24 dev lo",
        "route add local 10.240.0.0/16 dev lo",
    ] {
        assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
    }
    for server in [8080, 9090].map(|port| UdpSocket::bind(("10.244.1.1", port)).unwrap()) {
        std::thread::spawn(move || serve(&server));
    }
}

/// New clients are served by any endpoint, and stored again when the map is no longer full.
#[test]
fn clients_are_served_when_the_map_is_full() {
    run(|| async {
        reconcile(&state(60)).await;
        serve_endpoints();
        fill();
        assert_eq!(responders(VIP, 20_000..20_040), BTreeSet::from([8080, 9090]));
        nft("flush map ip fairlead1 affine-clients");
        assert_eq!(responders(VIP, 21_000..21_040).len(), 1);
        let listed = nft("list map ip fairlead1 affine-clients");
        assert!(listed.contains("10.96.0.1 . udp . 80 . 0x") && listed.contains("timeout 1m"), "{listed}");
    });
}

/// The VIPs of a service port have one pool, and one map of clients.
#[test]
fn a_client_has_one_endpoint_at_all_vips() {
    run(|| async {
        let web = |web: ServiceBuilder| {
            let web = web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").external_ip("203.0.113.2");
            web.node_port(30080).affinity(60).endpoints(["10.244.1.1:8080", "10.244.1.1:9090"])
        };
        let state = mk_state().node_addresses(["10.240.0.1"]).service("default/web/udp", web).build();
        reconcile(&state).await;
        serve_endpoints();
        let vips = [VIP, "203.0.113.1:80", "203.0.113.2:80", "10.240.0.1:30080"];
        let responders = (20_000..).step_by(10).zip(vips).flat_map(|(port, vip)| responders(vip, port..port + 10));
        assert_eq!(responders.collect::<BTreeSet<_>>().len(), 1);
        assert_eq!(stored_clients(), 1);
    });
}

/// The attack: one Service has far more clients than client buckets. Those of another Service are stored all the same.
#[test]
fn one_service_stores_a_bounded_number_of_clients() {
    const CLIENTS: u32 = 30_000;
    const MAX_CLIENT_BUCKETS: u32 = 16_384;
    run(|| async {
        let ports = |count: u16| {
            let service = |web: ServiceBuilder, address: &str, port| {
                let web = web.cluster_ip(address).port(port).affinity(3_600);
                web.endpoints(["10.244.1.1:8080", "10.244.1.1:9090"])
            };
            let state = mk_state().service("default/web/udp", |web| service(web, "10.96.0.1", 80));
            let attacked = (1..=count).fold(state, |state, n| {
                state.service(&format!("other/attack:{n}/udp"), |web| service(web, "10.96.0.66", n))
            });
            attacked.build()
        };
        serve_endpoints();
        for count in [1, 4, 8] {
            reconcile(&mk_state().build()).await;
            nft("flush map ip fairlead1 affine-clients");
            reconcile(&ports(count)).await;
            for n in 0..CLIENTS {
                let client = UdpSocket::bind((Ipv4Addr::from(0x0af0_0000 + n), 0)).unwrap();
                let port = 1 + n % u32::from(count);
                client.send_to(b"?", (Ipv4Addr::new(10, 96, 0, 66), port as u16)).unwrap();
            }
            let stored = stored_clients();
            let most = MAX_CLIENT_BUCKETS / 8 * u32::from(count);
            assert!((most / 2..=most).contains(&stored), "{count} ports: {stored} clients");
            assert_eq!(responders(VIP, 20_000 + 100 * count..20_040 + 100 * count).len(), 1);
            assert_eq!(stored_clients(), stored + 1);
        }
    });
}

/// The attack: one Service is created again and again with other cluster IPs. Its former clients take no room.
#[test]
fn clients_of_a_removed_service_port_are_deleted() {
    run(|| async {
        let web = |count: u16| {
            let service = |web: ServiceBuilder, port| {
                web.cluster_ip("10.96.0.1").port(port).affinity(3_600).endpoints(["10.244.1.1:8080"])
            };
            let add = |state: StateBuilder, n| state.service(&format!("default/web:{n}/udp"), |web| service(web, n));
            (1..=count).fold(mk_state(), add).build()
        };
        let mut backend = backend();
        let mut current = web(17);
        backend.reconcile_all(&current).await.unwrap();
        for others in [0, 25_000] {
            nft("flush map ip fairlead1 affine-clients");
            add([10, 96, 0, 9], 80, 0..others);
            (1..=17).for_each(|port| add([10, 96, 0, 1], port, 1_500..1_510));
            for (count, left) in [(16, 160), (0, 0)] {
                let changes = transition(&mut current, &web(count));
                backend.apply_all(&current, &changes).await.unwrap();
                assert_eq!(stored_clients(), others + left, "{others} others, {count} service ports");
            }
            let changes = transition(&mut current, &web(17));
            backend.apply_all(&current, &changes).await.unwrap();
        }
        // Without clients, the deletion is no transaction that others could have made.
        backend.reconcile_all(&current).await.unwrap();
        let changes = transition(&mut current, &web(0));
        backend.apply_all(&current, &changes).await.unwrap();
        timeout(Duration::from_millis(300), backend.drifted()).await.unwrap_err();
    });
}

/// The same with more service ports than one transaction deletes clients of.
#[test]
fn clients_of_many_removed_service_ports_are_deleted() {
    const OTHERS: u32 = 25_000;
    run(|| async {
        let add_service = |state: StateBuilder, n| {
            state.service(&format!("shop-{n}/web/udp"), |web| {
                web.cluster_ip(&format!("10.96.1.{n}")).affinity(3_600).endpoints(["10.244.1.1:8080"])
            })
        };
        let mut backend = backend();
        let mut current = (0..40).fold(mk_state(), add_service).build();
        backend.reconcile_all(&current).await.unwrap();
        add([10, 96, 0, 9], 80, 0..OTHERS);
        (0..40).for_each(|n| add([10, 96, 1, n], 80, 1_500..1_510));
        assert_eq!(stored_clients(), OTHERS + 400);
        backend.reconcile_all(&current).await.unwrap();
        let changes = transition(&mut current, &mk_state().build());
        backend.apply_all(&current, &changes).await.unwrap();
        assert_eq!(stored_clients(), OTHERS);
        // All transactions were accounted for.
        timeout(Duration::from_millis(300), backend.drifted()).await.unwrap_err();
    });
}

/// The number of stored clients, which the metric reports if the kernel counts elements.
fn stored_clients() -> u32 {
    let mut handle = NftHandle::open().unwrap();
    let table = handle.tables(netlink::nft::TableFamily::Ip).unwrap().remove(0);
    let count = |count: &mut u32, _: Element<'_>| *count += 1;
    // While the kernel still resizes the hash table, a dump may have elements twice.
    let mut stored = || {
        let stored = handle.elements(&table, backend::NFT_CLIENTS, || 0, count).unwrap();
        (handle.count(&table, backend::NFT_CLIENTS).unwrap().unwrap_or(stored) == stored).then_some(stored)
    };
    (0..100).find_map(|_| stored()).unwrap_or_else(|| panic!("the kernel lists more elements than it counts"))
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
fn responders(vip: &str, from: Range<u16>) -> BTreeSet<u16> {
    from.map(|port| {
        let socket = UdpSocket::bind(("10.244.1.1", port)).unwrap();
        socket.connect(vip).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = [0; 2];
        // A datagram may be lost on a machine under load.
        let is_answered = (0..3).any(|_| {
            socket.send(b"?").unwrap();
            socket.recv(&mut answer).is_ok()
        });
        assert!(is_answered, "no answer to port {port}");
        u16::from_be_bytes(answer)
    })
    .collect()
}

/// Fills the map with clients of another VIP.
fn fill() {
    add([10, 96, 0, 9], 80, 0..196_608);
}

/// Stores clients of a VIP.
fn add(address: [u8; 4], port: u16, buckets: Range<u32>) {
    let mut handle = NftHandle::open().unwrap();
    let table = handle.tables(netlink::nft::TableFamily::Ip).unwrap().remove(0);
    let affinity = handle.sets(&table).unwrap().into_iter().find(|set| set.name == "affine-clients").unwrap();
    let key = |bucket| Fields::new().addr(address).proto(17).port(port).mark(bucket);
    let keys: Vec<Fields> = buckets.map(key).collect();
    let endpoint = Fields::new().mark(0).addr([10, 244, 1, 1]).port(8080);
    let timeout = Some(Duration::from_secs(3600));
    for keys in keys.chunks(4096) {
        let mut batch = NftBatch::new();
        let elements = keys.iter().map(|key| Element { timeout, ..Element::value(key, &endpoint) });
        batch.add_elements(&table, &affinity, elements);
        handle.commit(&batch).unwrap();
    }
}
