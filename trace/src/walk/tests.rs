//! The order of chains, and which of them a packet meets.

use netlink::nft::{BaseChain, Chain, Expr, NatFlags, NatType, Policy, Register, Rule, Table, TableFamily, Verdict};

use super::*;
use crate::{packet::Protocol, testing::FakeKernel};

/// A table with one base chain.
fn table(name: &str, kind: ChainType, hook: Hook, priority: i32, rules: Vec<Rule>) -> nft::Table {
    let base = Some(BaseChain { kind, hook, priority, policy: Policy::Accept });
    let chain = Chain { name: "chain".to_owned(), base, comment: None };
    nft::Table {
        table: Table::new(TableFamily::Inet, name),
        chains: vec![chain],
        rules: [("chain".to_owned(), rules)].into(),
        sets: Default::default(),
    }
}

fn dnat_to(address: [u8; 4]) -> Rule {
    let addr = Some(Register::FIRST);
    let nat = Expr::Nat {
        kind: NatType::Dnat,
        family: TableFamily::Ip,
        addr,
        addr_max: None,
        port: None,
        port_max: None,
        flags: NatFlags::NONE,
    };
    Rule::new([Expr::Immediate { dreg: Register::FIRST, data: address.into() }, nat])
}

/// A rule that says nothing.
fn passing() -> Vec<Rule> {
    vec![Rule::new([Expr::Counter])]
}

fn path(rules: Vec<nft::Table>, entry: Entry, destination: &str) -> Path {
    let rules = Rules { nft: rules, iptables: Vec::new() };
    let packet = Packet {
        source: "10.0.0.9:40000".parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Protocol::Udp,
        entry,
    };
    let mut kernel = FakeKernel::with(&["10.0.0.1"]);
    trace(&rules, &packet, &mut kernel).unwrap().paths.remove(0)
}

fn places(path: &Path) -> Vec<(&str, &str)> {
    let name = |place: &'_ str| place.len() - " chain".len();
    path.steps.iter().map(|step| (step.hook, &step.place[5..name(&step.place)])).collect()
}

fn arrives() -> Entry {
    Entry::Interface("eth0".to_owned())
}

#[test]
fn priorities_are_kept_and_one_translation_is_enough() {
    let rules = vec![
        table("late", ChainType::Filter, Hook::Prerouting, 0, passing()),
        table("second", ChainType::Nat, Hook::Prerouting, 50, vec![dnat_to([10, 0, 0, 3])]),
        // What translates is asked where translation is done, whatever its own priority.
        table("first", ChainType::Nat, Hook::Prerouting, 20, vec![dnat_to([10, 0, 0, 2])]),
        table("early", ChainType::Filter, Hook::Prerouting, -101, passing()),
    ];
    let path = path(rules, arrives(), "10.0.0.99:53");
    let expected = ["early", "first", "late"].map(|name| ("prerouting", name));
    assert_eq!(places(&path), expected);
    assert_eq!(path.endpoint, Some("10.0.0.2:53".parse().unwrap()));
}

#[test]
fn where_it_goes_decides_what_it_meets() {
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    let rules = || {
        let table = |hook| table("all", ChainType::Filter, hook, 0, passing());
        hooks.into_iter().map(table).collect::<Vec<_>>()
    };
    let hooks = |entry, destination: &str| {
        let path = path(rules(), entry, destination);
        places(&path).into_iter().map(|(hook, _)| hook.to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(hooks(arrives(), "10.0.0.1:53"), "prerouting input");
    assert_eq!(hooks(arrives(), "10.0.0.2:53"), "prerouting forward postrouting");
    assert_eq!(hooks(Entry::Node, "10.0.0.2:53"), "output postrouting");
    assert_eq!(hooks(Entry::Node, "10.0.0.1:53"), "output postrouting prerouting input");
}

#[test]
fn who_drops_is_named() {
    let drop = Rule::new([Expr::Verdict(Verdict::Drop)]).comment("no way");
    let rules = vec![
        table("accepts", ChainType::Filter, Hook::Forward, -1, vec![Rule::new([Expr::Verdict(Verdict::Accept)])]),
        table("drops", ChainType::Filter, Hook::Forward, 1, vec![drop]),
    ];
    let path = path(rules, arrives(), "10.0.0.2:53");
    assert_eq!(path.fate, Fate::Dropped { why: "no way".to_owned() });
    assert_eq!(places(&path), [("forward", "accepts"), ("forward", "drops")]);
}
