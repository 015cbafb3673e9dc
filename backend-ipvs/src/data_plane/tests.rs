//! The data plane over a kernel that checks operations: random histories, restarts, drains, rejections, foreign
//! objects.

use backend::testing::ProgramAll as _;
use backend::{
    Backend, SyncReport,
    dataplane::DataplaneOptions,
    driver::Driver,
    testing::{History, ServiceBuilder, StateBuilder, contract, mk_key, mk_state, transition},
};
use netlink::ipvs::{Scheduling, VirtualServerKey};
use proto::model::Protocol;

use super::*;
use crate::{
    kernel::fake::Fake,
    mark::Mark,
    object::{Value, Weight},
    plan::{Objects, Operation},
};

mod limits;

fn driver(kernel: &Fake) -> Driver<IpvsDataPlane<Fake>> {
    Driver::new(IpvsDataPlane::new(kernel.clone(), Settings::default()))
}

/// A backend that was started with this `--ipvs-scheduler`.
fn driver_with(kernel: &Fake, scheduler: &str) -> Driver<IpvsDataPlane<Fake>> {
    let settings = Settings { scheduler: scheduler.parse().unwrap(), ..Settings::default() };
    Driver::new(IpvsDataPlane::new(kernel.clone(), settings))
}

/// A kernel in which one of two destinations drains.
async fn draining() -> (Fake, Driver<IpvsDataPlane<Fake>>, NodeState) {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = web(&[ONE, TWO]);
    driver.reconcile_all(&state).await.unwrap();
    let changes = transition(&mut state, &web(&[TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    (kernel, driver, state)
}

/// The drift that the next checks of the kernel detect.
async fn drift(driver: &mut Driver<IpvsDataPlane<Fake>>) -> Option<Drift> {
    tokio::time::timeout(2 * watch::MIN_INTERVAL, driver.drifted()).await.ok()
}

async fn reconcile(kernel: &Fake, state: &NodeState) -> SyncReport {
    driver(kernel).reconcile_all(state).await.unwrap()
}

/// A service with two endpoints, over TCP.
fn web(endpoints: &[&str]) -> NodeState {
    with_web(mk_state(), endpoints).build()
}

fn with_web(state: StateBuilder, endpoints: &[&str]) -> StateBuilder {
    let endpoints = endpoints.to_vec();
    state.service("default/web", |web| web.cluster_ip("10.96.0.1").node_port(30_080).endpoints(endpoints))
}

const ONE: &str = "10.244.1.1:8080";
const TWO: &str = "10.244.2.2:8080";

fn cluster_ip() -> VirtualServerKey {
    VirtualServerKey::Address(Protocol::Tcp, "10.96.0.1:80".parse().unwrap())
}

fn destination(address: &str) -> Object {
    Object::Destination(cluster_ip(), address.parse().unwrap())
}

/// The objects of a kernel that was empty before.
async fn from_scratch(state: &NodeState) -> Objects {
    let kernel = Fake::default();
    reconcile(&kernel, state).await;
    kernel.objects()
}

/// Without what depends on earlier states: ids in marks, and destinations that only established flows use.
fn anonymous(objects: Objects) -> Vec<String> {
    let mut list: Vec<String> = objects
        .iter()
        .filter(|(_, value)| !value.is_established())
        .map(|(object, value)| {
            let server = match object {
                Object::Server(server) | Object::Destination(server, _) => Some(*server),
                _ => None,
            };
            let name = match (server, object) {
                (Some(VirtualServerKey::FwMark(family, mark)), Object::Destination(_, to)) => {
                    format!("{family:?} {} {to}", mark & 0xf)
                }
                (Some(VirtualServerKey::FwMark(family, mark)), _) => format!("{family:?} {}", mark & 0xf),
                _ => format!("{object:?}"),
            };
            let value = match value {
                Value::Mark(mark) => format!("{:?} {}", mark.id().is_some(), mark.raw() & 0xf),
                value => format!("{value:?}"),
            };
            format!("{name} = {value}")
        })
        .collect();
    list.sort();
    list
}

#[tokio::test(start_paused = true)]
async fn fulfils_the_backend_contract() {
    for seed in 0..10 {
        let kernel = Fake::default();
        let settings = || Settings { drain: Duration::ZERO, ..Settings::default() };
        contract::check_all(|| Driver::new(IpvsDataPlane::new(kernel.clone(), settings())), seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_have_the_result_of_a_fresh_start_and_a_restart_writes_nothing() {
    for seed in 0..60 {
        let kernel = Fake::default();
        let mut history = History::new(seed);
        history.jump();
        let mut driver =
            Driver::new(IpvsDataPlane::new(kernel.clone(), Settings { drain: Duration::ZERO, ..Settings::default() }));
        driver.reconcile_all(history.state()).await.unwrap();
        for step in 0..40 {
            let changes = history.step();
            driver.apply_all(history.state(), &changes).await.unwrap();
            let at = format!("seed {seed}, step {step}, {changes:?}");
            let fresh = from_scratch(history.state()).await;
            similar(anonymous(kernel.objects()), anonymous(fresh), &at);
            assert_eq!(reconcile(&kernel, history.state()).await.writes, 0, "{at}");
        }
    }
}

#[track_caller]
fn similar(left: Vec<String>, right: Vec<String>, at: &str) {
    let more: Vec<_> = left.iter().filter(|line| !right.contains(line)).collect();
    let less: Vec<_> = right.iter().filter(|line| !left.contains(line)).collect();
    assert!(more.is_empty() && less.is_empty(), "{at}\nunexpected {more:#?}\nmissing {less:#?}");
}

/// With connections to all destinations: no object that stays is removed, and no removed one remains when the
/// connections have ended.
#[tokio::test(start_paused = true)]
async fn needed_objects_are_never_removed_and_drained_ones_always() {
    for seed in 0..40 {
        let kernel = Fake::default();
        let mut history = History::new(seed);
        history.jump();
        let mut driver = driver(&kernel);
        driver.reconcile_all(history.state()).await.unwrap();
        for step in 0..25 {
            kernel.connect(1);
            let (before, desired) = (kernel.objects(), from_scratch(history.state()).await);
            let changes = history.step();
            kernel.log();
            driver.apply_all(history.state(), &changes).await.unwrap();
            let after = from_scratch(history.state()).await;
            for operation in kernel.log() {
                let object = *operation.object();
                let removed = matches!(operation, Operation::Remove(_));
                let stays = desired.contains_key(&object) && after.contains_key(&object);
                assert!(!(removed && stays), "seed {seed}, step {step}: {object} was removed");
                let was_tcp = matches!(object, Object::Destination(server, _)
                    if crate::object::protocol(&server) == Some(Protocol::Tcp));
                assert!(!(removed && was_tcp && before.contains_key(&object)), "{object} had connections");
            }
            kernel.log();
            let writes = reconcile(&kernel, history.state()).await.writes;
            assert_eq!(writes, 0, "seed {seed}, step {step}: a restart meanwhile: {:?}", kernel.log());
        }
        kernel.connect(0);
        assert_eq!(drift(&mut driver).await, None);
        let fresh = from_scratch(history.state()).await;
        similar(anonymous(kernel.objects()), anonymous(fresh), &format!("seed {seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_leaves_drains_and_one_that_returns_keeps_its_connections() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = web(&[ONE, TWO]);
    driver.reconcile_all(&state).await.unwrap();
    kernel.connect(3);
    let changes = transition(&mut state, &web(&[TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    let drains = |kernel: &Fake| matches!(kernel.objects()[&destination(ONE)], Value::Weight(Weight::Draining(_)));
    assert!(drains(&kernel));
    assert_eq!(drift(&mut driver).await, None);
    assert!(drains(&kernel), "it has connections");

    // After a restart.
    let mut driver = self::driver(&kernel);
    assert_eq!(driver.reconcile_all(&state).await.unwrap().writes, 0);
    kernel.log();
    let changes = transition(&mut state, &web(&[ONE, TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    assert_eq!(kernel.objects()[&destination(ONE)], Value::Weight(Weight::Of(1)));
    assert!(kernel.log().iter().all(|operation| matches!(operation, Operation::Change(..))));

    let changes = transition(&mut state, &web(&[TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    kernel.connect(0);
    assert_eq!(drift(&mut driver).await, None);
    assert!(!kernel.objects().contains_key(&destination(ONE)));
}

/// A Service loses one of two external IPs, while a backend runs or while none does. UDP flows to it end, as with the
/// last one, because the other one gets a virtual server of its own; TCP connections to the other one stay.
#[tokio::test(start_paused = true)]
async fn flows_to_a_vip_that_leaves_end() {
    for (key, is_udp, is_restarted) in
        [("web/tcp", false, false), ("web/tcp", false, true), ("web/udp", true, false), ("web/udp", true, true)]
    {
        let with = |vips: &[&'static str]| {
            let web =
                |web: ServiceBuilder| vips.iter().fold(web.cluster_ip("10.96.0.1"), |web, vip| web.external_ip(vip));
            mk_state().service(&format!("default/{key}"), |service| web(service).endpoints([ONE])).build()
        };
        let (kernel, mut state) = (Fake::default(), with(&["203.0.113.1", "203.0.113.2"]));
        let mut driver = driver(&kernel);
        driver.reconcile_all(&state).await.unwrap();
        kernel.connect(1);
        let of_marks = || -> Vec<(Object, Value)> {
            let is_of_mark = |object: &Object| matches!(object, Object::Destination(VirtualServerKey::FwMark(..), _));
            kernel.objects().into_iter().filter(|(object, _)| is_of_mark(object)).collect()
        };
        let before = of_marks();
        let changes = transition(&mut state, &with(&["203.0.113.2"]));
        if is_restarted {
            driver = self::driver(&kernel);
            driver.reconcile_all(&state).await.unwrap();
        } else {
            driver.apply_all(&state, &changes).await.unwrap();
        }
        let at = format!("{key}, restarted: {is_restarted}");
        let after = of_marks();
        assert_eq!((before.len(), after.len()), (1, 1), "{at}: {after:?}");
        assert_eq!(before[0].0 != after[0].0, is_udp, "{at}");
        assert_eq!((&before[0].1, &after[0].1), (&Value::Weight(Weight::Of(1)), &Value::Weight(Weight::Of(1))), "{at}");
        assert_eq!(reconcile(&kernel, &state).await.writes, 0, "{at}");
        similar(anonymous(kernel.objects()), anonymous(from_scratch(&state).await), &at);
    }
}

/// Restarts during the drain know by addresses and set entries that the virtual server is ours.
#[tokio::test(start_paused = true)]
async fn a_virtual_server_that_drains_is_removed_if_its_address_is_not_on_the_device() {
    let lost: IpAddr = "10.96.0.1".parse().unwrap();
    let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
    let kernel = Fake::default();
    kernel.set_elsewhere([elsewhere]);
    let service =
        |web: ServiceBuilder| web.cluster_ip("10.96.0.1").external_ip("192.0.2.1").affinity(60).endpoints([ONE]);
    reconcile(&kernel, &mk_state().service("default/web", service).build()).await;
    kernel.connect(1);

    for _ in 0..3 {
        let mut driver = driver(&kernel);
        driver.reconcile_all(&mk_state().build()).await.unwrap();
        let servers = [lost, elsewhere].map(|ip| VirtualServerKey::Address(Protocol::Tcp, (ip, 80).into()));
        assert!(servers.iter().all(|server| kernel.objects().contains_key(&Object::Server(*server))));
        kernel.lose(&Object::Address(lost));
    }

    kernel.connect(0);
    let mut driver = driver(&kernel);
    driver.reconcile_all(&mk_state().build()).await.unwrap();
    assert_eq!(kernel.objects(), from_scratch(&mk_state().build()).await);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_its_deadline() {
    let (kernel, _, state) = draining().await;
    kernel.connect(1);
    // The deadline has passed.
    kernel.put(destination(ONE), Value::Weight(Weight::Draining(1)));
    let mut driver = driver(&kernel);
    driver.reconcile_all(&state).await.unwrap();
    assert_eq!(drift(&mut driver).await, None);
    assert!(!kernel.objects().contains_key(&destination(ONE)));
}

/// The wall clock stands still, and could as well have jumped. A reconcile forgets nothing.
#[tokio::test(start_paused = true)]
async fn a_drain_lasts_as_long_whatever_the_wall_clock_says() {
    let (kernel, mut driver, state) = draining().await;
    kernel.connect(1);
    let (drain, rest) = (Settings::default().drain, 10 * watch::MIN_INTERVAL);
    tokio::time::advance(drain - rest).await;
    assert_eq!(drift(&mut driver).await, None);
    driver.reconcile_all(&state).await.unwrap();
    assert!(kernel.objects().contains_key(&destination(ONE)));
    tokio::time::advance(rest).await;
    assert_eq!(drift(&mut driver).await, None);
    assert!(!kernel.objects().contains_key(&destination(ONE)));
}

/// A cancelled check: what is known of the kernel stays known, so that the next change does not read all of it.
#[tokio::test(start_paused = true)]
async fn a_check_that_is_cancelled_forgets_nothing() {
    let (kernel, mut driver, mut state) = draining().await;
    kernel.set_stalled(true);
    assert_eq!(drift(&mut driver).await, None);
    kernel.set_stalled(false);

    // Only a read of the kernel detects this.
    let address = Object::Address("10.96.0.1".parse().unwrap());
    kernel.lose(&address);
    let changes = transition(&mut state, &web(&[ONE, TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    assert!(!kernel.objects().contains_key(&address), "the kernel was read");
    assert_eq!(kernel.objects()[&destination(ONE)], Value::Weight(Weight::Of(1)));
}

/// A check that is cancelled while it removes a destination: no change may follow, which would read the kernel.
#[tokio::test(start_paused = true)]
async fn a_removal_that_is_cancelled_is_followed_by_a_read_of_the_kernel() {
    let (kernel, mut driver, state) = draining().await;
    kernel.set_stalled_commits(true);
    assert_eq!(drift(&mut driver).await, None);
    kernel.set_stalled_commits(false);

    assert_eq!(drift(&mut driver).await, Some(Drift::Outdated));
    driver.reconcile_all(&state).await.unwrap();
    assert_eq!(drift(&mut driver).await, None);
    assert!(!kernel.objects().contains_key(&destination(ONE)));
}

/// Changes arrive without a pause, so that no check ends.
#[tokio::test(start_paused = true)]
async fn transactions_check_the_kernel_if_nothing_else_does() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let other = |n: u8| {
        let ip = format!("10.96.1.{n}");
        with_web(mk_state(), &[TWO]).service("default/other", |other| other.cluster_ip(&ip).endpoints([ONE])).build()
    };
    let mut state = web(&[ONE, TWO]);
    driver.reconcile_all(&state).await.unwrap();
    let changes = transition(&mut state, &web(&[TWO]));
    driver.apply_all(&state, &changes).await.unwrap();
    let address = Object::Address("10.96.0.1".parse().unwrap());
    kernel.lose(&address);
    let is_checked = |kernel: &Fake| {
        let objects = kernel.objects();
        (objects.contains_key(&address), !objects.contains_key(&destination(ONE)))
    };

    tokio::time::advance(watch::MAX_DELAY / 2).await;
    let changes = transition(&mut state, &other(1));
    driver.apply_all(&state, &changes).await.unwrap();
    assert_eq!(is_checked(&kernel), (false, false));
    // The first of them detects the drift, and reads the kernel. The next one removes the destination.
    for n in 2..4 {
        tokio::time::advance(watch::MAX_DELAY).await;
        let changes = transition(&mut state, &other(n));
        driver.apply_all(&state, &changes).await.unwrap();
        assert!(is_checked(&kernel).0, "the address is missing");
    }
    assert_eq!(is_checked(&kernel), (true, true));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_goes_leaves_its_address_until_its_connections_have_ended() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = web(&[ONE]);
    driver.reconcile_all(&state).await.unwrap();
    kernel.connect(1);
    let changes = transition(&mut state, &mk_state().build());
    driver.apply_all(&state, &changes).await.unwrap();
    let address = Object::Address("10.96.0.1".parse().unwrap());
    let entry = SetId { content: SetContent::Addresses, family: IpFamily::V4 };
    let entry = Object::SetEntry(entry, set::address("10.96.0.1".parse().unwrap()));
    let objects = kernel.objects();
    assert!(objects.contains_key(&address) && objects.contains_key(&Object::Server(cluster_ip())));
    assert_eq!(objects[&entry], Value::Mark(Mark::DROP), "new connections are dropped");
    kernel.connect(0);
    assert_eq!(drift(&mut driver).await, None);
    assert_eq!(kernel.objects(), Objects::new());
}

#[tokio::test(start_paused = true)]
async fn foreign_virtual_servers_are_never_changed() {
    let kernel = Fake::default();
    let scheduling = Value::Scheduling(Scheduling { scheduler: "rr".into(), flags: 0, timeout: 0 });
    let foreign = |server| (Object::Server(server), scheduling.clone());
    let foreign_servers = [
        foreign(VirtualServerKey::FwMark(IpFamily::V4, 7)),
        foreign(VirtualServerKey::Address(Protocol::Tcp, "192.0.2.77:80".parse().unwrap())),
        foreign(VirtualServerKey::Address(Protocol::Udp, "192.168.1.1:30080".parse().unwrap())),
    ];
    foreign_servers.iter().for_each(|(object, value)| kernel.put(*object, value.clone()));
    let mut history = History::new(5);
    let mut driver = driver(&kernel);
    for _ in 0..20 {
        history.jump();
        driver.reconcile_all(history.state()).await.unwrap();
        assert!(foreign_servers.iter().all(|(object, value)| kernel.objects().get(object) == Some(value)));
    }
    driver.cleanup().await.unwrap();
    assert_eq!(kernel.objects(), foreign_servers.into_iter().collect::<Objects>());
}

#[tokio::test(start_paused = true)]
async fn excluded_ranges_are_left_alone() {
    let kernel = Fake::default();
    let settings = Settings { exclude: vec!["10.96.0.0/24".parse().unwrap()], ..Settings::default() };
    let scheduling = Value::Scheduling(Scheduling { scheduler: "wlc".into(), flags: 0, timeout: 0 });
    kernel.put(Object::Server(cluster_ip()), scheduling.clone());
    kernel.put(Object::Address("10.96.0.1".parse().unwrap()), Value::Plain);
    let mut driver = Driver::new(IpvsDataPlane::new(kernel.clone(), settings));
    let applied = driver.reconcile_all(&web(&[ONE])).await.unwrap();
    let [failure] = &applied.failures[..] else { panic!("{applied:?}") };
    assert!(failure.key == mk_key("default/web") && failure.reason.contains("10.96.0.1"), "{failure:?}");
    driver.reconcile_all(&mk_state().build()).await.unwrap();
    driver.cleanup().await.unwrap();
    assert_eq!(kernel.objects().get(&Object::Server(cluster_ip())), Some(&scheduling));
    assert_eq!(kernel.objects().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_object_does_not_affect_others() {
    let kernel = Fake::default();
    kernel.reject(Some(destination(ONE)));
    let state = with_web(mk_state(), &[ONE, TWO])
        .service("default/other", |other| other.cluster_ip("10.96.0.2").endpoints([ONE]))
        .build();
    let mut driver = driver(&kernel);
    let applied = driver.reconcile_all(&state).await.unwrap();
    let [failure] = &applied.failures[..] else { panic!("{applied:?}") };
    assert!(failure.key == mk_key("default/web") && failure.retryable, "{failure:?}");
    assert!(kernel.objects().contains_key(&destination(TWO)), "the rest of it is programmed");
    kernel.reject(None);
    let applied = driver.reconcile_all(&state).await.unwrap();
    assert_eq!((applied.failures, applied.writes), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn missing_objects_are_drift() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    driver.reconcile_all(&web(&[ONE])).await.unwrap();
    assert_eq!(drift(&mut driver).await, None);
    for object in kernel.objects().into_keys().filter(|object| !matches!(object, Object::Destination(..))) {
        let value = kernel.objects()[&object].clone();
        kernel.lose(&object);
        assert!(matches!(drift(&mut driver).await, Some(Drift::Changed { .. })), "{object}");
        kernel.put(object, value);
    }
    assert_eq!(drift(&mut driver).await, None);
}

/// Each pod that starts may bring a link-local address, and a change of the others may not concern us.
#[tokio::test(start_paused = true)]
async fn addresses_of_other_devices_are_drift_if_objects_depend_on_them() {
    let [vip, link_local, other] = ["192.0.2.1", "fe80::1", "198.51.100.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let with = |external_ip: &'static str| {
        let web = |web: ServiceBuilder| web.cluster_ip("10.96.0.1").external_ip(external_ip).node_port(30_080);
        mk_state().service("default/web", |service| web(service).endpoints([ONE])).build()
    };
    for (nodeport_addresses, other_is_drift) in [(NodePortAddresses::Primary, false), (NodePortAddresses::all(), true)]
    {
        let kernel = Fake::default();
        let dataplane = DataplaneOptions { nodeport_addresses, ..DataplaneOptions::default() };
        let settings = Settings { dataplane, ..Settings::default() };
        let mut driver = Driver::new(IpvsDataPlane::new(kernel.clone(), settings));
        let mut state = with("192.0.2.1");
        driver.reconcile_all(&state).await.unwrap();
        for (address, is_drift) in [(vip, true), (link_local, false), (other, other_is_drift)] {
            kernel.set_elsewhere([address]);
            assert_eq!(drift(&mut driver).await, is_drift.then_some(Drift::Outdated), "{address}");
            kernel.set_elsewhere([]);
            assert_eq!(drift(&mut driver).await, None);
        }

        // They are known to a change that depends on them.
        kernel.set_elsewhere([other]);
        if drift(&mut driver).await.is_some() {
            driver.reconcile_all(&state).await.unwrap();
        }
        let changes = transition(&mut state, &with("198.51.100.1"));
        driver.apply_all(&state, &changes).await.unwrap();
        assert!(!kernel.objects().contains_key(&Object::Address(other)));
        assert_eq!(drift(&mut driver).await, None);
    }
}

/// The API server's Service and DNS are complete before the others begin.
#[tokio::test(start_paused = true)]
async fn urgent_service_ports_come_first() {
    let kernel = Fake::default();
    let apps = (0..=255).fold(mk_state(), |state, n| {
        state.service(&format!("apps/svc-{n:03}"), |app| app.cluster_ip(&format!("10.96.1.{n}")).endpoints([ONE]))
    });
    let state = apps
        .service("default/kubernetes", |api| api.cluster_ip("10.96.0.1").port(443).endpoints([ONE]))
        .service("kube-system/dns/udp", |dns| dns.cluster_ip("10.96.0.2").port(53).endpoints([TWO]))
        .build();
    reconcile(&kernel, &state).await;
    assert_eq!(kernel.commits(), 2);
    let mut addresses: Vec<_> = kernel
        .log()
        .into_iter()
        .filter_map(|operation| match operation {
            Operation::Add(Object::Address(address), _) => Some(address.to_string()),
            _ => None,
        })
        .collect();
    addresses.truncate(2);
    assert_eq!(addresses, ["10.96.0.1", "10.96.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn another_scheduler_changes_virtual_servers_and_nothing_else() {
    let kernel = Fake::default();
    let state = web(&[ONE]);
    driver(&kernel).reconcile_all(&state).await.unwrap();
    for (scheduler, name) in [("wlc", "wlc"), ("mh:port", "mh"), ("mh", "mh"), ("rr", "rr")] {
        kernel.log();
        driver_with(&kernel, scheduler).reconcile_all(&state).await.unwrap();
        let log = kernel.log();
        let is_its = |operation: &Operation| {
            matches!(operation, Operation::Change(Object::Server(_), Value::Scheduling(scheduling))
                if *scheduling.scheduler == *name)
        };
        assert!(log.len() == 2 && log.iter().all(is_its), "{scheduler:?}: {log:?}");
    }
}

/// One destination is added and one gets weight 0; no set changes.
#[tokio::test(start_paused = true)]
async fn replacing_an_endpoint_changes_only_its_destinations() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = web(&[ONE]);
    driver.reconcile_all(&state).await.unwrap();
    let changes = transition(&mut state, &web(&[TWO]));
    // At the cluster IP, and for the mark of the node port.
    assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, 4);
}

/// The Service is served by round robin and reported, and its scheduler is retried when the Service changes.
#[tokio::test(start_paused = true)]
async fn a_missing_scheduler_is_replaced_and_retried() {
    let kernel = Fake::default();
    kernel.remove_scheduler(Some("wlc"));
    let web = |endpoints: Vec<&'static str>| {
        mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints)).build()
    };
    let scheduler = |kernel: &Fake| match &kernel.objects()[&Object::Server(cluster_ip())] {
        Value::Scheduling(scheduling) => scheduling.scheduler.to_string(),
        value => panic!("{value:?}"),
    };
    let mut driver = driver_with(&kernel, "wlc");
    let mut state = web(vec![ONE]);
    let applied = driver.reconcile_all(&state).await.unwrap();
    let [failure] = &applied.failures[..] else { panic!("{applied:?}") };
    assert!(failure.key == mk_key("default/web") && !failure.retryable, "{failure:?}");
    assert_eq!(scheduler(&kernel), "rr");
    assert!(kernel.objects().contains_key(&destination(ONE)));

    let changes = transition(&mut state, &web(vec![ONE, TWO]));
    let applied = driver.apply_all(&state, &changes).await.unwrap();
    assert_eq!((applied.failures.len(), scheduler(&kernel).as_str()), (1, "rr"), "still missing");
    assert!(kernel.objects().contains_key(&destination(TWO)));

    kernel.remove_scheduler(None);
    let changes = transition(&mut state, &web(vec![TWO]));
    let applied = driver.apply_all(&state, &changes).await.unwrap();
    assert_eq!((applied.failures, scheduler(&kernel).as_str()), (vec![], "wlc"), "it exists now");
}

/// A family cannot be prepared: the other one is programmed, and both once it can.
#[tokio::test(start_paused = true)]
async fn unusable_family_is_left_out_until_it_can_be_prepared() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30_080);
        web.endpoints([ONE, "[fd00:244::1]:8080"]).local_endpoints([ONE, "[fd00:244::1]:8080"])
    });
    let both = both.build();
    let all = from_scratch(&both).await;
    for (family, other) in [(IpFamily::V4, IpFamily::V6), (IpFamily::V6, IpFamily::V4)] {
        let kernel = Fake::default();
        kernel.set_unusable(Some(family));
        let mut driver = driver(&kernel);
        let report = driver.reconcile_all(&both).await.unwrap();
        assert_eq!(report.failures, []);
        assert_eq!(report.unusable_families, [(family, "no such table".to_owned())]);
        let of_other: Objects =
            all.iter().filter(|(object, _)| object.family() == other).map(|(it, value)| (*it, value.clone())).collect();
        assert_eq!(kernel.objects(), of_other);
        assert_eq!(drift(&mut driver).await, None);

        kernel.set_unusable(None);
        assert_eq!(driver.drifted().await, Drift::Outdated);
        let report = driver.reconcile_all(&both).await.unwrap();
        assert_eq!((report.unusable_families, kernel.objects()), (vec![], all.clone()));
    }
}

/// Two Services share a load-balancer IP.
#[tokio::test]
async fn vip_precedes_the_health_check_node_port_of_another_service() {
    let with = |ports: &[u16]| {
        let checked = |web: ServiceBuilder| {
            let web = web.cluster_ip("10.96.0.1").load_balancer_ip("203.0.113.7").external_local();
            web.health_check_node_port(32_000).endpoints([ONE])
        };
        let state = mk_state().service("default/web", checked);
        let other = |state: StateBuilder, port: &u16| {
            state.service("default/a", |other| {
                other.cluster_ip("10.96.0.2").load_balancer_ip("203.0.113.7").port(*port).endpoints([TWO])
            })
        };
        ports.iter().fold(state, other).build()
    };
    let probes = Object::SetEntry(
        SetId { content: SetContent::Vips, family: IpFamily::V4 },
        set::socket("203.0.113.7".parse().unwrap(), Protocol::Tcp, 32_000),
    );
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = with(&[]);
    driver.reconcile_all(&state).await.unwrap();
    for (ports, is_vip) in [(&[32_000][..], true), (&[], false), (&[80], false), (&[32_000], true), (&[80], false)] {
        let changes = transition(&mut state, &with(ports));
        driver.apply_all(&state, &changes).await.unwrap();
        let mark = kernel.objects()[&probes].clone();
        assert_eq!(mark != Value::Mark(Mark::HEALTH_CHECK), is_vip, "{ports:?}: {mark:?}");
        assert_eq!(from_scratch(&state).await[&probes] != Value::Mark(Mark::HEALTH_CHECK), is_vip, "{ports:?}");
    }
}
