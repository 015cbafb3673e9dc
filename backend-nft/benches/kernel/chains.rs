//! The same services in the shape that kube-proxy gives them, as text through `nft -f`: in 1.36 a chain per service,
//! with a map of its own; as proposed for later (kubernetes/kubernetes#140362) one map for all of them.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::report::BenchReport;

/// Measures `services` with `each` endpoints. `ours`: how long the backend took, in milliseconds.
pub(crate) fn measure(services: u32, each: u32, ours: f64) -> BenchReport {
    let mut report = BenchReport::new(services);
    let cold = load(Layout::ChainPerService, services, each);
    report.duration("chain per service, nft -f: cold load", cold);
    report.ratio("chain per service, nft -f: cold load, ratio", cold.as_secs_f64() * 1e3 / ours);
    // One endpoint is replaced: the chain of the service is flushed and filled.
    let change = format!("flush chain ip chains {}\n{}", name(7), rules(7, each, 200));
    report.duration("chain per service, nft -f: one endpoint replaced", nft(&change));
    report
}

/// How kube-proxy programs services.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    ChainPerService,
    SingleMap,
}

impl Layout {
    /// Before the name of a measurement.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::ChainPerService => "chain per service: ",
            Self::SingleMap => "single map: ",
        }
    }
}

/// Loads the ruleset. Returns how long that took.
pub(crate) fn load(layout: Layout, services: u32, each: u32) -> Duration {
    match layout {
        Layout::ChainPerService => nft(&chain_per_service(services, each)),
        Layout::SingleMap => nft(&single_map(services, each)),
    }
}

/// The chains and sets that do not depend on services.
const BASE: &str = "table ip chains {
  set cluster-ips { type ipv4_addr; }
  set nodeport-ips { type ipv4_addr; elements = { 192.168.1.1 } }
  set hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }

  chain reject-chain { reject; }
  chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
  chain cluster-ips-check {
    ip daddr @cluster-ips reject
    ip daddr 10.96.0.0/12 drop
  }
  chain services {
    ip daddr @cluster-ips ip saddr != 10.128.0.0/9 meta mark set meta mark | 0x4000
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain masquerading {
    meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random
    ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
  }

  chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
  chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
  chain filter-input {
    type filter hook input priority 0
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
";

fn chain_per_service(services: u32, each: u32) -> String {
    let mut text = String::from(BASE);
    for service in 0..services {
        writeln!(text, "add chain ip chains {}", name(service)).unwrap();
    }
    for service in 0..services {
        text.push_str(&rules(service, each, 128));
        let vip = Ipv4Addr::from(0x0a60_0001 + service);
        writeln!(text, "add element ip chains cluster-ips {{ {vip} }}").unwrap();
        writeln!(text, "add element ip chains service-ips {{ {vip} . tcp . 80 : goto {} }}", name(service)).unwrap();
    }
    text
}

/// A chain for each number of endpoints, which all services with that number share.
fn single_map(services: u32, each: u32) -> String {
    let mut text = String::from(BASE);
    text.push_str("add map ip chains endpoints-tcp {\n");
    text.push_str("  typeof ip daddr . tcp dport . numgen random mod 10 : ip daddr . tcp dport;\n}\n");
    let choice = format!("ip daddr . tcp dport . numgen random mod {each}");
    writeln!(text, "add chain ip chains lb-{each}-endpoints").unwrap();
    writeln!(text, "add rule ip chains lb-{each}-endpoints dnat ip to {choice} map @endpoints-tcp").unwrap();
    for service in 0..services {
        let vip = Ipv4Addr::from(0x0a60_0001 + service);
        writeln!(text, "add element ip chains cluster-ips {{ {vip} }}").unwrap();
        writeln!(text, "add element ip chains service-ips {{ {vip} . tcp . 80 : goto lb-{each}-endpoints }}").unwrap();
        let endpoints: Vec<_> = (0..)
            .zip(endpoints(service, each, 128))
            .map(|(n, address)| format!("{vip} . 80 . {n} : {address} . 8080"))
            .collect();
        writeln!(text, "add element ip chains endpoints-tcp {{ {} }}", endpoints.join(", ")).unwrap();
    }
    text
}

/// The addresses are in 10.`net`.0.0/16, or follow it.
fn endpoints(service: u32, each: u32, net: u8) -> impl Iterator<Item = Ipv4Addr> {
    let first = u32::from(Ipv4Addr::new(10, net, 0, 1)) + service * each;
    (0..each).map(move |n| Ipv4Addr::from(first + n))
}

fn rules(service: u32, each: u32, net: u8) -> String {
    let endpoints = (0..).zip(endpoints(service, each, net)).map(|(n, address)| format!("{n} : {address} . 8080"));
    let endpoints = endpoints.collect::<Vec<_>>().join(", ");
    let name = name(service);
    format!("add rule ip chains {name} meta l4proto tcp dnat ip to numgen random mod {each} map {{ {endpoints} }}\n")
}

fn name(service: u32) -> String {
    format!("service-{service}-default/svc-{service}/tcp/http")
}

fn nft(text: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    start.elapsed()
}
