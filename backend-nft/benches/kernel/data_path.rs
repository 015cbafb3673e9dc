//! Measures the time to connect, and the distribution over endpoints, with real connections from the node to a VIP.
//!
//! ```text
//!   connect to 10.96.0.8:80 ──▶ output chain ──▶ 10.128.x.y:8080, an address of the node ──▶ counting listener
//! ```
//!
//! The speed of a machine varies over minutes, so the layouts are measured in turn, a few hundred connections each.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use backend::testing::{Stack, synthetic};
use netlink::testing::in_netns;
use socket2::{Domain, Socket, Type};

use crate::{EACH, backend, chains, report::BenchReport, runtime, time};

/// How often each layout is measured, and with how many connections at a time.
const ROUNDS: usize = 200;
const AT_A_TIME: usize = 200;
/// This many connections must be spread evenly.
const SPREAD: u32 = 1_000_000;
/// Exceeded by chi-square with nine degrees of freedom once in a thousand times.
const CHI_SQUARE: f64 = 27.88;

/// The service that clients connect to.
const SERVICE: u32 = 7;
const VIP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1 + SERVICE as u8)), 80);

/// A network namespace with services, and a thread that connects.
struct ClientNamespace {
    /// The number of connections to open.
    jobs: mpsc::Sender<usize>,
    /// The median of the times to connect, in microseconds.
    times: mpsc::Receiver<f64>,
    thread: JoinHandle<()>,
}

/// How the services are programmed.
#[derive(Clone, Copy)]
enum Layout {
    Fairlead,
    Chains,
}

/// Connect times with few and many services, compared with a chain per service.
pub(crate) fn measure(few: u32, many: u32, chains: u32) -> Vec<BenchReport> {
    let subjects =
        [(few, "", Layout::Fairlead), (many, "", Layout::Fairlead), (chains, "chain per service: ", Layout::Chains)];
    let namespaces = subjects.map(|(services, _, layout)| ClientNamespace::start(services, layout));
    // For each layout: the median of each round, in microseconds, and how it compares with the first layout's.
    let mut medians = subjects.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        let round: Vec<f64> = namespaces.iter().map(|namespace| namespace.connect(AT_A_TIME)).collect();
        for ((times, ratios), time) in medians.iter_mut().zip(&round) {
            times.push(*time);
            ratios.push(time / round[0]);
        }
    }
    namespaces.into_iter().for_each(ClientNamespace::end);
    let reports = subjects.into_iter().zip(medians).map(|((services, prefix, _), (times, ratios))| {
        let mut report = BenchReport::new(services);
        report.micros(&format!("{prefix}connect, median"), median(times));
        report.ratio(&format!("{prefix}connect, relative to few services"), median(ratios));
        report
    });
    reports.collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The distribution of a million connections to a VIP.
pub(crate) fn measure_spread(services: u32) -> BenchReport {
    let counts = in_netns(move || {
        prepare(services, Layout::Fairlead);
        let server = Server::start();
        for _ in 0..SPREAD {
            connect();
        }
        server.counts()
    });
    let expected = f64::from(SPREAD) / f64::from(EACH);
    let square = |count: &u32| (f64::from(*count) - expected).powi(2) / expected;
    let mut report = BenchReport::new(services);
    report.number("spread over 10 endpoints, chi-square", counts.values().map(square).sum());
    assert_eq!(counts.len(), EACH as usize, "{counts:?}");
    assert!(report.last("spread over 10 endpoints, chi-square", services) < CHI_SQUARE, "{counts:?}");
    report
}

impl ClientNamespace {
    fn start(services: u32, layout: Layout) -> Self {
        let (jobs, queue) = mpsc::channel::<usize>();
        let (results, times) = mpsc::channel();
        let run = move || {
            prepare(services, layout);
            let server = Server::start();
            for count in queue {
                results.send(median((0..count).map(|_| connect().as_secs_f64() * 1e6).collect())).unwrap();
            }
            drop(server.counts());
        };
        Self { jobs, times, thread: thread::spawn(|| in_netns(run)) }
    }

    fn connect(&self, count: usize) -> f64 {
        self.jobs.send(count).unwrap();
        self.times.recv().expect("the thread has panicked")
    }

    fn end(self) {
        drop(self.jobs);
        self.thread.join().unwrap();
    }
}

/// All endpoints are addresses of this namespace.
fn prepare(services: u32, layout: Layout) {
    for command in [
        "link set lo up",
        "addr add 10.200.0.1/32 dev lo",
        "route add local 10.128.0.0/9 dev lo src 10.200.0.1",
        "route add 10.96.0.0/11 dev lo src 10.200.0.1",
    ] {
        assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "ip {command}");
    }
    match layout {
        Layout::Fairlead => runtime().block_on(async {
            time(&mut backend(), &synthetic(services, EACH, Stack::V4)).await;
        }),
        Layout::Chains => {
            chains::load(services, EACH);
        }
    }
}

/// The time to connect. The connection is reset at once, so that its port can be used again.
fn connect() -> Duration {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    let start = Instant::now();
    socket.connect(&VIP.into()).unwrap();
    start.elapsed()
}

/// Accepts connections at every address, until one arrives at a loopback address.
struct Server(JoinHandle<BTreeMap<IpAddr, u32>>);

impl Server {
    const PORT: u16 = 8080;

    fn start() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), Self::PORT).into()).unwrap();
        socket.listen(4096).unwrap();
        let accept = move || {
            let mut counts = BTreeMap::new();
            loop {
                let (connection, _) = socket.accept().unwrap();
                let local = connection.local_addr().unwrap().as_socket().unwrap().ip();
                if local.is_loopback() {
                    return counts;
                }
                *counts.entry(local).or_insert(0) += 1;
            }
        };
        Self(thread::spawn(accept))
    }

    /// The number of connections for each address. The backlog is accepted first.
    fn counts(self) -> BTreeMap<IpAddr, u32> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.connect(&SocketAddr::new(Ipv4Addr::LOCALHOST.into(), Self::PORT).into()).unwrap();
        self.0.join().unwrap()
    }
}
