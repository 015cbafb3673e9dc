//! `fairlead services --kernel`: Fairlead's IPVS virtual servers in this node's kernel, and their draining
//! destinations.

use std::{
    fmt::Display,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use backend::dataplane::Vip;
use backend_ipvs::{Destination, ServerMatch, VirtualServer};
use serde_json::{Value, json};

use super::join;
use crate::{
    print::{self, OutputArgs},
    table::Table,
};

/// Printed instead of an empty table.
const NO_SERVERS: &str = "\
This kernel has no IPVS virtual servers of Fairlead: none with a firewall mark 0xfa......, none at an address of the
device kube-ipvs0, and none in the sets FAIRLEAD-VIPS and FAIRLEAD-NODE-PORTS. `nft list table ip fairlead1` (`ip6`)
and `iptables-save` show the rules of the other backends.";

/// Reads the kernel, and prints its virtual servers.
pub(super) async fn run(output: OutputArgs) -> Result<()> {
    let servers = backend_ipvs::virtual_servers().await.context("cannot read the IPVS virtual servers")?;
    let now = SystemTime::now();
    let list: Vec<_> = servers.iter().map(|server| to_json(server, now)).collect();
    print::value(output, &list, || match &servers[..] {
        [] => format!("{NO_SERVERS}\n"),
        servers => table(servers, now).to_string(),
    })
}

/// A row for each destination. Each names its virtual server, so that lines can be searched.
fn table(servers: &[VirtualServer], now: SystemTime) -> Table {
    let mut table =
        Table::new(&["VIRTUAL SERVER", "VIPS", "SCHEDULER", "DESTINATION", "WEIGHT", "ACTIVE", "INACTIVE", "STATE"]);
    for server in servers {
        let at = match server.at {
            ServerMatch::Address(address) => format!("{} {address}", server.protocol),
            ServerMatch::FwMark(mark) => format!("{} {} mark {mark:#x}", server.protocol, server.family),
        };
        let (vips, scheduler) = (join(server.vips.iter().map(vip)), &server.scheduler);
        if server.destinations.is_empty() {
            table.row([&at as &dyn Display, &vips, scheduler, &"", &"", &"", &"", &""]);
        }
        for destination in &server.destinations {
            let Destination { address, weight, active, inactive, .. } = destination;
            let state = time_left(destination, now).map(state).unwrap_or_default();
            table.row([&at as &dyn Display, &vips, scheduler, address, weight, active, inactive, &state]);
        }
    }
    table
}

fn to_json(server: &VirtualServer, now: SystemTime) -> Value {
    let (address, mark) = match server.at {
        ServerMatch::Address(address) => (Some(address), None),
        ServerMatch::FwMark(mark) => (None, Some(mark)),
    };
    let destinations = server.destinations.iter().map(|destination| {
        let Destination { address, weight, active, inactive, draining_until } = destination;
        let until = draining_until.and_then(|until| until.duration_since(UNIX_EPOCH).ok());
        let draining = until
            .zip(time_left(destination, now))
            .map(|(until, left)| json!({ "until_unix_seconds": until.as_secs(), "at_most_seconds": left.as_secs() }));
        json!({
            "address": address, "weight": weight, "active": active, "inactive": inactive, "draining": draining,
        })
    });
    json!({
        "family": server.family.to_string(),
        "protocol": server.protocol,
        "address": address,
        "mark": mark.map(|mark| format!("{mark:#x}")),
        "vips": server.vips.iter().map(vip).collect::<Vec<_>>(),
        "scheduler": &*server.scheduler,
        "destinations": destinations.collect::<Vec<_>>(),
    })
}

/// A VIP with its port, or a node port as `*:30080`.
fn vip(vip: &Vip) -> String {
    match vip {
        Vip::AddressPort { address, port, .. } => std::net::SocketAddr::new(*address, *port).to_string(),
        Vip::NodePort { port, .. } => format!("*:{port}"),
        Vip::Address(address) => address.to_string(),
    }
}

/// How long a draining destination may stay; zero if its deadline has passed.
fn time_left(destination: &Destination, now: SystemTime) -> Option<Duration> {
    destination.draining_until.map(|until| until.duration_since(now).unwrap_or_default())
}

fn state(left: Duration) -> String {
    let seconds = left.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes, seconds) {
        (0, 0, 0) => "draining, deadline passed".to_owned(),
        (0, 0, _) => format!("draining, at most {seconds}s more"),
        (0, ..) => format!("draining, at most {minutes}m{seconds}s more"),
        _ => format!("draining, at most {hours}h{minutes}m more"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto::model::{IpFamily, Protocol};

    use super::*;

    /// 12.5 minutes before the deadline of the draining destination.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    fn destination(address: &str, weight: u32, active: u32, inactive: u32) -> Destination {
        Destination { address: address.parse().unwrap(), weight, active, inactive, draining_until: None }
    }

    fn servers() -> Vec<VirtualServer> {
        let draining = Destination {
            draining_until: Some(now() + Duration::from_secs(750)),
            ..destination("10.244.1.12:8080", 0, 1, 0)
        };
        let at_address = VirtualServer {
            family: IpFamily::V4,
            protocol: Protocol::Tcp,
            at: ServerMatch::Address("10.96.0.1:80".parse().unwrap()),
            vips: BTreeSet::new(),
            scheduler: "rr".into(),
            destinations: vec![destination("10.244.1.11:8080", 1, 17, 240), draining],
        };
        let protocol = Protocol::Udp;
        let vip = Vip::AddressPort { address: "2001:db8::1".parse().unwrap(), port: 53, protocol };
        let at_mark = VirtualServer {
            family: IpFamily::V6,
            protocol,
            at: ServerMatch::FwMark(0xfa00_0019),
            vips: [vip, Vip::NodePort { port: 30_053, protocol }].into(),
            scheduler: "mh".into(),
            destinations: Vec::new(),
        };
        vec![at_address, at_mark]
    }

    #[test]
    fn table_shows_draining_destinations_and_vips() {
        let expected = "\
VIRTUAL SERVER             VIPS                       SCHEDULER   DESTINATION        WEIGHT   ACTIVE   INACTIVE   STATE
TCP 10.96.0.1:80           -                          rr          10.244.1.11:8080   1        17       240        -
TCP 10.96.0.1:80           -                          rr          10.244.1.12:8080   0        1        0          \
draining, at most 12m30s more
UDP IPv6 mark 0xfa000019   [2001:db8::1]:53 *:30053   mh          -                  -        -        -          -
";
        assert_eq!(table(&servers(), now()).to_string(), expected);
    }

    #[test]
    fn json_has_the_same_content() {
        let [at_address, at_mark] = &servers()[..] else { panic!() };
        let at_address = to_json(at_address, now());
        assert_eq!(at_address["address"], "10.96.0.1:80");
        assert_eq!(at_address["mark"], Value::Null);
        assert_eq!(at_address["destinations"][0]["draining"], Value::Null);
        let draining = json!({ "until_unix_seconds": 1_000_750, "at_most_seconds": 750 });
        assert_eq!(at_address["destinations"][1]["draining"], draining);
        let at_mark = to_json(at_mark, now());
        assert_eq!(
            at_mark,
            json!({
                "family": "IPv6", "protocol": "UDP", "address": null, "mark": "0xfa000019",
                "vips": ["[2001:db8::1]:53", "*:30053"], "scheduler": "mh", "destinations": [],
            })
        );
    }

    #[test]
    fn time_left_is_printed_in_hours_minutes_and_seconds() {
        let printed = [0, 59, 60, 750, 3_599, 7_500].map(|seconds| state(Duration::from_secs(seconds)));
        let expected = [
            "draining, deadline passed",
            "draining, at most 59s more",
            "draining, at most 1m0s more",
            "draining, at most 12m30s more",
            "draining, at most 59m59s more",
            "draining, at most 2h5m more",
        ];
        assert_eq!(printed, expected);
        let late = Destination { draining_until: Some(now()), ..destination("10.244.1.11:8080", 0, 0, 0) };
        assert_eq!(time_left(&late, now() + Duration::from_secs(9)), Some(Duration::ZERO));
    }
}
