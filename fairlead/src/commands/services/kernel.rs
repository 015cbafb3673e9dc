//! `fairlead services --kernel`: Fairlead's IPVS virtual servers in this node's kernel, and their draining
//! destinations.

use std::fmt::Display;

use anyhow::{Context as _, Result};
use backend::dataplane::Vip;
use backend_ipvs::{Destination, VirtualServer, VirtualServerKey};
use proto::convert::unix_micros;
use serde_json::{Value, json};

use super::join;
use crate::{
    commands::changes::time_text,
    print::{self, OutputArgs},
    table::TextTable,
};

/// Printed instead of an empty table.
const NO_SERVERS: &str = "\
This kernel has no IPVS virtual servers of Fairlead: none with a firewall mark 0xfa......, none at an address of the
device kube-ipvs0, and none in the sets FAIRLEAD-VIPS and FAIRLEAD-NODE-PORTS. `nft list table ip fairlead1` (`ip6`)
and `iptables-save` show the rules of the other backends.";

/// Reads the kernel, and prints its virtual servers.
pub(super) async fn run(output: OutputArgs) -> Result<()> {
    let servers = backend_ipvs::virtual_servers().await.context("cannot read the IPVS virtual servers")?;
    let list: Vec<_> = servers.iter().map(to_json).collect();
    print::value(output, &list, || match &servers[..] {
        [] => format!("{NO_SERVERS}\n"),
        servers => table(servers).to_string(),
    })
}

/// A row for each destination. Each names its virtual server, so that lines can be searched.
fn table(servers: &[VirtualServer]) -> TextTable {
    let mut table = TextTable::new(&[
        "VIRTUAL SERVER",
        "VIPS",
        "SCHEDULER",
        "DESTINATION",
        "WEIGHT",
        "ACTIVE",
        "INACTIVE",
        "STATE",
    ]);
    for server in servers {
        let at = match server.at {
            VirtualServerKey::Address(_, address) => format!("{} {address}", server.protocol),
            VirtualServerKey::FwMark(family, mark) => format!("{} {family} mark {mark:#x}", server.protocol),
        };
        let vips = join(server.vips.iter().map(vip));
        let scheduler = &server.scheduler;

        if server.destinations.is_empty() {
            table.row([&at as &dyn Display, &vips, scheduler, &"", &"", &"", &"", &""]);
        }
        for destination in &server.destinations {
            let Destination { address, weight, active, inactive, draining_until } = destination;
            let state = match draining_until {
                Some(until) => format!("draining until {}", time_text(unix_micros(*until))),
                None => String::new(),
            };
            table.row([&at as &dyn Display, &vips, scheduler, address, weight, active, inactive, &state]);
        }
    }
    table
}

fn to_json(server: &VirtualServer) -> Value {
    let (address, mark) = match server.at {
        VirtualServerKey::Address(_, address) => (Some(address), None),
        VirtualServerKey::FwMark(_, mark) => (None, Some(mark)),
    };
    let mut destinations = Vec::new();
    for Destination { address, weight, active, inactive, draining_until } in &server.destinations {
        destinations.push(json!({
            "address": address,
            "weight": weight,
            "active": active,
            "inactive": inactive,
            "draining_until_micros": draining_until.map(unix_micros),
        }));
    }
    json!({
        "family": server.at.family().to_string(),
        "protocol": server.protocol,
        "address": address,
        "mark": mark.map(|mark| format!("{mark:#x}")),
        "vips": server.vips.iter().map(vip).collect::<Vec<_>>(),
        "scheduler": &*server.scheduler,
        "destinations": destinations,
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

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        time::{Duration, UNIX_EPOCH},
    };

    use proto::model::{IpFamily, Protocol};

    use super::*;

    fn destination(address: &str, weight: u32, active: u32, inactive: u32) -> Destination {
        Destination { address: address.parse().unwrap(), weight, active, inactive, draining_until: None }
    }

    fn servers() -> Vec<VirtualServer> {
        let draining = Destination {
            draining_until: Some(UNIX_EPOCH + Duration::from_secs(1_000_750)),
            ..destination("10.244.1.12:8080", 0, 1, 0)
        };
        let at_address = VirtualServer {
            protocol: Protocol::Tcp,
            at: VirtualServerKey::Address(Protocol::Tcp, "10.96.0.1:80".parse().unwrap()),
            vips: BTreeSet::new(),
            scheduler: "rr".into(),
            destinations: vec![destination("10.244.1.11:8080", 1, 17, 240), draining],
        };
        let protocol = Protocol::Udp;
        let vip = Vip::AddressPort { address: "2001:db8::1".parse().unwrap(), port: 53, protocol };
        let at_mark = VirtualServer {
            protocol,
            at: VirtualServerKey::FwMark(IpFamily::V6, 0xfa00_0019),
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
draining until 1970-01-12T13:59:10.000Z
UDP IPv6 mark 0xfa000019   [2001:db8::1]:53 *:30053   mh          -                  -        -        -          -
";
        assert_eq!(table(&servers()).to_string(), expected);
    }

    #[test]
    fn json_has_the_same_content() {
        let [at_address, at_mark] = &servers()[..] else { panic!() };
        let at_address = to_json(at_address);
        assert_eq!(at_address["address"], "10.96.0.1:80");
        assert_eq!(at_address["mark"], Value::Null);
        let until = |destination: usize| &at_address["destinations"][destination]["draining_until_micros"];
        assert_eq!((until(0), until(1)), (&Value::Null, &json!(1_000_750_000_000_u64)));
        let at_mark = to_json(at_mark);
        assert_eq!(
            at_mark,
            json!({
                "family": "IPv6", "protocol": "UDP", "address": null, "mark": "0xfa000019",
                "vips": ["[2001:db8::1]:53", "*:30053"], "scheduler": "mh", "destinations": [],
            })
        );
    }
}
