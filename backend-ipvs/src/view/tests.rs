//! The listing of the virtual servers that a driver has written, with their VIPs and draining destinations.

use backend::testing::ProgramAll as _;
use backend::{driver::Driver, testing::mk_state};

use super::*;
use crate::{
    data_plane::IpvsDataPlane,
    kernel::{Kernel as _, Ours, fake::Fake},
    settings::Settings,
};

const ONE: &str = "10.244.1.1:8080";
const TWO: &str = "10.244.1.2:8080";

/// The listing after a Service had these endpoints, one list after the other, with three connections per destination.
async fn list_after(history: [&[&str]; 2]) -> Vec<VirtualServer> {
    let kernel = Fake::default();
    for endpoints in history {
        let endpoints = endpoints.to_vec();
        let state =
            mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1").node_port(30_080).endpoints(endpoints));
        Driver::new(IpvsDataPlane::new(kernel.clone(), Settings::default()))
            .reconcile_all(&state.build())
            .await
            .unwrap();
        kernel.connect(3);
    }
    let mut kernel = kernel;
    let objects = kernel.list(Ours::default()).await.unwrap().objects;
    let servers = objects.keys().filter_map(|object| match object {
        Object::Server(server) => Some(*server),
        _ => None,
    });
    let connections = kernel.connections(servers.collect()).await.unwrap();
    view(&objects, &connections)
}

#[tokio::test]
async fn a_virtual_server_for_a_mark_lists_its_vips() {
    let servers = list_after([&[ONE], &[ONE]]).await;
    let [at_address, at_mark] = &servers[..] else { panic!("{servers:?}") };
    assert_eq!(at_address.at, VirtualServerKey::Address(Protocol::Tcp, "10.96.0.1:80".parse().unwrap()));
    assert_eq!(at_address.vips, BTreeSet::new());
    assert!(matches!(at_mark.at, VirtualServerKey::FwMark(_, mark) if Mark::from_raw(mark).is_some()), "{at_mark:?}");
    assert_eq!(
        at_mark.vips,
        BTreeSet::from([Vip::NodePort { port: 30_080, protocol: Protocol::Tcp }]),
        "listed once, although the set has two entries for it"
    );
    for server in &servers {
        assert_eq!((server.at.family(), server.protocol, &*server.scheduler), (IpFamily::V4, Protocol::Tcp, "rr"));
        let address = ONE.parse().unwrap();
        let expected = Destination { address, weight: 1, active: 3, inactive: 0, draining_until: None };
        assert_eq!(server.destinations, [expected]);
    }
}

#[tokio::test]
async fn a_removed_endpoint_is_listed_as_draining() {
    let before = SystemTime::now();
    let servers = list_after([&[ONE], &[TWO]]).await;
    assert_eq!(servers.len(), 2);
    for server in &servers {
        let [one, two] = &server.destinations[..] else { panic!("{server:?}") };
        assert_eq!((one.address, one.weight, one.active), (ONE.parse().unwrap(), 0, 3));
        // The kernel object stores whole seconds.
        let drain = Settings::default().drain;
        let until = one.draining_until.unwrap() + Duration::from_secs(1);
        assert!(until > before + drain && until <= SystemTime::now() + drain + Duration::from_secs(1));
        assert_eq!((two.weight, two.draining_until), (1, None));
    }
}
