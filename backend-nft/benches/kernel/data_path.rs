//! Measures connections to a VIP from a pod, from the node and from outside: the time to connect, how many one client
//! opens in a second, and how they are spread over endpoints.
//!
//! ```text
//!   pod 10.255.0.2 ───────▶ ┌──────┐
//!                           │ node │ ──▶ 10.128.x.y:8080, all endpoints are addresses of one namespace
//!   outside 192.168.0.2 ──▶ └──────┘
//! ```
//!
//! The speed of a machine varies over minutes, so all layouts and sizes are measured in turn, a few hundred connections
//! each. A connection is reset as soon as it is open.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use backend::testing::{Stack, synthetic};
use netlink::testing::in_netns;
use socket2::{Domain, Socket, Type};

use crate::{
    EACH, backend,
    chains::{self, Layout},
    report::BenchReport,
    runtime, time,
};

/// How often each is measured, and with how many connections at a time.
const ROUNDS: usize = 100;
const AT_A_TIME: usize = 200;
/// This many connections must be spread evenly.
const SPREAD: u32 = 1_000_000;
/// Exceeded by chi-square with nine degrees of freedom once in a thousand times.
const CHI_SQUARE: f64 = 27.88;
const PERCENTILES: [usize; 3] = [50, 95, 99];

/// The service that clients connect to.
const SERVICE: u32 = 7;
const VIP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1 + SERVICE as u8)), 80);
/// One that no Service uses.
const ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 200, 0, 1)), Server::PORT);

/// A thread in a network namespace of its own, which does one job after the other.
struct Namespace {
    /// Its thread, by which `ip` finds it.
    id: String,
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

/// A node with services, and what is around it.
struct Lab {
    /// With their names.
    clients: [(&'static str, Namespace); 3],
    endpoints: Namespace,
    server: Server,
}

/// Accepts connections at every address, until one arrives at a loopback address.
struct Server(JoinHandle<BTreeMap<IpAddr, u32>>);

/// The connections of one client.
#[derive(Default)]
struct Samples {
    /// How long each took to open, in microseconds.
    times: Vec<f64>,
    /// How long all took, one after the other.
    elapsed: Duration,
}

/// Connections with these numbers of services: with Fairlead, and with the layouts of kube-proxy.
pub(crate) fn measure(sizes: [u32; 3]) -> Vec<BenchReport> {
    let layouts = [None, Some(Layout::ChainPerService), Some(Layout::SingleMap)];
    let subjects: Vec<_> = sizes.iter().flat_map(|size| layouts.map(|layout| (*size, layout))).collect();
    let labs: Vec<_> = subjects.iter().map(|(services, layout)| Lab::start(*services, *layout)).collect();
    let mut samples: Vec<[Samples; 3]> = subjects.iter().map(|_| Default::default()).collect();
    // Connections that no Service takes part in: the least that is possible.
    let mut direct: [Samples; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (lab, samples) in labs.iter().zip(&mut samples) {
            for ((_, client), samples) in lab.clients.iter().zip(samples) {
                samples.extend(client.run(|| connect_many(VIP)));
            }
        }
        for ((_, client), samples) in labs[0].clients.iter().zip(&mut direct) {
            samples.extend(client.run(|| connect_many(ENDPOINT)));
        }
    }
    let clients = labs.first().map(|lab| lab.clients.each_ref().map(|(name, _)| *name)).into_iter().flatten();
    let clients: Vec<_> = clients.collect();
    labs.into_iter().for_each(|lab| drop(lab.end()));
    samples
        .iter_mut()
        .chain([&mut direct])
        .flatten()
        .for_each(|samples| samples.times.sort_unstable_by(f64::total_cmp));

    let mut report = BenchReport::new(sizes[0]);
    for (client, samples) in clients.iter().zip(&direct) {
        samples.report(&mut report, &format!("connect from {client} without a VIP"), None);
    }
    let mut reports = vec![report];
    for (of_size, samples) in subjects.chunks(layouts.len()).zip(samples.chunks(layouts.len())) {
        let mut report = BenchReport::new(of_size[0].0);
        for (at, client) in clients.iter().enumerate() {
            let ours = &samples[0][at];
            for ((_, layout), samples) in of_size.iter().zip(samples) {
                let what = format!("{}connect from {client}", layout.map_or("", Layout::prefix));
                samples[at].report(&mut report, &what, layout.map(|_| ours));
            }
        }
        reports.push(report);
    }
    reports
}

/// The distribution of a million connections to a VIP.
pub(crate) fn measure_spread(services: u32) -> BenchReport {
    let lab = Lab::start(services, None);
    lab.clients[0].1.run(|| {
        for _ in 0..SPREAD {
            connect(VIP);
        }
    });
    let counts = lab.end();
    let expected = f64::from(SPREAD) / f64::from(EACH);
    let square = |count: &u32| (f64::from(*count) - expected).powi(2) / expected;
    let mut report = BenchReport::new(services);
    report.number("spread over 10 endpoints, chi-square", counts.values().map(square).sum());
    assert_eq!(counts.len(), EACH as usize, "{counts:?}");
    assert!(report.last("spread over 10 endpoints, chi-square", services) < CHI_SQUARE, "{counts:?}");
    report
}

// === impl Samples ===

impl Samples {
    fn extend(&mut self, other: Self) {
        self.times.extend(other.times);
        self.elapsed += other.elapsed;
    }

    /// The times must be sorted.
    fn percentile(&self, percent: usize) -> f64 {
        self.times[(self.times.len() * percent).div_ceil(100) - 1]
    }

    /// Adds these to a report, with the ratio of `ours` to them.
    fn report(&self, report: &mut BenchReport, what: &str, ours: Option<&Self>) {
        for percent in PERCENTILES {
            let value = self.percentile(percent);
            report.micros(&format!("{what}, p{percent}"), value);
            if let Some(ours) = ours {
                report.ratio(&format!("{what}, p{percent}, ratio"), ours.percentile(percent) / value);
            }
        }
        report.number(&format!("{what}, per second"), self.per_second());
        if let Some(ours) = ours {
            report.ratio(&format!("{what}, per second, ratio"), ours.per_second() / self.per_second());
        }
    }

    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64()
    }
}

// === impl Namespace ===

impl Namespace {
    fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (ids, id) = mpsc::channel();
        thread::spawn(move || {
            in_netns(move || {
                let thread = fs::read_link("/proc/thread-self").unwrap();
                ids.send(thread.file_name().unwrap().to_str().unwrap().to_owned()).unwrap();
                queue.into_iter().for_each(|job| job());
            });
        });
        Self { id: id.recv().unwrap(), jobs }
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (results, result) = mpsc::channel();
        self.jobs.send(Box::new(move || results.send(job()).unwrap())).unwrap();
        result.recv().expect("the job has panicked")
    }

    fn ip(&self, commands: &[String]) {
        let commands = commands.to_vec();
        self.run(move || {
            for command in commands {
                assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "ip {command}");
            }
        });
    }
}

// === impl Lab ===

impl Lab {
    /// `layout`: `None` for Fairlead.
    fn start(services: u32, layout: Option<Layout>) -> Self {
        let [node, pod, outside, endpoints] = std::array::from_fn(|_| Namespace::new());
        node.ip(&["link set lo up".into()]);
        for (peer, name, network) in
            [(&pod, "pod", "10.255.0"), (&outside, "outside", "192.168.0"), (&endpoints, "endpoints", "10.255.1")]
        {
            node.ip(&[
                format!("link add {name} type veth peer name eth0 netns {}", peer.id),
                format!("addr add {network}.1/30 dev {name}"),
                format!("link set {name} up"),
            ]);
            peer.ip(&[
                "link set lo up".into(),
                format!("addr add {network}.2/30 dev eth0"),
                "link set eth0 up".into(),
                format!("route add default via {network}.1"),
            ]);
        }
        node.ip(&["route add 10.128.0.0/9 via 10.255.1.2".into(), "route add default via 192.168.0.2".into()]);
        endpoints.ip(&["route add local 10.128.0.0/9 dev lo".into(), "route add 10.255.0.0/30 via 10.255.1.1".into()]);
        node.run(move || {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            match layout {
                None => runtime().block_on(async {
                    time(&mut backend(), &synthetic(services, EACH, Stack::V4)).await;
                }),
                Some(layout) => drop(chains::load(layout, services, EACH)),
            }
            // Closed connections are not what is measured.
            fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1").unwrap();
        });
        let server = endpoints.run(Server::start);
        Self { clients: [("a pod", pod), ("the node", node), ("outside", outside)], endpoints, server }
    }

    /// The number of connections to each endpoint.
    fn end(self) -> BTreeMap<IpAddr, u32> {
        let server = self.server;
        self.endpoints.run(|| server.counts())
    }
}

fn connect_many(to: SocketAddr) -> Samples {
    let start = Instant::now();
    let times = (0..AT_A_TIME).map(|_| connect(to).as_secs_f64() * 1e6).collect();
    Samples { times, elapsed: start.elapsed() }
}

/// The time to connect. The connection is reset at once, so that its port can be used again.
fn connect(to: SocketAddr) -> Duration {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    let start = Instant::now();
    socket.connect(&to.into()).unwrap();
    start.elapsed()
}

// === impl Server ===

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
