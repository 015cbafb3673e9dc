//! Links, addresses and routes of a real kernel. It may lack dummy devices, so a veth device stands in for one.

use std::{process::Command, time::Instant};

use super::*;
use crate::testing::in_netns;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Runs `ip`, and returns what it prints.
fn run_ip(args: &str) -> String {
    let output = Command::new("ip").args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn veth() -> Link {
    run_ip("link add one type veth peer name two");
    let link = link("one").unwrap().unwrap();
    assert!(!link.is_up);
    set_link_up(&link).unwrap();
    link
}

#[test]
fn an_added_address_is_listed_at_once() {
    in_netns(|| {
        assert!(addresses_by_link().unwrap()["lo"].is_empty());
        for address in ["172.31.0.1", "fd00:172:31::1"] {
            assert!(!addresses().unwrap().contains(&ip(address)));
            run_ip(&format!("address add {address} dev lo"));
            assert!(addresses().unwrap().contains(&ip(address)));
            assert!(addresses_by_link().unwrap()["lo"].contains(&ip(address)));
        }
    });
}

#[test]
fn a_peer_address_is_not_an_address_of_the_link() {
    in_netns(|| {
        run_ip("address add 172.31.0.1 peer 172.31.0.2 dev lo");
        assert_eq!(addresses().unwrap(), HashSet::from([ip("172.31.0.1")]));
    });
}

#[test]
fn a_link_is_found_set_up_and_deleted() {
    in_netns(|| {
        assert_eq!(link("one"), Ok(None));
        veth();
        assert!(link("one").unwrap().unwrap().is_up);
        run_ip("link add three type veth peer name four");
        assert_eq!(delete_link("one"), Ok(()));
        assert_eq!(addresses_by_link().unwrap().into_keys().collect::<Vec<_>>(), ["four", "lo", "three"]);
        run_ip("address add 172.31.0.3 dev three");
        run_ip("address add 172.31.0.4 dev four");
        assert_eq!(addresses_except(&["lo", "three"]).unwrap(), HashSet::from([ip("172.31.0.4")]));
        assert_eq!(delete_link("one"), Ok(()), "there is none any more");
        assert!(delete_link("lo").is_err_and(|error| error.errno() == Some(Errno(libc::EOPNOTSUPP))));
    });
}

/// Host scope, and in IPv6 deprecated without duplicate address detection.
#[test]
fn an_added_address_is_never_selected_as_a_source() {
    in_netns(|| {
        let link = veth();
        assert_eq!(add_addresses(&link, &[ip("10.96.0.10"), ip("fd00:10:96::a")]), Ok(vec![]));
        let listed = run_ip("-oneline address show dev one");
        let [v4, v6, ..] = &listed.lines().collect::<Vec<_>>()[..] else { panic!("{listed}") };
        assert!(v4.contains("inet 10.96.0.10/32 scope host one"), "{v4}");
        assert!(v6.contains("inet6 fd00:10:96::a/128 scope global nodad deprecated noprefixroute"), "{v6}");
        assert!(v6.contains("valid_lft forever preferred_lft 0sec"), "{v6}");
    });
}

#[test]
fn many_addresses_are_added_and_deleted() {
    in_netns(|| {
        let link = veth();
        let mut all: Vec<IpAddr> = (0..5000u32).map(|n| IpAddr::from((0x0a60_0000 + n).to_be_bytes())).collect();
        all.extend([ip("fd00:10:96::1"), ip("fd00:10:96::2")]);
        let begun = Instant::now();
        assert_eq!(add_addresses(&link, &all), Ok(vec![]));
        eprintln!("{} addresses added in {:?}", all.len(), begun.elapsed());
        assert_eq!(add_addresses(&link, &all[1..3]), Ok(vec![]), "the link has them");
        let sorted = |mut list: Vec<IpAddr>| {
            list.sort();
            list
        };
        assert_eq!(sorted(link_addresses(&link).unwrap()), sorted(all.clone()));
        let bad = [ip("10.96.100.1"), ip("ff02::1"), ip("10.96.100.2")];
        let rejected = add_addresses(&link, &bad).unwrap();
        assert_eq!(rejected.iter().map(|rejected| rejected.index).collect::<Vec<_>>(), [1]);
        assert_eq!(delete_addresses(&link, &bad), Ok(vec![]), "the link has two of them");
        let begun = Instant::now();
        assert_eq!(delete_addresses(&link, &all[..5001]), Ok(vec![]));
        eprintln!("5001 addresses deleted in {:?}", begun.elapsed());
        assert_eq!(link_addresses(&link), Ok(vec![ip("fd00:10:96::2")]));
    });
}

#[test]
fn a_route_has_the_link_and_the_source_that_the_kernel_selects() {
    in_netns(|| {
        assert_eq!(route_to(ip("10.244.1.9")), Ok(None));
        veth();
        run_ip("link set two up");
        run_ip("link set lo up");
        run_ip("address add 192.0.2.1/24 dev one");
        run_ip("address add fd00::1/64 dev one nodad");
        run_ip("route add 10.244.0.0/16 via 192.0.2.2");
        run_ip("route add blackhole 10.245.0.0/16");
        // A lookup in the main table only would find none.
        run_ip("route add 10.246.0.0/16 dev two src 192.0.2.1 table 7");
        run_ip("rule add to 10.246.0.0/16 table 7");
        let route = |link: &str, source| Ok(Some(Route { link: link.into(), source: Some(ip(source)) }));
        assert_eq!(route_to(ip("10.244.1.9")), route("one", "192.0.2.1"));
        assert_eq!(route_to(ip("10.245.1.9")), Ok(None));
        assert_eq!(route_to(ip("10.246.1.9")), route("two", "192.0.2.1"));
        assert_eq!(route_to(ip("fd00::9")), route("one", "fd00::1"));
        assert_eq!(route_to(ip("192.0.2.1")), route("lo", "192.0.2.1"));
        assert_eq!(route_to(ip("127.0.0.1")), route("lo", "127.0.0.1"));
    });
}

#[test]
fn async_code_may_call() {
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(async { link("lo") }).unwrap().is_some());
}
