//! Which connections lead to endpoints that are gone, and the rules as nft lists them.

use std::{net::SocketAddr, num::NonZeroU16, process::Command};

use iptables::{Tools, Variant, block_on};
use netlink::{
    conntrack::{ConntrackZone, Flow, FlowProtocol, Tuple},
    nft::NftHandle,
    testing::in_netns,
};
use proto::model::{Endpoint, IpFamily, PerFamily};

use super::{GonePort, GoneVips, chain, rejecter::Route, remove_reset_rules, table};
use crate::{
    ServicePortState,
    testing::{mk_key, mk_state},
};

fn flow(to: &str, answered_by: &str) -> Flow {
    let (to, answered_by): (SocketAddr, SocketAddr) = (to.parse().unwrap(), answered_by.parse().unwrap());
    let client = SocketAddr::new(if to.is_ipv4() { [10, 9, 9, 9].into() } else { "fd00:9::9".parse().unwrap() }, 4000);
    Flow {
        protocol: FlowProtocol::Tcp,
        original: Tuple { source: client, destination: to },
        reply: Tuple { source: answered_by, destination: client },
        id: 1,
        zone: ConntrackZone::Both(0),
    }
}

fn endpoint(text: &str) -> Endpoint {
    let address: SocketAddr = text.parse().unwrap();
    Endpoint::new(address.ip(), NonZeroU16::new(address.port()).unwrap())
}

/// A service with an endpoint, and another one that is gone.
fn web(gone: &[Endpoint]) -> ServicePortState {
    let state = mk_state().service("default/web", |web| {
        let web = web.port(80).cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30080);
        web.endpoints(["10.244.1.1:8080", "[fd00:244::1]:8080"]).established_endpoints(["10.244.1.2:8080"])
    });
    let mut web = state.build().service_port(&mk_key("default/web")).unwrap().clone();
    for endpoint in gone {
        web.gone[IpFamily::of(&endpoint.address)].insert(*endpoint);
    }
    web
}

fn is_gone(port: &GonePort, to: &str, answered_by: &str) -> bool {
    let node = ["172.16.0.1".parse().unwrap()];
    let vips: PerFamily<GoneVips> = GoneVips::of_service_ports([&port.0].into_iter(), &node);
    let flow = flow(to, answered_by);
    vips[IpFamily::of(&flow.original.destination.ip())].is_gone(&flow)
}

#[test]
fn listed_endpoints_are_gone_at_each_vip() {
    assert!(GonePort::of(&web(&[])).is_none());
    let port = GonePort::of(&web(&[endpoint("10.244.1.3:8080")])).unwrap();
    for to in ["10.96.0.1:80", "172.16.0.1:30080"] {
        assert!(is_gone(&port, to, "10.244.1.3:8080"), "{to}");
        for other in ["10.244.1.3:8081", "10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.4:8080"] {
            assert!(!is_gone(&port, to, other), "{to}, {other}");
        }
    }
    for to in ["10.96.0.1:81", "10.96.0.2:80", "172.16.0.2:30080", "[fd00:96::1]:80"] {
        let endpoint = if to.starts_with('[') { "[fd00:244::3]:8080" } else { "10.244.1.3:8080" };
        assert!(!is_gone(&port, to, endpoint), "{to}");
    }
}

#[test]
fn all_other_addresses_may_be_gone() {
    let port = GonePort::of(&web(&[Endpoint::any_other(IpFamily::V4)])).unwrap();
    assert!(is_gone(&port, "10.96.0.1:80", "10.244.1.3:8080"));
    // Another port of an endpoint that exists, one that only keeps connections, and one of the other family.
    for known in ["10.244.1.1:9090", "10.244.1.2:8080"] {
        assert!(!is_gone(&port, "10.96.0.1:80", known), "{known}");
    }
    assert!(!is_gone(&port, "[fd00:96::1]:80", "[fd00:244::3]:8080"));
    // Older than the VIP.
    assert!(!is_gone(&port, "10.96.0.1:80", "10.96.0.1:80"));
}

#[test]
fn only_more_endpoints_that_are_gone_need_a_pass() {
    let [one, two] = ["10.244.1.3:8080", "10.244.1.4:8080"].map(endpoint);
    let of = |gone: &[Endpoint]| GonePort::of(&web(gone)).unwrap();
    assert!(of(&[one]).has_more_than(None));
    assert!(of(&[one, two]).has_more_than(Some(&of(&[one]))));
    assert!(!of(&[one]).has_more_than(Some(&of(&[one, two]))));
    let all_others = Endpoint::any_other(IpFamily::V4);
    let mut fewer = web(&[all_others]);
    fewer.established.v4.remove(&endpoint("10.244.1.2:8080"));
    assert!(GonePort::of(&fewer).unwrap().has_more_than(Some(&of(&[all_others]))));
    assert!(!of(&[all_others]).has_more_than(GonePort::of(&fewer).as_ref()));
}

#[test]
fn rules_are_listed_and_removed() {
    in_netns(|| {
        let list = |family: &str| {
            let output = Command::new("nft").args(["list", "table", family, table::NAME]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let mut handle = NftHandle::open().unwrap();
        let routes = [flow("10.96.0.1:80", "10.244.1.3:8080"), flow("10.96.0.2:80", "10.244.1.3:8080")];
        for routes in [&routes[..1], &routes[..]] {
            let routes: Vec<_> = routes.iter().map(Route::of).collect();
            table::reject(&mut handle, IpFamily::V4, &routes).unwrap();
        }
        let v6 = Route::of(&flow("[fd00:96::1]:80", "[fd00:244::3]:8080"));
        table::reject(&mut handle, IpFamily::V6, &[v6]).unwrap();
        let (v4, v6) = (list("ip"), list("ip6"));
        let rule = "ct original ip daddr . ct original proto-dst . ip daddr . tcp dport @gone reject with tcp reset";
        assert_eq!(v4.matches(rule).count(), 2, "{v4}");
        for element in ["10.96.0.1 . 80 . 10.244.1.3 . 8080 timeout 1m", "10.96.0.2 . 80 . 10.244.1.3 . 8080"] {
            assert_eq!(v4.matches(element).count(), 1, "{v4}");
        }
        assert!(v6.contains("fd00:96::1 . 80 . fd00:244::3 . 8080"), "{v6}");
        for (dry_run, found) in [(true, 2), (false, 2), (false, 0)] {
            let objects = block_on(remove_reset_rules(false, dry_run)).unwrap();
            assert_eq!(objects.len(), found, "{objects:?}");
        }
        for _ in 0..2 {
            IpFamily::ALL.into_iter().for_each(|family| table::remove(&mut handle, family).unwrap());
            assert_eq!(list("ip") + &list("ip6"), "");
        }
    });
}

#[test]
fn iptables_lists_and_removes_the_chain() {
    for variant in Variant::ALL {
        in_netns(move || {
            let mut tools = Tools::new(Some(variant));
            let mut save = |family| block_on(async { Ok(tools.save(family).await?.unwrap_or_default()) }).unwrap();
            let mut tools = Tools::new(Some(variant));
            let v4 = [flow("10.96.0.1:80", "10.244.1.3:8080"), flow("10.96.0.2:80", "10.244.1.3:8080")];
            let v6 = [flow("[fd00:96::1]:80", "[fd00:244::3]:8080")];
            let routes = |flows: &[Flow]| flows.iter().map(Route::of).collect();
            chain::reject(&mut tools, IpFamily::V4, &routes(&v4[..1])).unwrap();
            chain::reject(&mut tools, IpFamily::V4, &routes(&v4)).unwrap();
            chain::reject(&mut tools, IpFamily::V6, &routes(&v6)).unwrap();
            let saved = [save(IpFamily::V4), save(IpFamily::V6)].concat();
            for rule in [
                "-d 10.244.1.3/32 -p tcp -m tcp --dport 8080 -m conntrack --ctorigdst 10.96.0.1 --ctorigdstport 80 -j",
                "-d 10.244.1.3/32 -p tcp -m tcp --dport 8080 -m conntrack --ctorigdst 10.96.0.2 --ctorigdstport 80 -j",
                "-d fd00:244::3/128 -p tcp -m tcp --dport 8080 -m conntrack --ctorigdst fd00:96::1 \
                 --ctorigdstport 80 -j",
            ] {
                let rule = format!("-A {} {rule} REJECT --reject-with tcp-reset\n", chain::NAME);
                assert_eq!(saved.matches(&rule).count(), 1, "{variant}: {rule}: {saved}");
            }
            assert_eq!(saved.matches("-m time --datestart 20").count(), 2, "{saved}");
            assert_eq!(saved.matches(&format!("-j {}\n", chain::NAME)).count(), 4, "{saved}");
            let found = block_on(remove_reset_rules(true, true)).unwrap();
            let found: Vec<_> = found.iter().map(|object| &*object.kind).collect();
            assert_eq!(found, [format!("chain {}", chain::NAME), format!("chain {}", chain::NAME)], "{variant}");
            for family in IpFamily::ALL.into_iter().chain(IpFamily::ALL) {
                chain::remove(&mut tools, family).unwrap();
                assert!(!save(family).contains(chain::NAME), "{variant}");
            }
        });
    }
}
