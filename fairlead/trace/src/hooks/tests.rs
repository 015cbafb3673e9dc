//! The order of chains, and which of them are evaluated for a packet.

use netlink::nft::{BaseChain, Chain, Expr, NatFlags, NatType, Policy, Register, Rule, Table, TableFamily, Verdict};

use proto::model::Protocol;

use super::*;
use crate::testing::FakeKernel;

/// A table with one base chain.
fn table(name: &str, kind: ChainType, hook: Hook, priority: i32, rules: Vec<Rule>) -> super::Table {
    let base = Some(BaseChain { kind, hook, priority, policy: Policy::Accept });
    let chain = Chain { name: "chain".to_owned(), base, comment: None };
    let rules = nft::TableRules {
        table: Table::new(TableFamily::Inet, name),
        chains: vec![chain],
        rules: [("chain".to_owned(), rules)].into(),
        sets: Default::default(),
    };
    rules.into_table()
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

/// A rule without a verdict.
fn passing() -> Vec<Rule> {
    vec![Rule::new([Expr::Counter])]
}

fn path(rules: Vec<super::Table>, origin: PacketOrigin, destination: &str) -> Path {
    let rules = NodeRules(rules);
    let packet = Packet {
        source: "10.0.0.9:40000".parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Protocol::Udp,
        origin,
    };
    let mut kernel = FakeKernel::with(&["10.0.0.1"]);
    trace(&rules, &packet, &mut kernel).unwrap().paths.remove(0)
}

/// The hook and the table of each step.
fn tables(path: &Path) -> Vec<(&str, &str)> {
    let table = |chain: &'_ str| chain.len() - " chain".len();
    path.steps.iter().map(|step| (step.hook, &step.chain[5..table(&step.chain)])).collect()
}

fn received() -> PacketOrigin {
    PacketOrigin::Interface("eth0".to_owned())
}

#[test]
fn chains_are_ordered_by_priority_and_nat_ends_after_one_translation() {
    let rules = vec![
        table("late", ChainType::Filter, Hook::Prerouting, 0, passing()),
        table("second", ChainType::Nat, Hook::Prerouting, 50, vec![dnat_to([10, 0, 0, 3])]),
        // NAT chains are evaluated at the priority of NAT, in the order of their own.
        table("first", ChainType::Nat, Hook::Prerouting, 20, vec![dnat_to([10, 0, 0, 2])]),
        table("early", ChainType::Filter, Hook::Prerouting, -101, passing()),
    ];
    let path = path(rules, received(), "10.0.0.99:53");
    let expected = ["early", "first", "late"].map(|name| ("prerouting", name));
    assert_eq!(tables(&path), expected);
    assert_eq!(path.endpoint, Some("10.0.0.2:53".parse().unwrap()));
}

#[test]
fn the_route_decides_which_hooks_are_traversed() {
    let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
    let rules = || {
        let table = |hook| table("all", ChainType::Filter, hook, 0, passing());
        hooks.into_iter().map(table).collect::<Vec<_>>()
    };
    let hooks = |origin, destination: &str| {
        let path = path(rules(), origin, destination);
        tables(&path).into_iter().map(|(hook, _)| hook.to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(hooks(received(), "10.0.0.1:53"), "prerouting input");
    assert_eq!(hooks(received(), "10.0.0.2:53"), "prerouting forward postrouting");
    assert_eq!(hooks(PacketOrigin::Node, "10.0.0.2:53"), "output postrouting");
    assert_eq!(hooks(PacketOrigin::Node, "10.0.0.1:53"), "output postrouting prerouting input");
}

#[test]
fn the_reason_of_a_drop_is_the_comment_of_the_rule() {
    let drop = Rule::new([Expr::Verdict(Verdict::Drop)]).comment("no way");
    let rules = vec![
        table("accepts", ChainType::Filter, Hook::Forward, -1, vec![Rule::new([Expr::Verdict(Verdict::Accept)])]),
        table("drops", ChainType::Filter, Hook::Forward, 1, vec![drop]),
    ];
    let path = path(rules, received(), "10.0.0.2:53");
    assert_eq!(path.verdict, PacketVerdict::Dropped { reason: "no way".to_owned() });
    assert_eq!(tables(&path), [("forward", "accepts"), ("forward", "drops")]);
}
