//! The same services as a chain per service and per endpoint set, which is how kube-proxy 1.36 lays them out, as text through `nft -f`.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::report::Report;

/// Loads so many services with so many endpoints each. `ours`: how long the backend took, in milliseconds.
pub(crate) fn measure(services: u32, each: u32, ours: f64) -> Report {
    let mut report = Report::new(services);
    let cold = nft(&table(services, each));
    report.duration("chain per service, nft -f: cold load", cold);
    report.ratio("chain per service, nft -f: cold load, ratio", cold.as_secs_f64() * 1e3 / ours);
    // One endpoint replaced: the service's chain is written anew.
    let change = format!("flush chain ip chains {}\n{}", name(7), rules(7, each, 200));
    report.duration("chain per service, nft -f: one endpoint replaced", nft(&change));
    report
}

fn table(services: u32, each: u32) -> String {
    let mut text = String::from(
        "table ip chains {\n map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n \
         chain mark-for-masquerade { meta mark set meta mark | 0x4000\n }\n",
    );
    for service in 0..services {
        writeln!(text, " chain {} {{ }}", name(service)).unwrap();
    }
    text.push_str(
        " chain services { ip daddr . meta l4proto . th dport vmap @service-ips\n }\n \
         chain prerouting { type nat hook prerouting priority -100; jump services\n }\n \
         chain output { type nat hook output priority -100; jump services\n }\n}\n",
    );
    for service in 0..services {
        text.push_str(&rules(service, each, 128));
        let vip = Ipv4Addr::from(0x0a60_0001 + service);
        writeln!(text, "add element ip chains service-ips {{ {vip} . tcp . 80 : goto {} }}", name(service))
            .unwrap();
    }
    text
}

/// Endpoints are below 10.`net`.0.0.
fn rules(service: u32, each: u32, net: u8) -> String {
    let vip = Ipv4Addr::from(0x0a60_0001 + service);
    let first = u32::from(Ipv4Addr::new(10, net, 0, 1)) + service * each;
    let endpoints = (0..each).map(|n| format!("{n} : {} . 8080", Ipv4Addr::from(first + n)));
    let endpoints = endpoints.collect::<Vec<_>>().join(", ");
    let name = name(service);
    format!(
        "add rule ip chains {name} ip daddr {vip} tcp dport 80 ip saddr != 10.128.0.0/9 jump mark-for-masquerade\n\
         add rule ip chains {name} meta l4proto tcp dnat ip to numgen random mod {each} map {{ {endpoints} }}\n"
    )
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
