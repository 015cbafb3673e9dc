//! Tests with the kernel, in a network namespace, whose flows the `conntrack` command creates, and with a table that
//! blocks.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::{Mutex, mpsc},
    thread,
};

use netlink::{
    conntrack::{ConntrackZone, DELETIONS_PER_SEND, Flow, Tuple},
    testing::in_netns,
};
use proto::model::{IpFamily, Protocol};

use super::*;
use crate::{
    Changes, Nat, NodeState,
    backend::Work,
    flows::{
        ConntrackCleanup, Flows,
        table::KernelFlowTable,
        testing::TestKernel,
        udp::{FLOWS_PER_SLICE, WithdrawnVips},
    },
    testing::{StateBuilder, mk_state},
};

/// Creates a flow from this client port to port 53 of a VIP, answered by this endpoint.
fn insert(protocol: &str, vip: &str, endpoint: &str, port: u16) {
    let client = if vip.contains(':') { "fd00:9::9" } else { "10.9.9.9" };
    let state = if protocol == "tcp" { "--state ESTABLISHED" } else { "" };
    let args = format!(
        "-I -p {protocol} -s {client} -d {vip} --sport {port} --dport 53 --timeout 600 \
         -r {endpoint} -q {client} --reply-port-src 53 --reply-port-dst {port} {state}"
    );
    let output = Command::new("conntrack").args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The client ports of all flows.
fn client_ports() -> BTreeSet<u16> {
    let list = |family| Command::new("conntrack").args(["-L", "-f", family]).output().unwrap().stdout;
    let text = String::from_utf8([list("ipv4"), list("ipv6")].concat()).unwrap();
    let port = |line: &str| line.split_once("sport=")?.1.split(' ').next()?.parse().ok();
    text.lines().map(|line| port(line).unwrap()).collect()
}

fn dns() -> NodeState {
    mk_dns().build()
}

fn mk_dns() -> StateBuilder {
    mk_state()
        .service("default/dns/udp", |dns| {
            let dns = dns.port(53).cluster_ip("10.96.0.10").cluster_ip("fd00:96::a");
            dns.endpoints(["10.244.1.5:53", "[fd00:244:1::5]:53"])
        })
        .service("default/empty/udp", |empty| empty.port(53).cluster_ip("10.96.0.11"))
}

fn insert_all() {
    insert("udp", "10.96.0.10", "10.244.1.5", 1);
    insert("udp", "10.96.0.10", "10.244.1.4", 2);
    insert("udp", "10.96.0.10", "10.96.0.10", 3);
    insert("udp", "10.96.0.11", "10.244.1.4", 4);
    insert("udp", "10.96.0.12", "10.244.1.4", 5);
    insert("tcp", "10.96.0.10", "10.244.1.4", 6);
    insert("udp", "fd00:96::a", "fd00:244:1::5", 7);
    insert("udp", "fd00:96::a", "fd00:244:1::4", 8);
}

fn of_kernel() -> KernelFlowTable {
    KernelFlowTable(NodePortAddresses::all())
}

/// The thread with the progress that it reports.
struct Fixture {
    flows: Flows,
    kernel: TestKernel,
    progress: watch::Sender<Progress>,
}

impl Fixture {
    fn new(mode: ConntrackCleanup, table: impl FlowTable) -> Self {
        Self::from(mode, table, mk_state().build())
    }

    /// The kernel may have this state.
    fn from(mode: ConntrackCleanup, table: impl FlowTable, state: NodeState) -> Self {
        Self::serving(NodePortAddresses::all(), mode, table, state)
    }

    fn serving(addresses: NodePortAddresses, mode: ConntrackCleanup, table: impl FlowTable, state: NodeState) -> Self {
        let kernel = TestKernel::default();
        let programmed = kernel.0.subscribe();
        let progress = watch::Sender::<Progress>::default();
        let flows = match mode {
            ConntrackCleanup::Disabled => {
                Flows::start(mode, Nat::Netfilter, addresses, state, programmed, progress.clone(), Arc::default())
            }
            ConntrackCleanup::Enabled => Flows::spawn(Worker {
                requests: Arc::new(Requests::new(PendingFlows::new(state, programmed))),
                table,
                nodeport_addresses: addresses,
                rejecter: Rejecter::new(Nat::Netfilter),
                progress: progress.clone(),
                metrics: Arc::default(),
                passes: AllPasses::new(),
                lines: TokenBucket::full(tokio::time::Instant::now()),
            }),
        };
        let fixture = Self { flows, kernel, progress };
        fixture.set_confirmed(true);
        fixture
    }

    fn of_kernel() -> Self {
        Self::new(ConntrackCleanup::Enabled, of_kernel())
    }

    fn requests(&self) -> &Requests<PendingFlows> {
        self.flows.0.as_ref().unwrap()
    }

    /// What the follower and the programmer do, and waits for the cleanups.
    fn reconcile(&mut self, state: &NodeState) {
        self.sync(true, state);
    }

    fn apply(&mut self, state: &NodeState) {
        self.sync(false, state);
    }

    fn sync(&mut self, is_reconcile: bool, state: &NodeState) {
        self.record(is_reconcile, state);
        if let Some(requests) = &self.flows.0 {
            requests.wait_idle();
        }
    }

    fn record(&self, is_reconcile: bool, state: &NodeState) {
        let Some(requests) = &self.flows.0 else { return };
        let before = requests.with(|pending| pending.state.clone());
        let departed = before.diff(state).filter_map(|change| change.departed()).collect();
        self.flows.record(|pending| pending.committed(Some(departed), &Changes::between(&before, state), state));
        self.begin(is_reconcile, state);
    }

    /// What the programmer does.
    fn begin(&self, is_reconcile: bool, state: &NodeState) {
        let work = if is_reconcile { Work::Reconcile } else { Work::Apply };
        self.flows.record(|pending| self.kernel.hand(pending, state));
        self.flows.record(|pending| self.kernel.report(pending, work, &[]));
    }

    /// Whether a frontend has confirmed the state is known without a call.
    fn set_confirmed(&self, is_confirmed: bool) {
        self.flows.record(|pending| {
            let state = pending.state.clone();
            pending.handed(&state, is_confirmed)
        });
    }

    fn deleted_flows(&self) -> u64 {
        self.progress.borrow().flows.deleted_udp
    }
}

#[test]
fn only_stale_flows_are_deleted() {
    in_netns(|| {
        insert_all();
        let mut fixture = Fixture::of_kernel();
        fixture.reconcile(&dns());
        assert_eq!(client_ports(), [1, 5, 6, 7].into());
        assert_eq!(fixture.deleted_flows(), 4);
        fixture.reconcile(&dns());
        assert_eq!((client_ports(), fixture.deleted_flows()), ([1, 5, 6, 7].into(), 4));
    });
}

/// They may belong to other programs, for example to one that publishes the ports of containers.
#[test]
fn flows_to_addresses_without_node_ports_stay() {
    let state = mk_state().node_addresses(["192.168.1.1", "192.168.2.2"]).service("default/dns/udp", |dns| {
        dns.port(53).cluster_ip("10.96.0.10").node_port(53).endpoints(["10.244.1.5:53"])
    });
    let state = state.build();
    let addresses = ["192.168.1.1", "192.168.2.2", "192.168.3.3"];
    for (serving, deleted) in [
        (NodePortAddresses::Primary, &[1][..]),
        (NodePortAddresses::Cidrs(vec!["192.168.2.0/24".parse().unwrap()]), &[2]),
        (NodePortAddresses::Cidrs(vec!["192.168.3.0/24".parse().unwrap()]), &[3]),
        (NodePortAddresses::all(), &[1, 2, 3]),
    ] {
        let state = state.clone();
        in_netns(move || {
            for (port, address) in (1..).zip(addresses) {
                let added = Command::new("ip").args(["address", "add", address, "dev", "lo"]).status();
                assert!(added.unwrap().success());
                insert("udp", address, "10.244.1.4", port);
            }
            let table = KernelFlowTable(serving.clone());
            let mut fixture = Fixture::serving(serving, ConntrackCleanup::Enabled, table, mk_state().build());
            fixture.reconcile(&state);
            let kept: BTreeSet<u16> = (1..=3).filter(|port| !deleted.contains(port)).collect();
            assert_eq!(client_ports(), kept);
        });
    }
}

/// They may serve node ports of iptables.
#[test]
fn loopback_addresses_count_as_those_of_node_ports() {
    in_netns(|| {
        let added = Command::new("ip").args(["address", "replace", "127.0.0.1/8", "dev", "lo"]).status();
        assert!(added.unwrap().success());
        insert("udp", "127.0.0.1", "10.244.1.5", 1);
        insert("udp", "127.0.0.1", "10.244.1.4", 2);
        insert("udp", "127.0.0.1", "127.0.0.1", 3);
        insert("udp", "127.0.0.2", "127.0.0.2", 4);
        let serving = NodePortAddresses::Primary;
        let table = KernelFlowTable(serving.clone());
        let mut fixture = Fixture::serving(serving, ConntrackCleanup::Enabled, table, mk_state().build());
        let state = mk_state().service("default/dns/udp", |dns| {
            dns.port(53).cluster_ip("10.96.0.10").node_port(53).endpoints(["10.244.1.5:53"])
        });
        fixture.reconcile(&state.build());
        assert_eq!(client_ports(), [1, 4].into());
    });
}

#[test]
fn vips_of_ipvs_are_no_addresses_of_node_ports() {
    in_netns(|| {
        // The kernel may lack dummy devices.
        for args in [
            "link add kube-ipvs0 type veth peer name kube-x",
            "address add 10.96.0.2 dev kube-ipvs0",
            "address add 192.168.1.1 dev lo",
        ] {
            let output = Command::new("ip").args(args.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(of_kernel().addresses().unwrap(), HashSet::from(["192.168.1.1".parse::<IpAddr>().unwrap()]));
    });
}

#[test]
fn no_flow_is_deleted_before_a_frontend_confirms_the_state() {
    in_netns(|| {
        insert_all();
        let mut fixture = Fixture::of_kernel();
        fixture.set_confirmed(false);
        fixture.reconcile(&dns());
        assert_eq!(fixture.deleted_flows(), 0);
        for _ in 0..2 {
            fixture.set_confirmed(true);
            fixture.requests().wait_idle();
            assert_eq!((client_ports(), fixture.deleted_flows()), ([1, 5, 6, 7].into(), 4));
        }
    });
}

#[test]
fn only_changes_that_concern_udp_clean_up() {
    in_netns(|| {
        insert_all();
        let all: BTreeSet<_> = (1..=8).collect();
        Fixture::new(ConntrackCleanup::Disabled, of_kernel()).reconcile(&dns());
        assert_eq!(client_ports(), all, "disabled");
        let mut fixture = Fixture::from(ConntrackCleanup::Enabled, of_kernel(), dns());
        let web = |state: StateBuilder| state.service("default/web", |web| web.cluster_ip("10.96.0.1"));
        fixture.apply(&web(mk_dns()).build());
        assert_eq!(client_ports(), all, "TCP");
        let more = |state| web(state).service("default/more/udp", |more| more.port(53).cluster_ip("10.96.0.13"));
        fixture.apply(&more(mk_dns()).build());
        assert_eq!(fixture.deleted_flows(), 4, "any UDP service port");
        insert("udp", "10.96.0.10", "10.244.1.4", 2);
        fixture.apply(&more(mk_dns()).node_addresses(["192.168.1.2"]).build());
        assert_eq!(fixture.deleted_flows(), 5, "the node's addresses");
    });
}

#[test]
fn more_than_a_batch_is_deleted_among_as_many_that_stay() {
    in_netns(|| {
        let stale = 3 * DELETIONS_PER_SEND as u16 / 2;
        (1..=stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.4", port));
        (stale + 1..=2 * stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.5", port));
        let mut fixture = Fixture::of_kernel();
        fixture.reconcile(&dns());
        assert_eq!(fixture.deleted_flows(), u64::from(stale));
        assert_eq!(client_ports(), (stale + 1..=2 * stale).collect());
    });
}

/// How many dumps were begun, and which client ports were deleted.
type Record = Arc<Mutex<(usize, Vec<u16>)>>;

/// A table with one stale flow of each client port in the range. A dump waits for a permit.
struct BlockingTable {
    permits: mpsc::Receiver<()>,
    flows: u16,
    record: Record,
    /// How many more dumps fail.
    failures: Cell<u32>,
    /// Whether half-open connections can be listed.
    half_open: netlink::Result<()>,
}

impl BlockingTable {
    /// Three flows, with what ends a dump, and the record.
    fn new() -> (Self, mpsc::Sender<()>, Record) {
        let (permit, permits) = mpsc::channel();
        let record = Record::default();
        (Self { permits, flows: 3, record: record.clone(), failures: Cell::new(0), half_open: Ok(()) }, permit, record)
    }
}

impl FlowTable for BlockingTable {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        Ok(HashSet::new())
    }

    fn visit(
        &self,
        _: IpFamily,
        _: Protocol,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        self.record.lock().unwrap().0 += 1;
        if let Some(left) = self.failures.get().checked_sub(1) {
            self.failures.set(left);
            return Err(netlink::Error::Malformed("test"));
        }
        let address = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
        (1..=self.flows).try_for_each(|port| {
            visit(Flow {
                protocol: Protocol::Udp,
                original: Tuple { source: address("10.9.9.9", port), destination: address("10.96.0.10", 53) },
                reply: Tuple { source: address("10.244.1.9", 53), destination: address("10.9.9.9", port) },
                id: u32::from(port),
                zone: ConntrackZone::Both(0),
                is_established: false,
                is_half_open: false,
            })
        })?;
        // Fails when the test has ended.
        let _ = self.permits.recv();
        Ok(())
    }

    fn visit_half_open(&self, _: IpFamily, _: &mut dyn FnMut(Flow) -> netlink::Result<()>) -> netlink::Result<()> {
        self.half_open.clone()
    }

    fn delete_unchanged(&self, _: &[Flow]) -> netlink::Result<usize> {
        unreachable!("no half-open connection is listed")
    }

    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize> {
        self.record.lock().unwrap().1.extend(flows.iter().map(|flow| flow.original.source.port()));
        Ok(flows.len())
    }
}

fn dns_at(endpoint: &'static str) -> NodeState {
    mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10").endpoints([endpoint])).build()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn slow_cleanup_delays_no_sync_and_is_repeated_once_for_all_syncs_meanwhile() {
    let (table, permit, record) = BlockingTable::new();
    let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    fixture.begin(true, &dns_at("10.244.1.1:53"));
    until(|| record.lock().unwrap().0 == 1);
    for round in 0..1000 {
        // Returns although the first dump never ends.
        let state = dns_at(["10.244.1.2:53", "10.244.1.3:53"][round % 2]);
        fixture.begin(false, &state);
        fixture.requests().with(|pending| assert_eq!(pending.state, state));
    }
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    until(|| fixture.deleted_flows() == 6);
    assert_eq!(record.lock().unwrap().0, 2, "one cleanup for 1000 syncs");
}

/// Rules that an endpoint which returns has revoked.
#[test]
fn other_work_is_done_between_slices_of_a_listing() {
    let (table, ..) = BlockingTable::new();
    let table = BlockingTable { flows: 2 * FLOWS_PER_SLICE as u16 + 1, ..table };
    let vips = UdpVips::of(&dns_at("10.244.1.1:53"), &[], &BTreeSet::new(), &WithdrawnVips::new());
    let (mut vips, mut slices) = (Some(vips), 0);
    clean_up(&table, || vips.take(), || slices += 1).unwrap();
    assert_eq!(slices, 2);
}

#[test]
fn a_vip_that_is_withdrawn_during_a_cleanup_is_left_to_the_next_one() {
    let (table, permit, record) = BlockingTable::new();
    let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    let other = |state: StateBuilder| {
        state.service("default/other/udp", |other| other.port(53).cluster_ip("10.96.0.11")).build()
    };
    fixture.begin(true, &other(mk_state()));
    until(|| record.lock().unwrap().0 == 1);
    // It exists during the first cleanup only.
    let dns = mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10"));
    fixture.begin(false, &other(dns));
    fixture.begin(false, &other(mk_state()));
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    fixture.requests().wait_idle();
    assert_eq!(record.lock().unwrap().1, [1, 2, 3]);
    assert_eq!(fixture.deleted_flows(), 3);
}

#[test]
fn udp_flows_do_not_wait_for_half_open_connections_that_cannot_be_listed() {
    let half_open = Err(netlink::Error::Malformed("test"));
    let table = BlockingTable { half_open, ..BlockingTable::new().0 };
    let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    let state = mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1"));
    fixture.record(false, &state.build());
    let state = mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10"));
    fixture.record(false, &state.build());
    until(|| fixture.deleted_flows() == 3);
}

#[test]
fn a_cleanup_that_has_failed_is_repeated_without_a_change() {
    let (table, permit, record) = BlockingTable::new();
    let mut fixture = Fixture::new(ConntrackCleanup::Enabled, BlockingTable { failures: Cell::new(1), ..table });
    permit.send(()).unwrap();
    fixture.reconcile(&dns_at("10.244.1.1:53"));
    assert_eq!((fixture.deleted_flows(), record.lock().unwrap().0), (3, 2));
}

/// A table without flows that takes this time to be listed, and counts how often it is, by protocol.
struct SlowTable {
    took: Duration,
    passes: Arc<Mutex<HashMap<Protocol, usize>>>,
}

impl FlowTable for SlowTable {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        Ok(HashSet::new())
    }

    fn visit(
        &self,
        _: IpFamily,
        protocol: Protocol,
        _: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        *self.passes.lock().unwrap().entry(protocol).or_default() += 1;
        thread::sleep(self.took);
        Ok(())
    }

    fn visit_half_open(
        &self,
        family: IpFamily,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        self.visit(family, Protocol::Tcp, visit)
    }

    fn delete(&self, _: &[Flow]) -> netlink::Result<usize> {
        Ok(0)
    }

    fn delete_unchanged(&self, _: &[Flow]) -> netlink::Result<usize> {
        unreachable!("no half-open connection is listed")
    }
}

/// A rollout without end: an endpoint of TCP and one of UDP are replaced by others 50 times a second. The first pass
/// follows at once.
#[test]
fn changes_during_a_rest_share_a_pass() {
    let passes = Arc::new(Mutex::new(HashMap::new()));
    let table = SlowTable { took: Duration::from_millis(4), passes: passes.clone() };
    let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    let state = |endpoint: &str| {
        let dns =
            mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10").endpoints([endpoint]));
        dns.service("default/web", |web| web.port(80).cluster_ip("10.96.0.1").endpoints([endpoint])).build()
    };
    let begun = Instant::now();
    fixture.record(false, &state("10.244.1.1:53"));
    until(|| passes.lock().unwrap().len() == 2);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    for round in 0..50 {
        fixture.record(false, &state(["10.244.1.2:53", "10.244.1.1:53"][round % 2]));
        thread::sleep(Duration::from_millis(20));
    }
    fixture.requests().wait_idle();
    let limit = |rest: Rest| (begun.elapsed().as_millis() / u128::from(4 * (rest.factor + 1))) as usize + 1;
    let count = |protocol| passes.lock().unwrap()[&protocol];
    assert!((2..=limit(udp::REST)).contains(&count(Protocol::Udp)), "{passes:?}");
    assert!((2..=limit(half_open::REST)).contains(&count(Protocol::Tcp)), "{passes:?}");
}

#[test]
fn endpoints_that_are_added_list_no_tcp_connections() {
    let passes = Arc::new(Mutex::new(HashMap::new()));
    let table = SlowTable { took: Duration::ZERO, passes: passes.clone() };
    let state = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().copied();
        mk_state().service("default/web", |web| web.port(80).cluster_ip("10.96.0.1").endpoints(endpoints)).build()
    };
    let mut fixture = Fixture::from(ConntrackCleanup::Enabled, table, state(&["10.244.1.1:80"]));
    fixture.apply(&state(&["10.244.1.1:80", "10.244.1.2:80"]));
    fixture.apply(&state(&["10.244.1.1:80", "10.244.1.2:80", "10.244.1.3:80"]));
    assert_eq!(*passes.lock().unwrap(), HashMap::new());
    fixture.apply(&state(&["10.244.1.1:80"]));
    assert_eq!(*passes.lock().unwrap(), HashMap::from([(Protocol::Tcp, 1)]));
}

#[test]
fn a_change_of_tcp_alone_lists_no_udp_flows() {
    let (table, _, record) = BlockingTable::new();
    let mut fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    fixture.reconcile(&dns_at("10.244.1.1:53"));
    let dns =
        mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10").endpoints(["10.244.1.1:53"]));
    fixture.apply(&dns.service("default/web", |web| web.cluster_ip("10.96.0.1")).build());
    assert_eq!(record.lock().unwrap().0, 1);
}

#[test]
fn flow_to_an_endpoint_that_is_being_programmed_is_not_stale() {
    let (table, permit, record) = BlockingTable::new();
    let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
    fixture.begin(true, &dns_at("10.244.1.1:53"));
    until(|| record.lock().unwrap().0 == 1);
    // The endpoint of the flows is added while the dump runs, and is not programmed yet.
    fixture.flows.record(|pending| fixture.kernel.hand(pending, &dns_at("10.244.1.9:53")));
    permit.send(()).unwrap();
    fixture.requests().wait_idle();
    assert_eq!(record.lock().unwrap().1, [0; 0]);
}

#[test]
fn a_cleanup_that_runs_when_the_state_is_rolled_back_deletes_nothing() {
    in_netns(|| {
        let (table, permit, record) = BlockingTable::new();
        let fixture = Fixture::new(ConntrackCleanup::Enabled, table);
        fixture.begin(true, &dns_at("10.244.1.1:53"));
        until(|| record.lock().unwrap().0 == 1);
        fixture.set_confirmed(false);
        permit.send(()).unwrap();
        fixture.requests().wait_idle();
        assert_eq!(record.lock().unwrap().1, [0; 0]);
        permit.send(()).unwrap();
        fixture.set_confirmed(true);
        fixture.requests().wait_idle();
        assert_eq!(record.lock().unwrap().1, [1, 2, 3]);
    });
}
